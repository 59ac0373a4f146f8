// Runs a kernel source of this crate on the CPU, lane by lane: each thread is a fiber, warp
// instructions are rendezvous of 32 fibers. It checks indices, masks and waits (cp.async data appears
// either at once or only at its wait, shared memory starts as NaN), not speed or memory ordering.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__
#define __align__(n) __attribute__((aligned(n)))
struct Dim { int x = 0, y = 0, z = 0; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint2 { unsigned x, y; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
using std::max;
using std::min;

static Dim threadIdx, blockIdx, gridDim, blockDim;
__attribute__((aligned(1024))) unsigned char shared_memory[256 * 1024];
static size_t shared_limit = sizeof shared_memory;

namespace emu {
static bool lazy = true;
static std::mt19937 rng(1);
struct Range { const char* begin; size_t bytes; };
static std::vector<Range> readable;
[[noreturn]] static void die(const char* what) {
    std::printf("EMULATOR: %s (block %d %d %d thread %d)\n", what, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x);
    std::exit(3);
}
struct Copy { uint32_t to; const void* from; bool valid; };
struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool done = false;
    std::vector<std::vector<Copy>> groups{1};
};
struct Warp {
    int arrived = 0;
    uint64_t generation = 0;
    uint32_t in[32][16], out[32][8];
};
static std::vector<Fiber> fibers;
static std::vector<Warp> warps;
static ucontext_t scheduler;
static int current, block_arrived;
static uint64_t block_generation;
static std::function<void()> body;

static void yield() { swapcontext(&fibers[current].context, &scheduler); }
static void entry() { body(); fibers[current].done = true; yield(); }

template <class F>
static void rendezvous(F op) {
    Warp& w = warps[current / 32];
    const uint64_t g = w.generation;
    if (++w.arrived == 32) { op(w); w.arrived = 0; ++w.generation; }
    else while (w.generation == g) yield();
}
static void run_block(int threads, const std::function<void()>& kernel) {
    if ((int)fibers.size() != threads) { fibers.clear(); fibers.resize(threads); }
    warps.assign(threads / 32, Warp());
    block_arrived = 0;
    std::memset(shared_memory, 0xff, sizeof shared_memory);
    body = kernel;
    for (auto& f : fibers) {
        f.stack.resize(128 * 1024);
        f.done = false;
        f.groups.assign(1, {});
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data();
        f.context.uc_stack.ss_size = f.stack.size();
        f.context.uc_link = nullptr;
        makecontext(&f.context, entry, 0);
    }
    for (int left = threads; left > 0;) {
        const int w = rng() % warps.size(), rounds = 1 + rng() % 64;
        for (int r = 0; r < rounds; ++r)
            for (int l = 0; l < 32; ++l) {
                const int i = w * 32 + l;
                if (fibers[i].done) continue;
                current = i;
                threadIdx.x = i;
                swapcontext(&scheduler, &fibers[i].context);
                left -= fibers[i].done;
            }
    }
}
static void apply(const Copy& c) {
    if (c.to % 16 || c.to + 16 > shared_limit) die("cp.async outside shared memory");
    if (!c.valid) { std::memset(shared_memory + c.to, 0, 16); return; }
    std::memcpy(shared_memory + c.to, c.from, 16);
}
static float widen(uint16_t b) {
#if ATTN_TYPE == 0
    _Float16 h; std::memcpy(&h, &b, 2); return (float)h;
#else
    uint32_t u = (uint32_t)b << 16; float f; std::memcpy(&f, &u, 4); return f;
#endif
}
static uint16_t narrow(float f) {
#if ATTN_TYPE == 0
    _Float16 h = (_Float16)f; uint16_t b; std::memcpy(&b, &h, 2); return b;
#else
    uint32_t u; std::memcpy(&u, &f, 4);
    if (f != f) return 0x7fff;
    return (u + 0x7fff + ((u >> 16) & 1)) >> 16;
#endif
}
static bool check_readable(const void* p, size_t n) {
    for (auto& r : readable)
        if ((const char*)p >= r.begin && (const char*)p + n <= r.begin + r.bytes) return true;
    return false;
}
}  // namespace emu

inline uint32_t shared_address(const void* p) { return (uint32_t)((const unsigned char*)p - shared_memory); }
inline void cp_async_16_or_zero(uint32_t to, const void* from, bool valid) {
    if (valid && (((uintptr_t)from) % 16 || !emu::check_readable(from, 16))) emu::die("cp.async reads outside its tensors");
    emu::Copy c{to, from, valid};
    if (!emu::lazy) emu::apply(c);
    else emu::fibers[emu::current].groups.back().push_back(c);
}
inline void cp_async_16(uint32_t to, const void* from) { cp_async_16_or_zero(to, from, true); }
inline void cp_async_commit() { emu::fibers[emu::current].groups.emplace_back(); }
template <int PENDING>
inline void cp_async_wait() {
    auto& g = emu::fibers[emu::current].groups;
    while ((int)g.size() - 1 > PENDING) {
        for (auto& c : g.front()) emu::apply(c);
        g.erase(g.begin());
    }
}
inline void ldmatrix(uint32_t (&r)[4], uint32_t address, bool trans) {
    auto& w = emu::warps[emu::current / 32];
    const int lane = emu::current % 32;
    if (address % 16 || address + 16 > shared_limit) emu::die("ldmatrix outside shared memory");
    w.in[lane][0] = address;
    emu::rendezvous([trans](emu::Warp& w) {
        for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < 4; ++i) {
                uint16_t e[2];
                for (int j = 0; j < 2; ++j) {
                    const int row = trans ? 2 * (lane % 4) + j : lane / 4, col = trans ? lane / 4 : 2 * (lane % 4) + j;
                    std::memcpy(&e[j], shared_memory + w.in[8 * i + row][0] + 2 * col, 2);
                }
                w.out[lane][i] = e[0] | (uint32_t)e[1] << 16;
            }
    });
    for (int i = 0; i < 4; ++i) r[i] = w.out[lane][i];
}
inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t a) { ldmatrix(r, a, false); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t a) { ldmatrix(r, a, true); }
inline void mma_16816(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    auto& w = emu::warps[emu::current / 32];
    const int lane = emu::current % 32;
    for (int i = 0; i < 4; ++i) w.in[lane][i] = a[i];
    w.in[lane][4] = b0;
    w.in[lane][5] = b1;
    for (int i = 0; i < 4; ++i) std::memcpy(&w.in[lane][6 + i], &c[i], 4);
    emu::rendezvous([](emu::Warp& w) {
        float A[16][16], B[16][8];
        for (int lane = 0; lane < 32; ++lane) {
            const int g = lane / 4, t = lane % 4;
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 2; ++j)
                    A[g + 8 * (i % 2)][2 * t + j + 8 * (i / 2)] = emu::widen(w.in[lane][i] >> (16 * j));
            for (int i = 0; i < 2; ++i)
                for (int j = 0; j < 2; ++j) B[2 * t + j + 8 * i][g] = emu::widen(w.in[lane][4 + i] >> (16 * j));
        }
        for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < 4; ++i) {
                const int row = lane / 4 + 8 * (i / 2), col = 2 * (lane % 4) + i % 2;
                float s;
                std::memcpy(&s, &w.in[lane][6 + i], 4);
                for (int k = 0; k < 16; ++k) s += A[row][k] * B[k][col];
                std::memcpy(&w.out[lane][i], &s, 4);
            }
    });
    for (int i = 0; i < 4; ++i) std::memcpy(&c[i], &w.out[lane][i], 4);
}
inline uint32_t pack(float low, float high) { return emu::narrow(low) | (uint32_t)emu::narrow(high) << 16; }
inline float exp2_approx(float x) { return std::exp2(x); }
inline float log2_approx(float x) { return std::log2(x); }
inline float reciprocal(float x) { return 1.0f / x; }
inline unsigned opaque(unsigned x) { return x; }
inline float minus_infinity() { return -INFINITY; }
template <class T>
inline T __shfl_any(T v, int from) {
    auto& w = emu::warps[emu::current / 32];
    const int lane = emu::current % 32;
    std::memcpy(&w.in[lane][0], &v, 4);
    w.in[lane][1] = from;
    emu::rendezvous([](emu::Warp& w) { for (int l = 0; l < 32; ++l) w.out[l][0] = w.in[w.in[l][1] & 31][0]; });
    std::memcpy(&v, &w.out[lane][0], 4);
    return v;
}
template <class T> inline T __shfl_xor_sync(unsigned, T v, int x) { return __shfl_any(v, (emu::current % 32) ^ x); }
template <class T> inline T __shfl_sync(unsigned, T v, int x) { return __shfl_any(v, x); }
inline int __any_sync(unsigned, int p) {
    auto& w = emu::warps[emu::current / 32];
    w.in[emu::current % 32][0] = p != 0;
    emu::rendezvous([](emu::Warp& w) { int any = 0; for (auto& i : w.in) any |= i[0]; for (auto& o : w.out) o[0] = any; });
    return w.out[emu::current % 32][0];
}
inline void __syncwarp() { emu::rendezvous([](emu::Warp&) {}); }
inline void __syncthreads() {
    const uint64_t g = emu::block_generation;
    if (++emu::block_arrived == (int)emu::fibers.size()) { emu::block_arrived = 0; ++emu::block_generation; }
    else while (emu::block_generation == g) emu::yield();
}
