"""Runs forward_sm90.cu on the CPU: the asm helpers are replaced by fibers, mbarriers, a late and random copy
engine and matrix engine that read the descriptors and swizzles as the PTX ISA describes them. Finds wrong
addresses, phases, masks, deadlocks and buffers reused too early; does not know of proxies' fences.

    python3 cases.py 64 128 256; python3 cases_partial.py; python3 mutations.py   (needs numpy and g++)
    python3 harness_on_cpu.py probe|cases|time|fork                               (needs torch)
"""
import re,sys,subprocess,hashlib,os
HERE=os.path.dirname(os.path.abspath(__file__))
OUT=os.environ.get('EMU_OUT','build/emulator'); os.makedirs(OUT,exist_ok=True)
SRC=os.path.join(HERE,'../../src/kernels/forward_sm90.cu')
def build(spec):
    s=open(SRC).read()
    a=s.index('// ---- barriers and copies'); b=s.index('// ---- matrix products'); c=s.index('#if ATTN_TYPE == 0\n#define ATTN_TYPE_NAME'); d=s.index('// ---- arithmetic')
    keep=s[b:c]
    # close the namespace round the emulation's own declarations
    head=s[:a]
    i=head.index('namespace attention {')
    pre,ns=head[:i],head[i:]
    rest=s[d:]
    rest=re.sub(r'__device__ __forceinline__ float exp2_fast.*?\n}\n','inline float exp2_fast(float x){return exp2f(x);}\n',rest,flags=re.S)
    rest=re.sub(r'__device__ __forceinline__ float log2_fast.*?\n}\n','inline float log2_fast(float x){return log2f(x);}\n',rest,flags=re.S)
    rest=re.sub(r'__device__ __forceinline__ float reciprocal.*?\n}\n','inline float reciprocal(float x){return 1.0f/x;}\n',rest,flags=re.S)
    rest=re.sub(r'__device__ __forceinline__ u32 pack.*?\n}\n','inline u32 r16(float x){u32 u=asu(x); if(std::isnan(x))return 0x7fc0; u+=0x7fff+((u>>16)&1); return u>>16;}\ninline u32 pack(float l,float h){return r16(l)|(r16(h)<<16);}\n',rest,flags=re.S)
    rest=rest.replace('if (DEAL_REGISTERS) ','')
    rest=re.sub(r'asm volatile\("(fence|setmaxnreg)[^;]*;.*?\);','',rest)
    rest=rest.replace('extern __shared__ unsigned char memory[];','')
    assert 'asm volatile' not in rest, rest[rest.index('asm volatile'):][:200]
    out='#include "head.h"\n'+pre+'#include "mid.h"\n'+ns+keep+rest+'\n#include "tail.h"\n'
    key=hashlib.sha256((out+open(HERE+'/head.h').read()+open(HERE+'/mid.h').read()+open(HERE+'/tail.h').read()+str(sorted(spec.items()))).encode()).hexdigest()[:16]
    so=f'{OUT}/{key}.so'
    if not os.path.exists(so):
        cpp=f'{OUT}/{key}.cpp'; open(cpp,'w').write(out)
        r=subprocess.run(['g++','-std=c++17','-O2','-fno-strict-aliasing','-w','-shared','-fPIC','-fpermissive','-I',HERE,cpp,'-o',so]+[f'-DATTN_{k}={v}' for k,v in spec.items()],capture_output=True,text=True)
        if r.returncode: print(r.stderr[:3000]); sys.exit(1)
    return so
