Fiber*cur; Dim blockIdx,gridDim; std::vector<unsigned char> smem(240*1024); long progress; WarpSync warps[32]; NB nbs[16]; std::map<u32,MB> mbs; std::vector<std::function<void()>> jobs; WG wgs[32];
ucontext_t mainc;
void yield_(const char*w){ cur->at=w; swapcontext(&cur->c,&mainc); }
inline void __syncthreads(){ named_sync(0,attention::THREADS); }
static TensorMap MQ,MK,MV,MO; static AttentionParams PP;
static void entry(){ attention_forward_sm90(MQ,MK,MV,MO,PP); cur->done=true; progress++; swapcontext(&cur->c,&mainc); }
extern "C" int emulate(HostMap*q,HostMap*k,HostMap*v,HostMap*o,AttentionParams*p,int grid){
  MQ.words[0]=(u64)q;MK.words[0]=(u64)k;MV.words[0]=(u64)v;MO.words[0]=(u64)o;PP=*p; gridDim.x=grid;
  for(int b=0;b<grid;b++){
    blockIdx.x=b; mbs.clear(); for(auto&n:nbs)n=NB(); for(auto&w:warps)w=WarpSync(); for(auto&w:wgs)w=WG(); jobs.clear();
    for(size_t i=0;i+4<=smem.size();i+=4){u32 x=0x7fc07fc0;memcpy(&smem[i],&x,4);}
    int T=attention::THREADS; std::vector<Fiber> f(T);
    for(int i=0;i<T;i++){ f[i].tid=i;f[i].done=false;f[i].outpending=0;f[i].stack.resize(1<<16); getcontext(&f[i].c); f[i].c.uc_stack.ss_sp=f[i].stack.data(); f[i].c.uc_stack.ss_size=1<<16; f[i].c.uc_link=&mainc; makecontext(&f[i].c,entry,0);}  
    long idle=0; int live=T; std::vector<int> wo(T/32);
    while(live){
      long before=progress; live=0;
      for(int w=0;w<T/32;w++)wo[w]=w; for(int w=T/32-1;w>0;w--)std::swap(wo[w],wo[rnd()%(w+1)]);
      for(int w:wo){ if(rnd()%4==0)continue; for(int l=0;l<32;l++){Fiber&x=f[w*32+l]; if(x.done)continue; cur=&x; swapcontext(&mainc,&x.c);} }
      for(int i=0;i<T;i++)live+=!f[i].done;
      // engines
      bool force=idle>8;
      for(size_t i=0;i<jobs.size();){ if(force||rnd()%6==0){auto j=jobs[i];jobs.erase(jobs.begin()+i);j();progress++;}else i++; }
      for(int w=4;w<T/32;w++){ WG&g=wgs[w]; int n=(force||rnd()%3==0)?(force?1000:int(rnd()%24)):0; while(n-->0&&g.ops.size()&&g.ops.front().posted==32){Op o=g.ops.front();g.ops.pop_front();execop(w,o);g.base++;progress++;} }
      if(progress==before){ if(++idle>200){ printf("DEADLOCK block %d\n",b); std::map<std::string,int> c; for(auto&x:f)if(!x.done){char t[99];snprintf(t,99,"warp %d: %s",x.tid/32,x.at.c_str());c[t]++;} for(auto&x:c)printf("  %s x%d\n",x.first.c_str(),x.second); return 1;} } else idle=0;
    }
    while(jobs.size()){ printf("jobs left at exit\n"); return 2; }
    for(int i=0;i<16;i++)if(nbs[i].n){printf("named barrier %d left with %u\n",i,nbs[i].n);return 3;}
  }
  return 0;
}
