import ctypes, math, sys, time, numpy as np
import os; H=os.path.dirname(os.path.abspath(__file__)); sys.path[:0]=[H,os.path.dirname(H)]
from build import build
class Map(ctypes.Structure): _fields_=[("base",ctypes.c_void_p),("dims",ctypes.c_long*5),("strides",ctypes.c_long*5),("box",ctypes.c_int*5)]
class Params(ctypes.Structure):
    _fields_ = ([(n, ctypes.c_void_p) for n in ("out", "lse", "cu_q", "cu_k", "scheduler")] +
                [(n, ctypes.c_int64) for n in ("o_batch", "o_seq", "o_head")] +
                [(n, ctypes.c_int) for n in ("batch", "heads_q", "heads_kv", "seq_q", "seq_k")] +
                [("scale", ctypes.c_float), ("softcap", ctypes.c_float)] +
                [(n, ctypes.c_int) for n in ("window_left", "window_right", "heads_per_section")])
def to16(x):
    u=np.ascontiguousarray(x,dtype=np.float32).view(np.uint32); return ((u+0x7fff+((u>>16)&1))>>16).astype(np.uint16)
def to32(h): return (h.astype(np.uint32)<<16).view(np.float32)
def ref(q,k,v,scale,causal,wl,wr,cap):
    g=q.shape[1]//k.shape[1]; q,k,v=[x.astype(np.float64) for x in (q,k,v)]; k=k.repeat(g,1); v=v.repeat(g,1)
    n,m=q.shape[0],k.shape[0]
    if m==0: return np.zeros_like(q), np.full((q.shape[1],n),-np.inf)
    s=np.einsum('nhd,mhd->hnm',q,k)*scale
    if cap: s=cap*np.tanh(s/cap)
    i=np.arange(n)[:,None]+m-n; j=np.arange(m)[None]; see=np.ones((n,m),bool)
    if causal: wr=0
    if wr>=0: see&=j<=i+wr
    if wl>=0: see&=j>=i-wl
    s=np.where(see[None],s,-np.inf); mx=s.max(-1,keepdims=True); mx=np.where(np.isinf(mx),0,mx); e=np.exp(s-mx); l=e.sum(-1)
    with np.errstate(divide='ignore'): lse=np.log(l)+mx[...,0]
    return np.einsum('hnm,mhd->nhd',e/np.where(l==0,1,l)[...,None],v), lse
def run(name,spec,h=2,hk=1,b=1,sq=100,sk=100,lq=None,lk=None,grid=2,sched=0,sec=1,wl=-1,wr=-1,cap=0.0,gain=1.0,seed=0):
    t0=time.time(); lib=ctypes.CDLL(build(spec)); rng=np.random.default_rng(seed); d=spec['HEAD_DIM']; N=spec['BLOCK_N']; M=spec['BLOCK_M']
    packed=lq is not None
    if packed: cq=np.cumsum([0]+lq).astype(np.int32); ck=np.cumsum([0]+lk).astype(np.int32); tq,tk,B=sum(lq),sum(lk),len(lq); sq,sk=max(lq),max(lk); shp=(1,tq),(1,tk)
    else: B=b; shp=(b,sq),(b,max(sk,1))
    R=lambda s,hh:to16(rng.standard_normal(s+(hh,d)).astype(np.float32))
    q=to16(to32(R(shp[0],h))*gain); k=R(shp[1],hk); v=R(shp[1],hk)
    if packed:
        for i,n in enumerate(lq):
            if n==0: k[0,ck[i]:ck[i+1]]=0x7f80; v[0,ck[i]:ck[i+1]]=0x7fc0
    o=np.full(shp[0]+(h,d),0x7fc0,np.uint16)
    lse=np.full((h,tq) if packed else (b,h,sq),np.nan,np.float32)
    def mp(x,rows,n): 
        st=[s for s in x.strides]; m=Map(); m.base=x.ctypes.data; m.dims=(ctypes.c_long*5)(64,n,d//64,x.shape[2],x.shape[0]); m.strides=(ctypes.c_long*5)(2,st[1],128,st[2],st[0]); m.box=(ctypes.c_int*5)(64,rows,d//64,1,1); return m
    maps=[mp(q,64,q.shape[1]),mp(k,N,k.shape[1]),mp(v,N,v.shape[1]),mp(o,64,o.shape[1])]
    sc=np.zeros(2,np.uint32); st=[s//2 for s in o.strides]
    P=Params(o.ctypes.data,lse.ctypes.data,cq.ctypes.data if packed else None,ck.ctypes.data if packed else None,sc.ctypes.data if sched else None,0 if packed else st[0],st[1],st[2],B,h,hk,sq,sk,d**-0.5,cap,wl,wr,max(1,min(sec,B*h)))
    total=(sq+M-1)//M*h*B
    rc=lib.emulate(*[ctypes.byref(m) for m in maps],ctypes.byref(P),min(grid,total))
    fl=lambda x:to32(x)
    c=spec.get('CAUSAL',0)
    if packed:
        rr=[ref(fl(q[0,cq[i]:cq[i+1]]),fl(k[0,ck[i]:ck[i+1]]),fl(v[0,ck[i]:ck[i+1]]),d**-0.5,c,wl,wr,cap) for i in range(B) if lq[i]]
        ro=np.concatenate([r[0] for r in rr]); rl=np.concatenate([r[1] for r in rr],1); got=fl(o[0])
    else:
        kk,vv=(k[:,:sk],v[:,:sk]); rr=[ref(fl(q[i]),fl(kk[i]),fl(vv[i]),d**-0.5,c,wl,wr,cap) for i in range(b)]
        ro=np.stack([r[0] for r in rr]); rl=np.stack([r[1] for r in rr]); got=fl(o)
    e=np.linalg.norm((got-ro).ravel())/max(1e-9,np.linalg.norm(ro.ravel())); fin=np.isfinite(rl)
    le=np.abs(lse[fin]-rl[fin]).max() if fin.any() else 0
    lok=(np.isneginf(lse)==np.isneginf(rl)).all() and not np.isnan(lse).any()
    ok=rc==0 and e<6e-3 and le<2e-3 and lok and (sc==0).all()
    bad=np.abs(got-ro)>0.05; bad|=np.isnan(got)
    print(f"{'ok ' if ok else 'BAD'} {name}: d{d} M{M} N{N} rel {e:.1e} lse {le:.1e} {lok} rc {rc} sched {sc} {time.time()-t0:.1f}s" + ('' if ok else f' bad {bad.sum()} of {bad.size} rows {np.unique(np.nonzero(bad)[-3])[:20]}'),flush=True)
    return ok
def S(d,m,n,st=2,pp=1,**kw): return dict(HEAD_DIM=d,BLOCK_M=m,BLOCK_N=n,STAGES=st,PINGPONG=pp,TYPE=1,LSE=1,**{k.upper():v for k,v in kw.items()})
