struct MB{unsigned count=0; int pending=0; long tx=0; unsigned phase=0; bool init=false;};
extern std::map<u32,MB> mbs;
struct HostMap{ unsigned char*base; long dims[5]; long strides[5]; int box[5]; };
inline void mbcheck(MB&m){ if(m.pending==0&&m.tx==0){m.phase^=1;m.pending=m.count;progress++;} }
inline void barrier_init(u32 b,u32 c){ MB m; m.count=m.pending=c; m.init=true; mbs[b]=m; }
inline MB& mb(u32 b){ auto i=mbs.find(b); if(i==mbs.end()){printf("uninitialised mbarrier %u\n",b);exit(1);} return i->second; }
inline void barrier_arrive(u32 b){ MB&m=mb(b); if(m.pending<=0){printf("over-arrival on barrier +%u\n",b);exit(1);} m.pending--; progress++; mbcheck(m);}
inline void barrier_expect(u32 b,u32 n){ MB&m=mb(b); m.tx+=n; m.pending--; if(m.pending<0){printf("over-arrival (expect)\n");exit(1);} mbcheck(m);}
inline void barrier_wait(u32 b,u32 parity){ char t[64]; snprintf(t,64,"mbarrier at +%u parity %u",b-2048,parity); while(mb(b).phase==parity) yield_(t); }
inline void named_arrive(u32 id,u32 n){ NB&x=nbs[id]; if(++x.n==n){x.n=0;x.gen++;progress++;} if(x.n>n){printf("named barrier %u over\n",id);exit(1);} }
inline void named_sync(u32 id,u32 n){ NB&x=nbs[id]; long g=x.gen; named_arrive(id,n); char t[64]; snprintf(t,64,"named %u gen %ld n %u",id,g,x.n); while(x.gen==g) yield_(t); }
inline void __syncthreads();
inline unsigned char* sm(u32 a){ if(a+4>smem.size()){printf("smem out of range %u\n",a);exit(1);} return &smem[a]; }
inline void store_shared(u32 at,u32 x){memcpy(sm(at),&x,4);}
inline void store_shared(u32 at,uint4 x){memcpy(sm(at),&x,16);}
inline uint4 load_shared(u32 at){uint4 x;memcpy(&x,sm(at),16);return x;}
inline void fence_async(){}
inline u32 swz(u32 a){return a^(((a>>7)&7)<<4);}
extern std::vector<std::function<void()>> jobs;
inline void copy_in(u32 to,const TensorMap*map,u32 bar,int row,int head,int batch){
  HostMap*h=(HostMap*)map->words[0]; int R=h->box[1],A=h->box[2];
  if(to%1024){printf("copy to unaligned\n");exit(1);}
  for(u32 i=0;i<u32(R*A*128);i+=4){u32 nan=0x7fc07fc0; memcpy(sm(to+i),&nan,4);} 
  jobs.push_back([=]{
    for(int a=0;a<A;a++)for(int r=0;r<R;r++)for(int c=0;c<64;c++){
      unsigned short v=0; long x[5]={c,row+r,a,head,batch}; bool in=true; long off=0;
      for(int i=0;i<5;i++){ if(x[i]<0||x[i]>=h->dims[i])in=false; off+=x[i]*h->strides[i]; }
      if(in)memcpy(&v,h->base+off,2);
      memcpy(sm(swz(to+(a*R+r)*128+c*2)),&v,2);
    }
    MB&m=mb(bar); m.tx-=R*A*128; mbcheck(m);
  });
}
inline void copy_out(const TensorMap*map,u32 from,int row,int head,int batch){
  HostMap*h=(HostMap*)map->words[0]; int R=h->box[1],A=h->box[2]; Fiber*f=cur; f->outpending++;
  jobs.push_back([=]{
    for(int a=0;a<A;a++)for(int r=0;r<R;r++)for(int c=0;c<64;c++){
      unsigned short v; long x[5]={c,row+r,a,head,batch}; bool in=true; long off=0;
      for(int i=0;i<5;i++){ if(x[i]<0||x[i]>=h->dims[i])in=false; off+=x[i]*h->strides[i]; }
      memcpy(&v,sm(swz(from+(a*R+r)*128+c*2)),2);
      if(in)memcpy(h->base+off,&v,2);
    }
    f->outpending--; progress++;
  });
}
inline void copies_read(){ while(cur->outpending) yield_("copies_read"); }
inline void copies_done(){ copies_read(); }
inline float bf(unsigned short v){return fas(unsigned(v)<<16);}
// wgmma
struct Op{ int N; bool rs; u64 a,b; int acc; float*d[32]; u32 r[32][4]; int posted=0; };
struct WG{ std::deque<Op> ops; long base=0; long lane_posted[32]={}; long committed[32]={}; std::vector<long> groups[32]; };
extern WG wgs[32];
inline float elemK(u64 desc,int r,int k){ u32 st=(desc&0x3fff)<<4,sbo=((desc>>32)&0x3fff)<<4; if((desc>>62)!=1){printf("swizzle mode\n");exit(1);} 
  unsigned short v; memcpy(&v,sm(swz(st+(r/8)*sbo+(r%8)*128+k*2)),2); return bf(v);}
inline float elemMN(u64 desc,int k,int n){ u32 st=(desc&0x3fff)<<4,lbo=((desc>>16)&0x3fff)<<4,sbo=((desc>>32)&0x3fff)<<4;
  unsigned short v; memcpy(&v,sm(swz(st+(n/64)*lbo+(n%64)*2+(k/8)*sbo+(k%8)*128)),2); return bf(v);}
inline void execop(int warp,Op&o){
  static float A[16][16],B[16][256];
  int w=warp%4;
  for(int r=0;r<16;r++)for(int k=0;k<16;k++){
    if(!o.rs)A[r][k]=elemK(o.a,16*w+r,k);
    else { int lane=(r%8)*4+(k%8)/2, reg=(r/8)+2*(k/8); u32 x=o.r[lane][reg]; A[r][k]=bf((k&1)?x>>16:x&0xffff);} }
  for(int k=0;k<16;k++)for(int n=0;n<o.N;n++)B[k][n]=o.rs?elemMN(o.b,k,n):elemK(o.b,n,k);
  for(int l=0;l<32;l++)for(int i=0;i<o.N/2;i++){
    int r=l/4+8*((i>>1)&1),c=(i>>2)*8+2*(l%4)+(i&1); float s=o.acc?o.d[l][i]:0;
    for(int k=0;k<16;k++)s+=A[r][k]*B[k][c]; o.d[l][i]=s; }
}
inline void post(int N,bool rs,float*d,u64 a,u64 b,int acc,u32 r0,u32 r1,u32 r2,u32 r3){
  WG&g=wgs[cur->tid/32]; int l=cur->tid%32; long i=g.lane_posted[l]++ - g.base; while(long(g.ops.size())<=i)g.ops.push_back(Op());
  Op&o=g.ops[i]; o.N=N;o.rs=rs;o.a=a;o.b=b;o.acc=acc;o.d[l]=d;o.r[l][0]=r0;o.r[l][1]=r1;o.r[l][2]=r2;o.r[l][3]=r3;o.posted++;
}
template<int N> struct Product{
  static void shared(float(&d)[N/2],u64 a,u64 b,int acc){post(N,false,d,a,b,acc,0,0,0,0);}
  static void weights(float(&d)[N/2],u32 a0,u32 a1,u32 a2,u32 a3,u64 b){post(N,true,d,0,b,1,a0,a1,a2,a3);}
};
inline void products_fence(){}
inline void products_commit(){ WG&g=wgs[cur->tid/32]; int l=cur->tid%32; g.groups[l].push_back(g.lane_posted[l]); }
template<int LEFT> inline void products_wait(){ WG&g=wgs[cur->tid/32]; int l=cur->tid%32; long n=g.groups[l].size(); if(n-LEFT<=0)return; long need=g.groups[l][n-LEFT-1]; while(g.base<need) yield_("wgmma wait"); }
template<int N> inline void pin(float(&)[N]){}
