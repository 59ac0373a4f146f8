#include <ucontext.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cstdint>
#include <cmath>
#include <vector>
#include <deque>
#include <map>
#include <functional>
#include <string>
#include <algorithm>
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(a,b)
struct uint4 { unsigned x,y,z,w; };
struct Dim { unsigned x; };
struct Fiber { ucontext_t c; unsigned tid; bool done; std::string at; std::vector<char> stack; long outpending; };
extern Fiber *cur; extern Dim blockIdx, gridDim;
struct TI { unsigned &xr() ; };
#define threadIdx (Dim{cur->tid})
void yield_(const char*);
extern std::vector<unsigned char> smem;
extern long progress;
inline unsigned rnd(){ static unsigned long long s=88172645463325252ull; s^=s<<13; s^=s>>7; s^=s<<17; return unsigned(s>>20);}
static inline float __int_as_float(unsigned x){float f; memcpy(&f,&x,4); return f;}
template<class T> T __ldg(const T*p){return *p;}
inline unsigned atomicAdd(unsigned*p,unsigned v){unsigned o=*p;*p+=v;return o;}
inline void __threadfence(){}
inline unsigned min(unsigned a,unsigned b){return a<b?a:b;}
inline unsigned __cvta_generic_to_shared(void*){return 1040;}
static unsigned char memory[4];
struct WarpSync{ int n=0; long gen=0; unsigned v[2][32]; };
extern WarpSync warps[32];
inline unsigned coll(unsigned x,unsigned (*f)(unsigned*,unsigned,unsigned),unsigned arg){
  WarpSync&w=warps[cur->tid/32]; long g=w.gen; unsigned lane=cur->tid%32; w.v[g&1][lane]=x;
  if(++w.n==32){w.n=0;w.gen++;progress++;} else while(w.gen==g) yield_("warp collective");
  return f(w.v[g&1],lane,arg);
}
inline float fas(unsigned x){float f;memcpy(&f,&x,4);return f;}
inline unsigned asu(float x){unsigned f;memcpy(&f,&x,4);return f;}
inline unsigned __shfl_sync(unsigned,unsigned x,int src){return coll(x,[](unsigned*v,unsigned,unsigned a){return v[a];},src);}
inline float __shfl_xor_sync(unsigned,float x,int m){return fas(coll(asu(x),[](unsigned*v,unsigned l,unsigned a){return v[l^a];},m));}
inline bool __any_sync(unsigned,bool p){return coll(p,[](unsigned*v,unsigned,unsigned){unsigned r=0;for(int i=0;i<32;i++)r|=v[i];return r;},0);}
inline void __syncwarp(){coll(0,[](unsigned*,unsigned,unsigned){return 0u;},0);}
struct NB{unsigned n=0; long gen=0;}; extern NB nbs[16];
static inline unsigned __float_as_uint(float f){unsigned x; memcpy(&x,&f,4);return x;}
