// Exact attention, forward, for Hopper (sm_90a): O = softmax(scale * Q K^T + mask) V.
//
// Compiled at run time by NVRTC; nothing is included. 16-bit operands, f32 accumulation. Written from
// FlashAttention-2 (arXiv 2307.08691), FlashAttention-3 (arXiv 2407.08608) and NVIDIA's PTX ISA.
//
// Layout. Q, K, V and O are [batch, seq, heads, head_dim] in any strides with head_dim contiguous;
// with ATTN_VARLEN they are [total, heads, head_dim] and cu_seqlens gives where each sequence starts.
// Each is seen through a five-dimensional tensor map over 64-column atoms,
//     dims    {64, seq or total, head_dim / 64, heads, batch or 1}
//     strides {     seq stride,  128 bytes,     head stride, batch stride}
//     box     {64, 64 (Q, O) or ATTN_BLOCK_N (K, V), head_dim / 64, 1, 1}, 128-byte swizzle, zero fill,
// so that one copy brings a whole tile, laid down as [head_dim / 64][rows][64]: the layout that wgmma
// reads as K-major (Q, K) or as MN-major (V, no transpose needed). Base addresses and strides are
// multiples of 16 bytes; an empty K or V needs a map of one row, which is never read.
//
// The pipeline.
//  1. A persistent grid, one block an SM. The producer warp draws tiles (ATTN_BLOCK_M queries of one
//     head) and publishes each through a two-slot ring in shared memory; causal runs long tiles first.
//  2. The producer brings K and V blocks through two rings of ATTN_STAGES stages, last block first, in
//     the order in which they are eaten: K(n), K(n-1), V(n), K(n-2), V(n-1), ...
//  3. Each consumer warpgroup owns 64 queries, keeps their scores, weights and output in registers, and
//     lets pass the blocks that none of them sees.
//  4. A step issues the scores of the next block and the output of the current one back to back, then
//     does the next block's softmax while the tensor cores still work on the output.
//  5. With ATTN_PINGPONG the warpgroups take turns to issue, so that one's softmax runs under another's
//     matrix products.
//  6. The running maximum moves only when a block exceeds it by 2^8: weights stay far inside f16, any
//     shift gives the same quotient, and most steps need not rescale the output.
//  7. Only blocks that cross a boundary (end of keys, diagonal, window edge) are masked.
//  8. The output leaves through shared memory by the copy engine, which clips it at the end of the
//     tensor; a packed sequence's ragged end is stored row by row.
//
// Launch: 128 * (1 + ATTN_BLOCK_M / 64) threads, grid min(SMs, tiles) x 1 x 1, dynamic shared memory
//     2048 + 2 * head_dim * (ATTN_BLOCK_M + 2 * ATTN_STAGES * ATTN_BLOCK_N)
//          + 2 * head_dim * ATTN_BLOCK_M again if the sum still is at most 232448 (O apart from Q).
// Sizes (M, N) that fit in registers, with two stages: head_dim 64 192,128 (with a softcap 128,128);
// 128 128,176 (causal 128,128); 256 128,80.

#ifndef ATTN_HEAD_DIM
#define ATTN_HEAD_DIM 128 // 64, 128 or 256
#endif
#ifndef ATTN_TYPE
#define ATTN_TYPE 1 // 0: f16, 1: bf16
#endif
#ifndef ATTN_CAUSAL
#define ATTN_CAUSAL 0 // query i sees keys <= i + seq_k - seq_q
#endif
#ifndef ATTN_WINDOW
#define ATTN_WINDOW 0 // window_left and window_right hold
#endif
#ifndef ATTN_SOFTCAP
#define ATTN_SOFTCAP 0 // scores become softcap * tanh(scale * score / softcap)
#endif
#ifndef ATTN_VARLEN
#define ATTN_VARLEN 0 // packed sequences
#endif
#ifndef ATTN_LSE
#define ATTN_LSE 0 // write the natural log of the sum of exponentials
#endif
#ifndef ATTN_BLOCK_M
#define ATTN_BLOCK_M 128 // queries a tile: 64 a consumer warpgroup
#endif
#ifndef ATTN_BLOCK_N
#define ATTN_BLOCK_N 128 // keys a block: a multiple of 16
#endif
#ifndef ATTN_STAGES
#define ATTN_STAGES 2 // at least 2
#endif
#ifndef ATTN_PINGPONG
#define ATTN_PINGPONG 1
#endif

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct alignas(128) TensorMap {
    u64 words[16];
};

/// Everything a launch needs beside the tensor maps, which carry the pointers and strides of Q, K, V.
struct AttentionParams {
    void *out;               // needed with ATTN_VARLEN only
    float *lse;              // [batch, heads_q, seq_q], packed: [heads_q, total_q]
    const int *cu_seqlens_q; // [batch + 1]
    const int *cu_seqlens_k; // [batch + 1]
    u32 *scheduler;          // two words, zero before and after a launch; null: tiles are dealt in turn
    i64 out_batch_stride;    // elements
    i64 out_seq_stride;
    i64 out_head_stride;
    int batch;
    int heads_q;
    int heads_kv; // divides heads_q
    int seq_q;    // packed: the longest
    int seq_k;    // packed: the longest
    float scale;  // finite and above zero
    float softcap;
    int window_left;  // keys before the query's own; below zero: no limit
    int window_right; // keys after it
    int heads_per_section; // heads whose tiles are dealt together: as many as the L2 cache holds K, V of
};

namespace attention {

constexpr int HEAD_DIM = ATTN_HEAD_DIM;
constexpr int BLOCK_M = ATTN_BLOCK_M;
constexpr int BLOCK_N = ATTN_BLOCK_N;
constexpr int STAGES = ATTN_STAGES;
constexpr bool CAUSAL = ATTN_CAUSAL;
constexpr bool WINDOW = ATTN_WINDOW;
constexpr bool SOFTCAP = ATTN_SOFTCAP;
constexpr bool VARLEN = ATTN_VARLEN;
constexpr bool LSE = ATTN_LSE;

constexpr int GROUPS = BLOCK_M / 64;
constexpr int THREADS = 128 * (1 + GROUPS);
constexpr bool PINGPONG = ATTN_PINGPONG && GROUPS > 1;
// A block's registers (504 or 512 for one lane of each warpgroup), dealt anew after the launch. With one
// consumer each lane has all it can name from the start.
constexpr bool DEAL_REGISTERS = GROUPS > 1;
constexpr int PRODUCER_REGISTERS = GROUPS == 2 ? 24 : 32;
constexpr int CONSUMER_REGISTERS = GROUPS == 2 ? 240 : 160;

constexpr int ATOMS = HEAD_DIM / 64;
constexpr int ROW = 128; // bytes of one row of an atom: the swizzle's span
constexpr int QUERY_BYTES = 64 * HEAD_DIM * 2;
constexpr int BLOCK_BYTES = BLOCK_N * HEAD_DIM * 2;
constexpr int SHARED_LIMIT = 232448;
constexpr int SHARED_LEAST = 2048 + GROUPS * QUERY_BYTES + 2 * STAGES * BLOCK_BYTES;
// With its own buffer the output drains while the next tile's queries arrive.
constexpr bool OUT_APART = SHARED_LEAST + GROUPS * QUERY_BYTES <= SHARED_LIMIT;

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128 || HEAD_DIM == 256, "head_dim is 64, 128 or 256");
static_assert(BLOCK_M == 64 || BLOCK_M == 128 || BLOCK_M == 192, "one to three consumer warpgroups");
static_assert(BLOCK_N % 16 == 0 && BLOCK_N >= 64 && BLOCK_N <= 256, "keys a block");
static_assert(STAGES >= 2, "two blocks are in flight before the second warpgroup has its queries");
static_assert(SHARED_LEAST <= SHARED_LIMIT, "the tiles do not fit in shared memory");

constexpr int NO_LIMIT = 1 << 29;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;
// How far, in powers of two, a score may pass the running maximum before the maximum follows.
constexpr float SLACK = 8.0f;
#define NEG_INF __int_as_float(0xff800000)

// ---- shared memory -----------------------------------------------------------------------------

// Offsets from a 1024-byte boundary: the swizzle takes its pattern from address bits.
constexpr u32 AT_QUERY = 0;
constexpr u32 AT_OUT = OUT_APART ? GROUPS * QUERY_BYTES : 0;
constexpr u32 AT_KEY = AT_OUT + GROUPS * QUERY_BYTES;
constexpr u32 AT_VALUE = AT_KEY + STAGES * BLOCK_BYTES;
constexpr u32 AT_TILE = AT_VALUE + STAGES * BLOCK_BYTES; // two slots of 32 bytes
constexpr u32 AT_BARRIER = AT_TILE + 64;

constexpr u32 QUERY_FULL = AT_BARRIER;
constexpr u32 QUERY_EMPTY = QUERY_FULL + 8 * GROUPS;
constexpr u32 KEY_FULL = QUERY_EMPTY + 8 * GROUPS;
constexpr u32 KEY_EMPTY = KEY_FULL + 8 * STAGES;
constexpr u32 VALUE_FULL = KEY_EMPTY + 8 * STAGES;
constexpr u32 VALUE_EMPTY = VALUE_FULL + 8 * STAGES;
constexpr u32 TILE_FULL = VALUE_EMPTY + 8 * STAGES;
constexpr u32 TILE_EMPTY = TILE_FULL + 16;
constexpr u32 VALUE_LANDED = TILE_EMPTY + 16;

// Named barriers; 0 is the block's own.
constexpr u32 TURN = 1;   // + warpgroup: may issue its matrix products
constexpr u32 TOGETHER = 4; // + warpgroup: its four warps alone

/// A position in a ring: the slot, and the parity of the pass over it.
template <int SIZE> struct Ring {
    u32 slot = 0, pass = 0;
    __device__ __forceinline__ void advance() {
        if (++slot == SIZE) {
            slot = 0;
            pass ^= 1;
        }
    }
};

// ---- barriers and copies -----------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(u32 bar, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

__device__ __forceinline__ void barrier_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 bar, u32 parity) {
    u32 done;
#ifdef ATTN_WATCHDOG
    u32 spins = 0;
#endif
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
#ifdef ATTN_WATCHDOG
        if (++spins > ATTN_WATCHDOG) asm volatile("trap;");
#endif
    } while (!done);
}

__device__ __forceinline__ void named_sync(u32 id, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_arrive(u32 id, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void store_shared(u32 at, u32 x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

__device__ __forceinline__ void store_shared(u32 at, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

__device__ __forceinline__ uint4 load_shared(u32 at) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}

/// Ordinary writes to shared memory, before what the copy engine and the tensor cores read.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void copy_in(u32 to, const TensorMap *map, u32 bar, int row, int head, int batch) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %3, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(0), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

__device__ __forceinline__ void copy_out(const TensorMap *map, u32 from, int row, int head, int batch) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %2, %4, %5}], [%1];" ::"l"(map),
                 "r"(from), "r"(0), "r"(row), "r"(head), "r"(batch)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// The thread's copies out have read their shared memory; have written, too.
__device__ __forceinline__ void copies_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void copies_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ---- matrix products ---------------------------------------------------------------------------

// Shared-memory matrix descriptor, 128-byte swizzle (bits 62-63 = 1). All fields in units of 16 bytes.
// Both kinds of tile are atoms of [rows][128 bytes], eight rows a swizzle pattern of 1024 bytes, which
// is the stride field. K-major: the products' K runs along a row and one instruction stays inside an
// atom, so the leading field is not read. MN-major (V): K runs down the rows, N runs along a row and on
// into the next atom, whose distance is the leading field.
constexpr u32 DESCRIPTOR_HIGH = (1024u >> 4) | (1u << 30);

__device__ __forceinline__ u64 descriptor(u32 low) { return (u64(DESCRIPTOR_HIGH) << 32) | low; }
__device__ __forceinline__ u32 descriptor_low(u32 address, u32 leading) {
    return ((address & 0x3ffff) >> 4) | ((leading >> 4) << 16);
}

#if ATTN_TYPE == 0
#define ATTN_TYPE_NAME "f16"
#else
#define ATTN_TYPE_NAME "bf16"
#endif

// Operand lists: S<k> names registers 0 to 8k-1 in the text, A<k> binds them.
#define S1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define S2 S1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define S3 S2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define S4 S3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define S5 S4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define S6 S5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define S7 S6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define S8 S7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define S9 S8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define S10 S9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define S11 S10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define S12 S11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define S13 S12 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define S14 S13 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define S15 S14 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define S16 S15 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define F8(d, i)                                                                                                       \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define A1(d) F8(d, 0)
#define A2(d) A1(d), F8(d, 8)
#define A3(d) A2(d), F8(d, 16)
#define A4(d) A3(d), F8(d, 24)
#define A5(d) A4(d), F8(d, 32)
#define A6(d) A5(d), F8(d, 40)
#define A7(d) A6(d), F8(d, 48)
#define A8(d) A7(d), F8(d, 56)
#define A9(d) A8(d), F8(d, 64)
#define A10(d) A9(d), F8(d, 72)
#define A11(d) A10(d), F8(d, 80)
#define A12(d) A11(d), F8(d, 88)
#define A13(d) A12(d), F8(d, 96)
#define A14(d) A13(d), F8(d, 104)
#define A15(d) A14(d), F8(d, 112)
#define A16(d) A15(d), F8(d, 120)

/// One m64 x N x k16 product into N / 2 registers a thread: columns 8j + 2 (lane % 4) + {0, 1} of rows
/// lane / 4 and lane / 4 + 8 of the warp's sixteen are registers 4j + {0, 1} and 4j + {2, 3}.
template <int N> struct Product;

// `shared`: A and B from shared memory, both K-major. `weights`: A from registers, B MN-major. The
// arguments after k number the operands that follow the 8k accumulators.
#define PRODUCT(N, k, p0, p1, p2, p3, p4, p5)                                                                          \
    template <> struct Product<N> {                                                                                    \
        static __device__ __forceinline__ void shared(float (&d)[N / 2], u64 a, u64 b, int accumulate) {               \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p2 ", 0;\n"                                             \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." ATTN_TYPE_NAME "." ATTN_TYPE_NAME           \
                         " {" S##k "}, %" #p0 ", %" #p1 ", p, 1, 1, 0, 0;\n}"                                          \
                         : A##k(d)                                                                                     \
                         : "l"(a), "l"(b), "r"(accumulate));                                                           \
        }                                                                                                              \
        static __device__ __forceinline__ void weights(float (&d)[N / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {     \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p5 ", 0;\n"                                             \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." ATTN_TYPE_NAME "." ATTN_TYPE_NAME           \
                         " {" S##k "}, {%" #p0 ", %" #p1 ", %" #p2 ", %" #p3 "}, %" #p4 ", p, 1, 1, 1;\n}"             \
                         : A##k(d)                                                                                     \
                         : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(1));                                        \
        }                                                                                                              \
    }
PRODUCT(64, 4, 32, 33, 34, 35, 36, 37);
PRODUCT(80, 5, 40, 41, 42, 43, 44, 45);
PRODUCT(96, 6, 48, 49, 50, 51, 52, 53);
PRODUCT(112, 7, 56, 57, 58, 59, 60, 61);
PRODUCT(128, 8, 64, 65, 66, 67, 68, 69);
PRODUCT(144, 9, 72, 73, 74, 75, 76, 77);
PRODUCT(160, 10, 80, 81, 82, 83, 84, 85);
PRODUCT(176, 11, 88, 89, 90, 91, 92, 93);
PRODUCT(192, 12, 96, 97, 98, 99, 100, 101);
PRODUCT(208, 13, 104, 105, 106, 107, 108, 109);
PRODUCT(224, 14, 112, 113, 114, 115, 116, 117);
PRODUCT(240, 15, 120, 121, 122, 123, 124, 125);
PRODUCT(256, 16, 128, 129, 130, 131, 132, 133);

__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/// Pins registers here: the optimiser does not know that a product writes them until it is waited for.
template <int N> __device__ __forceinline__ void pin(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

// ---- arithmetic --------------------------------------------------------------------------------

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// tanh to about 2^-22 absolute (tanh.approx stops near 2^-11, too coarse under a softcap of 50);
/// `x2` is 2 log2(e) times the argument. Both ends are exact: e^x goes to infinity or zero.
__device__ __forceinline__ float tanh_exponent(float x2) { return 1.0f - 2.0f * reciprocal(1.0f + exp2_fast(x2)); }

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 y;
    asm("cvt.rn." ATTN_TYPE_NAME "x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

__device__ __forceinline__ int lesser(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }

/// Over the four lanes that share a row.
__device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// ---- tiles -------------------------------------------------------------------------------------

/// BLOCK_M queries of one head: what the producer tells the consumers, 32 bytes. first_row < 0: no more.
struct Tile {
    int first_row, head, batch, seq_q; // rows count from the sequence's own start
    int seq_k, q_start, k_start;
};

/// The key blocks that some rows of a tile see: begin to end, of which clear_begin to clear_end need no mask.
struct Blocks {
    int begin, end, clear_begin, clear_end;
};

struct Window {
    int left, right;
    __device__ __forceinline__ explicit Window(const AttentionParams &p) : left(NO_LIMIT), right(NO_LIMIT) {
        if (WINDOW && p.window_left >= 0) left = lesser(p.window_left, NO_LIMIT);
        if (WINDOW && p.window_right >= 0) right = lesser(p.window_right, NO_LIMIT);
        if (CAUSAL) right = 0;
    }
    /// Keys below this are seen, those above excluded.
    __device__ __forceinline__ int key_end(int row, int seq_q, int seq_k) const {
        return CAUSAL || WINDOW ? lesser(seq_k, row + seq_k - seq_q + right + 1) : seq_k;
    }
    __device__ __forceinline__ int key_begin(int row, int seq_q, int seq_k) const {
        return WINDOW ? row + seq_k - seq_q - left : 0;
    }
};

__device__ __forceinline__ Blocks blocks_of(const Tile &t, Window w, int first_row, int rows) {
    int last_row = lesser(first_row + rows, t.seq_q) - 1;
    Blocks b;
    b.end = (larger(0, w.key_end(last_row, t.seq_q, t.seq_k)) + BLOCK_N - 1) / BLOCK_N;
    b.begin = lesser(b.end, larger(0, w.key_begin(first_row, t.seq_q, t.seq_k)) / BLOCK_N);
    b.clear_end = larger(0, w.key_end(first_row, t.seq_q, t.seq_k)) / BLOCK_N;
    b.clear_begin = (larger(0, w.key_begin(last_row, t.seq_q, t.seq_k)) + BLOCK_N - 1) / BLOCK_N;
    return b;
}

/// Heads are dealt in sections, and within one a row of tiles of all its heads at a time: tiles that run
/// together share K and V in the L2 cache, and under a causal mask the shortest come last.
__device__ __forceinline__ bool tile_at(const AttentionParams &p, u32 index, Tile &t) {
    u32 rows = u32(p.seq_q + BLOCK_M - 1) / BLOCK_M;
    u32 heads = u32(p.batch) * u32(p.heads_q);
    u32 deep = u32(p.heads_per_section);
    u32 section = index / (rows * deep);
    index -= section * rows * deep;
    u32 wide = min(deep, heads - section * deep);
    u32 row = index / wide;
    u32 head = section * deep + (index - row * wide);
    t.batch = int(head / u32(p.heads_q));
    t.head = int(head) - t.batch * p.heads_q;
    t.first_row = int(CAUSAL ? rows - 1 - row : row) * BLOCK_M;
    t.seq_q = p.seq_q;
    t.seq_k = p.seq_k;
    t.q_start = t.k_start = 0;
    if (VARLEN) {
        t.q_start = __ldg(p.cu_seqlens_q + t.batch);
        t.k_start = __ldg(p.cu_seqlens_k + t.batch);
        t.seq_q = __ldg(p.cu_seqlens_q + t.batch + 1) - t.q_start;
        t.seq_k = __ldg(p.cu_seqlens_k + t.batch + 1) - t.k_start;
    }
    return t.first_row < t.seq_q;
}

// ---- producer ----------------------------------------------------------------------------------

/// One warp. All lanes walk the loop together; lane 0 issues.
struct Producer {
    const AttentionParams &p;
    u32 shared;
    bool leader;
    u32 total;

    /// The next tile that has rows. `ahead`, in the leader, is the index already drawn for the call after:
    /// the counter's answer has a whole tile's time to arrive.
    __device__ __forceinline__ Tile draw(u32 &ahead) const {
        Tile t;
        for (;;) {
            u32 index = __shfl_sync(0xffffffff, ahead, 0);
            if (index >= total) {
                t.first_row = -1;
                return t;
            }
            ahead = index + gridDim.x;
            if (p.scheduler && leader) ahead = gridDim.x + atomicAdd(p.scheduler, 1u);
            if (tile_at(p, index, t)) return t;
        }
    }

    __device__ __forceinline__ void publish(const Tile &t, Ring<2> &slot) const {
        barrier_wait(shared + TILE_EMPTY + 8 * slot.slot, slot.pass ^ 1);
        if (leader) {
            u32 to = shared + AT_TILE + 32 * slot.slot;
            store_shared(to, uint4{u32(t.first_row), u32(t.head), u32(t.batch), u32(t.seq_q)});
            store_shared(to + 16, uint4{u32(t.seq_k), u32(t.q_start), u32(t.k_start), 0});
            barrier_arrive(shared + TILE_FULL + 8 * slot.slot);
        }
        slot.advance();
    }

    __device__ __forceinline__ void load_queries(const Tile &t, const TensorMap *map, int g, u32 pass) const {
        u32 full = shared + QUERY_FULL + 8 * g;
        barrier_wait(shared + QUERY_EMPTY + 8 * g, pass ^ 1);
        if (leader) {
            barrier_expect(full, QUERY_BYTES);
            copy_in(shared + AT_QUERY + g * QUERY_BYTES, map, full, t.q_start + t.first_row + 64 * g, t.head,
                    VARLEN ? 0 : t.batch);
        }
    }

    __device__ __forceinline__ void load_keys(const Tile &t, const TensorMap *map, int head, int n,
                                              Ring<STAGES> &at) const {
        u32 full = shared + KEY_FULL + 8 * at.slot;
        barrier_wait(shared + KEY_EMPTY + 8 * at.slot, at.pass ^ 1);
        if (leader) {
            barrier_expect(full, BLOCK_BYTES);
            copy_in(shared + AT_KEY + at.slot * BLOCK_BYTES, map, full, t.k_start + n * BLOCK_N, head,
                    VARLEN ? 0 : t.batch);
        }
        at.advance();
    }

    /// A packed sequence's last block runs into its neighbour. Its weights are zero there, but zero times
    /// a neighbour's infinity is not, so those rows are cleared before the consumers see the block.
    __device__ __forceinline__ void load_values(const Tile &t, const TensorMap *map, int head, int n, Ring<STAGES> &at,
                                                u32 &landed) const {
        u32 full = shared + VALUE_FULL + 8 * at.slot;
        u32 to = shared + AT_VALUE + at.slot * BLOCK_BYTES;
        int valid = t.seq_k - n * BLOCK_N;
        bool ragged = VARLEN && valid < BLOCK_N;
        u32 signal = ragged ? shared + VALUE_LANDED : full;
        barrier_wait(shared + VALUE_EMPTY + 8 * at.slot, at.pass ^ 1);
        if (leader) {
            barrier_expect(signal, BLOCK_BYTES);
            copy_in(to, map, signal, t.k_start + n * BLOCK_N, head, VARLEN ? 0 : t.batch);
        }
        if (ragged) {
            barrier_wait(signal, landed);
            landed ^= 1;
            int lane = threadIdx.x & 31;
#pragma unroll 1
            for (int row = valid + (lane >> 3); row < BLOCK_N; row += 4) {
#pragma unroll
                for (int atom = 0; atom < ATOMS; ++atom)
                    store_shared(to + (atom * BLOCK_N + row) * ROW + (lane & 7) * 16, uint4{0, 0, 0, 0});
            }
            fence_async();
            __syncwarp();
            if (leader) barrier_arrive(full);
        }
        at.advance();
    }

    __device__ __forceinline__ void run(const TensorMap *map_q, const TensorMap *map_k, const TensorMap *map_v) const {
        Ring<2> slot;
        Ring<STAGES> keys, values;
        u32 pass = 0, landed = 0, ahead = blockIdx.x;
        Window window(p);
        Tile t = draw(ahead);
#pragma unroll 1
        while (t.first_row >= 0) {
            publish(t, slot);
            Blocks b = blocks_of(t, window, t.first_row, BLOCK_M);
            int head = t.head / (p.heads_q / p.heads_kv);
            // A warpgroup's queries may have to wait for its last output to drain. What does not need them
            // goes first: the rings' free slots, and the queries of the warpgroup that stops first.
            int n = b.end - 1;
            if (n >= b.begin) load_keys(t, map_k, head, n, keys);
            load_queries(t, map_q, 0, pass);
            if (n > b.begin) load_keys(t, map_k, head, n - 1, keys);
            if (n >= b.begin) load_values(t, map_v, head, n, values, landed);
#pragma unroll
            for (int g = 1; g < GROUPS; ++g) load_queries(t, map_q, g, pass);
            pass ^= 1;
#pragma unroll 1
            while (--n >= b.begin) {
                if (n > b.begin) load_keys(t, map_k, head, n - 1, keys);
                load_values(t, map_v, head, n, values, landed);
            }
            t = draw(ahead);
        }
        publish(t, slot);
        // The last block to stop leaves the counters as it found them.
        if (p.scheduler && leader) {
            __threadfence();
            if (atomicAdd(p.scheduler + 1, 1u) == gridDim.x - 1) {
                p.scheduler[0] = 0;
                p.scheduler[1] = 0;
            }
        }
    }
};

// ---- consumer ----------------------------------------------------------------------------------

struct Yes {
    static constexpr bool value = true;
};
struct No {
    static constexpr bool value = false;
};

/// A warpgroup's softmax state: the two rows of a thread.
struct Rows {
    float top[2]; // the reference maximum of raw scores; the four lanes of a row agree
    float sum[2]; // of this lane's weights
};

__device__ __forceinline__ void scores_product(float (&s)[BLOCK_N / 2], u32 q, u32 k) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; ++i) {
        // Sixteen columns are 32 bytes of a row; after four such steps the next atom.
        u32 inside = (i % 4) * 32;
        Product<BLOCK_N>::shared(s, descriptor(q + ((i / 4) * 64 * ROW + inside) / 16),
                                 descriptor(k + ((i / 4) * BLOCK_N * ROW + inside) / 16), i > 0);
    }
}

__device__ __forceinline__ void output_product(float (&o)[HEAD_DIM / 2], const u32 (&w)[BLOCK_N / 4], u32 v) {
#pragma unroll
    for (int i = 0; i < BLOCK_N / 16; ++i)
        Product<HEAD_DIM>::weights(o, w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3],
                                   descriptor(v + i * 16 * ROW / 16));
}

/// Turns raw scores into weights relative to the reference maximum, and moves that maximum if need be.
/// `keep` is what earlier weights are then worth. Columns at or past `end` or before `begin` of a row,
/// counted from the lane's first, are masked.
template <bool MASKED>
__device__ __forceinline__ void softmax(float (&s)[BLOCK_N / 2], Rows &rows, float (&keep)[2], float to_log2,
                                        float to_tanh, const int (&begin)[2], const int (&end)[2]) {
    if (SOFTCAP) {
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; ++i) s[i] = tanh_exponent(s[i] * to_tanh);
    }
    if (MASKED) {
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; ++i) {
            int r = (i >> 1) & 1, column = (i >> 2) * 8 + (i & 1);
            bool seen = column < end[r];
            if (WINDOW) seen = seen && column >= begin[r];
            s[i] = seen ? s[i] : NEG_INF;
        }
    }
    float high[2][2]; // two chains a row: the adds and maxima of one would wait for each other
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; ++i) {
        float &h = high[(i >> 1) & 1][i & 1];
        h = i < 4 ? s[i] : fmaxf(h, s[i]);
    }
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float found = row_max(fmaxf(high[r][0], high[r][1]));
        // Until a row has seen a key its maximum is -inf, and (-inf) - (-inf) fails this test.
        float next = (found - rows.top[r]) * to_log2 > SLACK ? found : rows.top[r];
        float finite = MASKED && next == NEG_INF ? 0.0f : next;
        keep[r] = exp2_fast((rows.top[r] - finite) * to_log2);
        rows.top[r] = next;
        base[r] = finite * to_log2;
    }
    float sum[2][2];
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; ++i) {
        int r = (i >> 1) & 1;
        s[i] = exp2_fast(fmaf(s[i], to_log2, -base[r]));
        sum[r][i & 1] = i < 4 ? s[i] : sum[r][i & 1] + s[i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) rows.sum[r] = fmaf(rows.sum[r], keep[r], sum[r][0] + sum[r][1]);
}

/// Accumulator registers of sixteen columns are, pair by pair, the A operand of one product.
__device__ __forceinline__ void to_weights(const float (&s)[BLOCK_N / 2], u32 (&w)[BLOCK_N / 4]) {
#pragma unroll
    for (int i = 0; i < BLOCK_N / 4; ++i) w[i] = pack(s[2 * i], s[2 * i + 1]);
}

struct Consumer {
    const AttentionParams &p;
    u32 shared;
    u32 group; // which consumer warpgroup
    u32 thread; // in the warpgroup

    __device__ __forceinline__ bool elected() const { return (thread & 31) == 0; }

    __device__ __forceinline__ Tile receive(Ring<2> &slot) const {
        u32 from = shared + AT_TILE + 32 * slot.slot;
        barrier_wait(shared + TILE_FULL + 8 * slot.slot, slot.pass);
        uint4 x = load_shared(from), y = load_shared(from + 16);
        Tile t = {int(x.x), int(x.y), int(x.z), int(x.w), int(y.x), int(y.y), int(y.z)};
        __syncwarp();
        if (elected()) barrier_arrive(shared + TILE_EMPTY + 8 * slot.slot);
        slot.advance();
        return t;
    }

    __device__ __forceinline__ void take_turn() const {
        if (PINGPONG) named_sync(TURN + group, 256);
    }
    __device__ __forceinline__ void pass_turn() const {
        if (PINGPONG) named_arrive(TURN + (group + 1 == GROUPS ? 0 : group + 1), 256);
    }

    __device__ __forceinline__ void store(const Tile &t, const TensorMap *map, float (&o)[HEAD_DIM / 2], Rows &rows,
                                          float to_log2) const {
        u32 lane = thread & 31, warp = thread >> 5;
        int group_row = t.first_row + 64 * int(group);
        float scale[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float sum = row_sum(rows.sum[r]);
            scale[r] = sum == 0.0f ? 0.0f : reciprocal(sum); // no key seen: zero; a NaN stays one
            if (LSE) {
                int row = group_row + int(16 * warp + lane / 4) + 8 * r;
                i64 at = VARLEN ? i64(t.head) * __ldg(p.cu_seqlens_q + p.batch) + t.q_start + row
                                : (i64(t.batch) * p.heads_q + t.head) * p.seq_q + row;
                float value = sum == 0.0f ? NEG_INF : fmaf(rows.top[r], to_log2, log2_fast(sum)) * LN2;
                if (lane % 4 == 0 && row < t.seq_q) p.lse[at] = value;
            }
        }

        // Whoever read this memory last is done: the copy engine with the tile before, or all four
        // warps' products with the queries.
        u32 to = shared + AT_OUT + group * QUERY_BYTES;
        if (OUT_APART && thread == 0) copies_read();
        named_sync(TOGETHER + group, 128);
        u32 row_at = to + (16 * warp + lane / 4) * ROW + (lane % 4) * 4;
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 8; ++j) {
            u32 at = row_at + (j / 8) * 64 * ROW + (((j % 8) ^ (lane / 4)) << 4);
            store_shared(at, pack(o[4 * j] * scale[0], o[4 * j + 1] * scale[0]));
            store_shared(at + 8 * ROW, pack(o[4 * j + 2] * scale[1], o[4 * j + 3] * scale[1]));
        }
        fence_async();
        named_sync(TOGETHER + group, 128);

        int live = t.seq_q - group_row;
        if (!VARLEN || live >= 64) {
            if (thread == 0) copy_out(map, to, t.q_start + group_row, t.head, VARLEN ? 0 : t.batch);
        } else {
            u16 *out = (u16 *)p.out + i64(t.q_start + group_row) * p.out_seq_stride + t.head * p.out_head_stride;
#pragma unroll 1
            for (int i = int(thread); i < live * (HEAD_DIM / 8); i += 128) {
                int row = i / (HEAD_DIM / 8), chunk = i % (HEAD_DIM / 8);
                u32 from = to + (chunk / 8 * 64 + row) * ROW + (((chunk % 8) ^ (row & 7)) << 4);
                *(uint4 *)(out + row * p.out_seq_stride + chunk * 8) = load_shared(from);
            }
            named_sync(TOGETHER + group, 128);
        }
        if (!OUT_APART && thread == 0) {
            copies_read();
            barrier_arrive(shared + QUERY_EMPTY + 8 * group);
        }
    }

    __device__ __forceinline__ void run(const TensorMap *map_o) const {
        // Raw scores times this are exponents of two. Under a softcap the raw score is the tanh.
        float to_log2 = (SOFTCAP ? p.softcap : p.scale) * LOG2E;
        float to_tanh = SOFTCAP ? 2.0f * LOG2E * p.scale / p.softcap : 0.0f;
        u32 q = descriptor_low(shared + AT_QUERY + group * QUERY_BYTES, 16);
        u32 k = descriptor_low(shared + AT_KEY, 16);
        u32 v = descriptor_low(shared + AT_VALUE, BLOCK_N * ROW);
        Window window(p);
        Ring<2> slot;
        Ring<STAGES> keys, values;
        u32 pass = 0;

        // The first turn is the first warpgroup's.
        if (PINGPONG && group == GROUPS - 1) named_arrive(TURN, 256);

#pragma unroll 1
        for (;;) {
            Tile t = receive(slot);
            if (t.first_row < 0) break;
            // The warpgroups share the blocks that come; each works on those that its own rows see.
            constexpr bool PARTIAL = CAUSAL || WINDOW;
            int group_row = t.first_row + 64 * int(group);
            Blocks all = blocks_of(t, window, t.first_row, BLOCK_M);
            Blocks mine = PARTIAL ? blocks_of(t, window, group_row, 64) : all;
            int row = group_row + int(16 * (thread >> 5) + (thread & 31) / 4);
            int column = 2 * int(thread % 4);
            int row_begin[2], row_end[2];
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                row_begin[r] = window.key_begin(row + 8 * r, t.seq_q, t.seq_k) - column;
                row_end[r] = window.key_end(row + 8 * r, t.seq_q, t.seq_k) - column;
            }

            float s[BLOCK_N / 2], o[HEAD_DIM / 2], keep[2];
            u32 w[BLOCK_N / 4];
            Rows rows = {{NEG_INF, NEG_INF}, {0.0f, 0.0f}};
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; ++i) o[i] = 0.0f;

            auto weigh = [&](auto masked, int n) __attribute__((always_inline)) {
                int begin[2] = {row_begin[0] - n * BLOCK_N, row_begin[1] - n * BLOCK_N};
                int end[2] = {row_end[0] - n * BLOCK_N, row_end[1] - n * BLOCK_N};
                softmax<decltype(masked)::value>(s, rows, keep, to_log2, to_tanh, begin, end);
            };
            auto release = [&](u32 empty, Ring<STAGES> &at) __attribute__((always_inline)) {
                if (elected()) barrier_arrive(shared + empty + 8 * at.slot);
                at.advance();
            };
            // Scores of block n beside the output of block n + 1, whose weights are ready.
            auto step = [&](auto masked, int n) __attribute__((always_inline)) {
                barrier_wait(shared + KEY_FULL + 8 * keys.slot, keys.pass);
                take_turn();
                pin(s);
                pin(o);
                products_fence();
                scores_product(s, q, k + keys.slot * (BLOCK_BYTES / 16));
                products_commit();
                barrier_wait(shared + VALUE_FULL + 8 * values.slot, values.pass);
                products_fence();
                output_product(o, w, v + values.slot * (BLOCK_BYTES / 16));
                products_commit();
                pass_turn();
                products_wait<1>();
                pin(s);
                release(KEY_EMPTY, keys);
                weigh(masked, n);
                pin(s);
                // The assembler likes to lift the wait for the output above the exponentials that are to
                // hide it, or to sink those below it. So ask again for a phase that is over: a loop is a
                // fence, and a parity that hangs on the sums keeps them before it. No sum is this NaN.
                u32 never = (__float_as_uint(rows.sum[0]) & __float_as_uint(rows.sum[1])) == 0xffffffff;
                barrier_wait(shared + VALUE_FULL + 8 * values.slot, values.pass ^ never);
                products_wait<0>();
                pin(o);
                release(VALUE_EMPTY, values);
                if (__any_sync(0xffffffff, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
                    for (int i = 0; i < HEAD_DIM / 2; ++i) o[i] *= keep[(i >> 1) & 1];
                }
                to_weights(s, w);
            };

            // A block of the tile that is not this warpgroup's: its turn and its place in the rings go by.
            auto skip = [&]() __attribute__((always_inline)) {
                barrier_wait(shared + KEY_FULL + 8 * keys.slot, keys.pass);
                take_turn();
                pass_turn();
                release(KEY_EMPTY, keys);
                barrier_wait(shared + VALUE_FULL + 8 * values.slot, values.pass);
                release(VALUE_EMPTY, values);
            };

            barrier_wait(shared + QUERY_FULL + 8 * group, pass);
            pass ^= 1;
            int n = all.end - 1;
            if (PARTIAL) {
#pragma unroll 1
                for (; n >= larger(all.begin, mine.end); --n) skip();
            }
            if (n >= mine.begin) {
                barrier_wait(shared + KEY_FULL + 8 * keys.slot, keys.pass);
                take_turn();
                pin(s);
                products_fence();
                scores_product(s, q, k + keys.slot * (BLOCK_BYTES / 16));
                products_commit();
                pass_turn();
                products_wait<0>();
                pin(s);
                release(KEY_EMPTY, keys);
                weigh(Yes{}, n);
                to_weights(s, w);
                --n;

                if (PARTIAL) {
#pragma unroll 1
                    for (; n >= larger(mine.begin, mine.clear_end); --n) step(Yes{}, n);
                }
#pragma unroll 1
                for (; n >= larger(mine.begin, mine.clear_begin); --n) step(No{}, n);
                if (WINDOW) {
#pragma unroll 1
                    for (; n >= mine.begin; --n) step(Yes{}, n);
                }

                if (OUT_APART && elected()) barrier_arrive(shared + QUERY_EMPTY + 8 * group);
                barrier_wait(shared + VALUE_FULL + 8 * values.slot, values.pass);
                pin(o);
                products_fence();
                output_product(o, w, v + values.slot * (BLOCK_BYTES / 16));
                products_commit();
                products_wait<0>();
                pin(o);
                release(VALUE_EMPTY, values);
            } else if (OUT_APART && elected()) {
                barrier_arrive(shared + QUERY_EMPTY + 8 * group);
            }
            if (WINDOW) {
#pragma unroll 1
                for (; n >= all.begin; --n) skip();
            }
            store(t, map_o, o, rows, to_log2);
        }

        // Take the turn that nobody uses, so that no barrier is left half full.
        if (PINGPONG && group == 0) named_sync(TURN, 256);
        if (thread == 0) copies_done();
    }
};

} // namespace attention

extern "C" __global__ void __launch_bounds__(attention::THREADS, 1)
    attention_forward_sm90(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                           const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_o,
                           const __grid_constant__ AttentionParams params) {
    using namespace attention;
    extern __shared__ unsigned char memory[];
    u32 shared = (u32(__cvta_generic_to_shared(memory)) + 1023) & ~1023u;
    // The same in all lanes, and said so that the compiler keeps it in uniform registers.
    u32 warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);

    if (threadIdx.x == 0) {
        for (int g = 0; g < GROUPS; ++g) {
            barrier_init(shared + QUERY_FULL + 8 * g, 1);
            barrier_init(shared + QUERY_EMPTY + 8 * g, OUT_APART ? 4 : 1);
        }
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(shared + KEY_FULL + 8 * i, 1);
            barrier_init(shared + KEY_EMPTY + 8 * i, 4 * GROUPS);
            barrier_init(shared + VALUE_FULL + 8 * i, 1);
            barrier_init(shared + VALUE_EMPTY + 8 * i, 4 * GROUPS);
        }
        for (int i = 0; i < 2; ++i) {
            barrier_init(shared + TILE_FULL + 8 * i, 1);
            barrier_init(shared + TILE_EMPTY + 8 * i, 4 * GROUPS);
        }
        barrier_init(shared + VALUE_LANDED, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        fence_async();
    }
    __syncthreads();

    if (warp < 4) {
        if (DEAL_REGISTERS) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (warp == 0) {
            u32 tiles = u32(params.seq_q + BLOCK_M - 1) / BLOCK_M * u32(params.heads_q) * u32(params.batch);
            Producer{params, shared, threadIdx.x == 0, tiles}.run(&map_q, &map_k, &map_v);
        }
    } else {
        if (DEAL_REGISTERS) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        Consumer{params, shared, warp / 4 - 1, threadIdx.x % 128}.run(&map_o);
    }
}
