import re,sys,ctypes,types,json,os
H=os.path.dirname(os.path.abspath(__file__)); sys.path[:0]=[H,os.path.dirname(H)]
src=open(os.path.dirname(H)+'/harness_sm90.py').read()
src=src.replace('device="cuda"','device="cpu"').replace('.cumsum(0).int().cuda()','.cumsum(0).int()').replace('HERE = os.path.dirname(os.path.abspath(__file__))','HERE = %r' % os.path.dirname(H))
src=src.replace('if __name__ == "__main__":\n    main()','')
import torch
class Ev:
    def __init__(s,**k):0
    def record(s):0
    def elapsed_time(s,o):return 1.0
class C: pass
torch.manual_seed=lambda s:torch.random.default_generator.manual_seed(s)
torch.cuda=types.SimpleNamespace(init=lambda:0,synchronize=lambda:0,Event=Ev,get_device_properties=lambda i:types.SimpleNamespace(multi_processor_count=3),current_stream=lambda:types.SimpleNamespace(cuda_stream=0))
g={'__name__':'h'}
exec(compile(src,'harness','exec'),g)
from build import build
from test import Map
class EK(g['Kernel']):
    def __init__(self,c,s):
        self.spec=s; self.lib=ctypes.CDLL(build({k:v for k,v in s.items() if k!='WATCHDOG'}))
    def attribute(self,a): return 0
    def tensor_map(self,t,rows):
        if t.dim()==3: t=t.unsqueeze(0)
        b,n,h,d=t.shape; sb,sn,sh,_=[x*2 for x in t.stride()]
        m=Map(); m.base=t.data_ptr(); m.dims=(ctypes.c_long*5)(64,max(n,1),d//64,h,b); m.strides=(ctypes.c_long*5)(2,sn,128,sh,sb); m.box=(ctypes.c_int*5)(64,rows,d//64,1,1)
        return m,ctypes.addressof(m)
    def launch(self,prep):
        keep,grid=prep; a=keep[2]
        rc=self.lib.emulate(*[ctypes.c_void_p(a[i]) for i in range(5)],grid)
        assert rc==0
g['Kernel']=EK
g['kernel']=lambda s:EK(None,s)
# Generator on cpu etc
if __name__=='__main__':
    what=sys.argv[1]
    if what=='probe':
        for s in g['probes']():
            r=g['job_probe'](s); print('\n'.join(r['lines']),r['ok'],flush=True)
    if what=='cases':
        for c in g['cases'](False):
            if len(sys.argv)>2 and c['spec']['HEAD_DIM']!=int(sys.argv[2]): continue
            if c['spec'].get('TYPE',1)==0: continue
            r=g['job_case'](c); print(r['ok'],c['name'],{k:r[k] for k in r if k!='ok'},flush=True)
    if what=='time':
        g['SHAPES']['d64 causal'].update(b=1,h=2,s=256)
        sh,s,dyn,mib=[x for x in g['sweep'](True) if x[0]=='d64 causal'][0]
        print(g['job_time'](sh,s,dyn,mib,True))
    if what=='fork':
        import time as T,os as O
        def fn(x):
            if x==1: raise RuntimeError('one')
            if x==2: O._exit(3)
            if x==3: O.kill(O.getpid(),11)
            if x==4: T.sleep(100)
            if x==5: O.kill(O.getpid(),9)
            return dict(ok=True,x=x)
        for r in g['fork'](fn,[(i,) for i in range(8)],2): print(r)
