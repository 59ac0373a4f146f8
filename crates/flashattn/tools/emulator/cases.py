from test import *
T={64:(192,128),128:(128,128),256:(128,80)}
L=dict(lq=[1,64,300,0,129,200],lk=[5,64,333,170,0,77],h=2,hk=1)
ds=[int(x) for x in sys.argv[1:]] or [64,128,256]
for d in ds:
    t=T[d]; c=S(d,*t,causal=1); f=S(d,*t); w=S(d,*t,window=1)
    run("full odd",f,h=4,hk=2,b=2,sq=257,sk=333,grid=3)
    run("many tiles dyn",f,h=2,hk=2,b=2,sq=400,sk=129,grid=1,sched=1,seed=2)
    run("causal sq",c,h=2,hk=2,sq=500,sk=500,grid=2,sched=1,sec=2)
    run("causal more keys",c,h=2,hk=1,sq=100,sk=413,grid=1)
    run("causal blind",c,h=2,hk=2,b=2,sq=413,sk=100,grid=2)
    run("one key",f,h=2,hk=1,sq=65,sk=1)
    run("no key",f,h=2,hk=1,sq=230,sk=0,grid=1)
    run("huge",f,h=1,hk=1,sq=70,sk=400,gain=300.)
    run("sections",c,h=5,hk=5,b=1,sq=300,sk=300,grid=1,sched=1,sec=3)
    run("window",w,h=2,hk=1,sq=500,sk=600,wl=200,wr=77,grid=2)
    run("window left open",w,h=2,hk=1,sq=300,sk=300,wl=-1,wr=30,grid=2)
    run("window off",w,h=2,hk=1,sq=500,sk=150,wl=16,wr=16,grid=1)
    run("causal window",S(d,*t,window=1,causal=1),h=2,hk=1,sq=600,sk=600,wl=150,wr=50,grid=1)
    run("packed",S(d,*t,varlen=1),grid=2,**L)
    run("packed causal dyn",S(d,*t,varlen=1,causal=1),grid=1,sched=1,**L)
    ts=(128,128) if d==64 else t
    run("softcap",S(d,*ts,softcap=1,causal=1),h=2,hk=2,sq=200,sk=300,cap=5.0,gain=6.,grid=1)
    run("packed all",S(d,*ts,varlen=1,window=1,softcap=1,causal=1),grid=2,wl=100,wr=5,cap=8.0,**L)
    run("pp0 st3" ,S(d,128,64 if d==256 else 96,2 if d==256 else 3,0,causal=1),h=2,hk=2,sq=300,sk=300,grid=1,sec=2)
