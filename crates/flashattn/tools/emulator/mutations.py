import build, test
src=open(build.SRC).read()
from test import S,run
L=dict(lq=[1,64,300,0,129,200],lk=[5,64,333,170,0,77],h=2,hk=1)
def mut(name,a,b,f):
    assert a in src,a
    open(build.OUT+'/m.cu','w').write(src.replace(a,b)); build.SRC=build.OUT+'/m.cu'; print('mutation:',name); f()
mut('no clearing','bool ragged = VARLEN && valid < BLOCK_N;','bool ragged = false;',lambda:run("packed",S(64,128,128,varlen=1),grid=2,**L))
mut('early V release','                products_wait<0>();\n                pin(o);\n                release(VALUE_EMPTY, values);\n                if (__any','                release(VALUE_EMPTY, values);products_wait<0>();\n                pin(o);\n                if (__any',lambda:run("x",S(64,128,64),sq=256,sk=900,grid=1))
mut('no wait K','                products_wait<1>();','',lambda:run("x",S(64,128,64),sq=256,sk=400,grid=1))
mut('out swizzle','(((j % 8) ^ (lane / 4)) << 4)','((j % 8) << 4)',lambda:run("x",S(64,128,64),sq=256,sk=400,grid=1))
mut('no out read wait','if (OUT_APART && thread == 0) copies_read();','',lambda:[run("x",S(64,128,64),sq=600,sk=64,grid=1,seed=i) for i in range(2)])
mut('query released early','                if (OUT_APART && elected()) barrier_arrive(shared + QUERY_EMPTY + 8 * group);\n                barrier_wait(shared + VALUE_FULL','                barrier_wait(shared + VALUE_FULL',lambda:run("x",S(64,128,64),sq=600,sk=64,grid=1))
