from test import *
for i in range(3):
    run("c 192/64",S(64,192,64,causal=1),h=2,hk=1,sq=450,sk=500,grid=1,sched=1,sec=2,seed=i)
    run("c 192/64 blind",S(64,192,64,causal=1),h=2,hk=1,sq=500,sk=190,grid=1,seed=i)
    run("w 192/64",S(64,192,64,window=1),h=2,hk=1,sq=450,sk=500,wl=40,wr=10,grid=1,seed=i)
    run("w 192/64 off",S(64,192,64,window=1),h=2,hk=1,sq=800,sk=300,wl=0,wr=0,grid=1,seed=i)
    run("cw 128/96",S(128,128,96,window=1,causal=1),h=2,hk=1,sq=450,sk=500,wl=70,wr=10,grid=1,seed=i)
    run("varlen cw",S(64,192,64,window=1,causal=1,varlen=1),lq=[1,64,300,0,129,200],lk=[5,64,333,170,0,77],h=2,hk=1,wl=33,grid=1,seed=i)
