// Exact attention, forward, on warp-level tensor instructions (compute capability 8.0 and up).
//
//   O = softmax(mask(softcap(scale * Q K^T))) V        lse = ln sum exp(logits)
//
// Layouts   q [batch, seq_q, heads_q, D], k and v [batch, seq_k, heads_kv, D], o like q; any batch,
//           seq and head strides (in elements, multiples of 8), head dimension contiguous, pointers
//           16-byte aligned. Varlen: [total, heads, D] with i32 cu_seqlens [batch + 1].
//           lse f32 [batch, heads_q, seq_q]; varlen [heads_q, total_q].
// Masks     query i sees keys i + d - left ..= i + d + right with d = seq_k - seq_q (bottom-right
//           aligned); causal is right = 0. A row that sees no key gives 0 and lse = -inf.
// Tiling    one block owns BLOCK_M query rows of one head and walks the key blocks from the last to
//           the first; one warp owns BLOCK_M / WARPS rows, 16 or 32 of them, for all BLOCK_N keys,
//           so softmax needs no exchange between warps. 32 rows use each K or V fragment twice.
// Pipeline  with two stages: wait for block j, one barrier, start cp.async of block j - 1 into the
//           other buffers, then S = Q K^T, the running maximum, and 16 keys at a time P = exp2(S -
//           max) and O += P V, so exponentials issue between tensor instructions. With one stage
//           (less shared memory): V_j loads under S_j, K_(j-1) under the softmax and P V.
// Softmax   in base 2 with scale * log2(e) folded into one fused multiply-add. The maximum that P is
//           taken against is raised, and O rescaled, only when it grew by more than 2^8: every row
//           is divided by a sum taken against the same maximum, so the result is exact either way.
// Sources   FlashAttention-2 (Dao 2023) for the tiling and the online softmax; FlashAttention-4 for
//           the lazy rescaling; PTX ISA for the fragment layouts of mma, ldmatrix and cp.async.
//
// Launch    grid ceil(max seq_q / BLOCK_M) * batch * heads_q; block 32 * WARPS; dynamic shared memory
//           2 * D * (BLOCK_M + 2 * STAGES * BLOCK_N) + 32 bytes. scale > 0 and softcap > 0, by the caller.
// Defaults  BLOCK_M x BLOCK_N, WARPS, STAGES, with the shared memory that each architecture has:
//                     D 64                D 128               D 256
//           sm_80     128x64  4w 2s  48K  128x64  4w 1s  64K  128x64  8w 1s 128K
//           sm_86/89  128x64  4w 2s  48K  64x64   4w 1s  48K  64x32   4w 2s  96K
//           sm_90     128x64  4w 2s  48K  128x64  4w 2s  96K  128x64  8w 2s 192K
//           sm_100    128x64  4w 2s  48K  128x32  4w 2s  64K  128x64  8w 2s 192K

#ifndef ATTN_HEAD_DIM
#define ATTN_HEAD_DIM 128
#endif
#ifndef ATTN_TYPE
#define ATTN_TYPE 1  // 0: f16, 1: bf16
#endif
#ifndef ATTN_CAUSAL
#define ATTN_CAUSAL 0
#endif
#ifndef ATTN_WINDOW
#define ATTN_WINDOW 0
#endif
#ifndef ATTN_SOFTCAP
#define ATTN_SOFTCAP 0
#endif
#ifndef ATTN_VARLEN
#define ATTN_VARLEN 0
#endif
#ifndef ATTN_LSE
#define ATTN_LSE 0
#endif
#ifndef ATTN_BLOCK_M
#define ATTN_BLOCK_M 128
#endif
#ifndef ATTN_BLOCK_N
#define ATTN_BLOCK_N 64
#endif
#ifndef ATTN_STEP_N
#define ATTN_STEP_N ATTN_BLOCK_N  // keys a softmax step: BLOCK_N, or with two stages a divisor of it
#endif
#ifndef ATTN_WARPS
#define ATTN_WARPS (ATTN_HEAD_DIM == 256 ? 8 : 4)
#endif
#ifndef ATTN_STAGES
#define ATTN_STAGES 2
#endif
#ifndef ATTN_MIN_BLOCKS
#define ATTN_MIN_BLOCKS (ATTN_WARPS <= 4 ? 2 : 1)  // caps registers so that this many blocks fit
#endif

typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;

constexpr int HEAD_DIM = ATTN_HEAD_DIM;
constexpr int BLOCK_M = ATTN_BLOCK_M;
constexpr int BLOCK_N = ATTN_BLOCK_N;
constexpr int STEP_N = ATTN_STEP_N;
constexpr int STAGES = ATTN_STAGES;
constexpr int THREADS = 32 * ATTN_WARPS;
constexpr int ROWS_PER_WARP = BLOCK_M / ATTN_WARPS;

constexpr int M_TILES = ROWS_PER_WARP / 16;  // 16-row mma tiles of a warp
constexpr int N_TILES = STEP_N / 8;          // 8-column mma tiles of the scores
constexpr int D_TILES = HEAD_DIM / 8;        // 8-column mma tiles of the output
constexpr int K_STEPS = HEAD_DIM / 16;       // mma steps along the head dimension

constexpr int ROW_BYTES = 2 * HEAD_DIM;
constexpr int CHUNKS = HEAD_DIM / 8;  // 16-byte chunks of a row
constexpr int Q_BYTES = BLOCK_M * ROW_BYTES;
constexpr int KV_BYTES = BLOCK_N * ROW_BYTES;

// How many of the K_STEPS fragments of Q stay in registers; the others are read from shared memory each
// time. Past about 200 registers for O, S and Q nothing is left to overlap loads with.
#ifndef ATTN_Q_STEPS
#define ATTN_Q_STEPS (4 * M_TILES * (D_TILES + N_TILES + K_STEPS) <= 200 ? K_STEPS : 0)
#endif
constexpr int Q_STEPS = ATTN_Q_STEPS;

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128 || HEAD_DIM == 256, "head dimension");
static_assert(ROWS_PER_WARP == 16 * M_TILES && (M_TILES == 1 || M_TILES == 2), "rows of a warp");
static_assert(BLOCK_N % STEP_N == 0 && STEP_N % 16 == 0, "key blocks");
static_assert(STAGES == 2 || (STAGES == 1 && STEP_N == BLOCK_N), "stages");
static_assert(THREADS % CHUNKS == 0 && BLOCK_N % (THREADS / CHUNKS) == 0, "loader covers a block");

constexpr bool HAS_RIGHT = ATTN_CAUSAL || ATTN_WINDOW;
constexpr bool HAS_LEFT = ATTN_WINDOW;

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;
constexpr float RESCALE_THRESHOLD = 8.0f;  // in powers of two; P stays within 2^8, far inside f16

struct AttentionParams {
    const u16* q;
    const u16* k;
    const u16* v;
    u16* o;
    float* lse;
    const int* cu_seqlens_q;
    const int* cu_seqlens_k;
    i64 q_batch_stride, q_seq_stride, q_head_stride;
    i64 k_batch_stride, k_seq_stride, k_head_stride;
    i64 v_batch_stride, v_seq_stride, v_head_stride;
    i64 o_batch_stride, o_seq_stride, o_head_stride;
    int batch, heads_q, heads_kv;
    int seq_q, seq_k;  // varlen: the longest
    int total_q;       // varlen: rows of q
    int window_left, window_right;
    float softmax_scale, softcap;
    // Heads whose tiles are scheduled together, longest tiles first: as many as keep their K and V
    // in L2 at once (causal), or 1.
    int heads_per_section;
};

// ---- instructions ---------------------------------------------------------------------------------

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void cp_async_16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void cp_async_16_or_zero(u32 to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// c (16 x 8, f32) += a (16 x 16) * b (16 x 8)
__device__ __forceinline__ void mma_16816(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if ATTN_TYPE == 0
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 packed;
#if ATTN_TYPE == 0
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#endif
    return packed;
}

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float log2_approx(float x) {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// A value that the compiler cannot connect with what it was computed from.
__device__ __forceinline__ u32 opaque(u32 value) {
    asm volatile("" : "+r"(value));
    return value;
}

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// ---- tiles in shared memory -----------------------------------------------------------------------

// A tile is rows of ROW_BYTES; the 16-byte chunk c of row r lies at chunk c ^ (r & 7), so that the
// eight rows that one ldmatrix phase reads at one column fall into eight different bank groups.

// Copies rows first .. first + ROWS of a matrix of `limit` rows. Only a last block can reach past the
// end; those rows become zero, since a probability of 0 times whatever lies there may be NaN.
template <int ROWS, bool LAST>
__device__ __forceinline__ void load_tile(u32 tile, const u16* matrix, i64 row_stride, int first, int limit) {
    constexpr int STEP = THREADS / CHUNKS;
    const int row0 = threadIdx.x / CHUNKS;
    const int chunk = threadIdx.x % CHUNKS;
    if (!LAST || first + ROWS <= limit) {
        const u16* from = matrix + (first + row0) * row_stride + chunk * 8;
#pragma unroll
        for (int i = 0; i < ROWS; i += STEP) {
            const int row = row0 + i;
            cp_async_16(tile + row * ROW_BYTES + ((chunk ^ (row & 7)) << 4), from);
            from += STEP * row_stride;
        }
    } else {
#pragma unroll
        for (int i = 0; i < ROWS; i += STEP) {
            const int row = row0 + i;
            const bool valid = first + row < limit;
            const u16* from = matrix + (valid ? (first + row) * row_stride : 0) + chunk * 8;
            cp_async_16_or_zero(tile + row * ROW_BYTES + ((chunk ^ (row & 7)) << 4), from, valid);
        }
    }
}

typedef u32 QueryFragments[Q_STEPS > 0 ? Q_STEPS : 1][M_TILES][4];
typedef float Scores[M_TILES][N_TILES][4];
typedef float Output[M_TILES][D_TILES][4];
typedef float RowValues[M_TILES][2];  // a thread holds rows lane / 4 and lane / 4 + 8 of each mma tile

// S = Q K^T. The step along the head dimension moves the chunk, a XOR on the swizzled address; rows
// are plain offsets.
__device__ __forceinline__ void multiply_qk(Scores& s, const QueryFragments& q, u32 q_lane, u32 k_lane) {
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[m][n][e] = 0.0f;
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {
        u32 a[M_TILES][4];
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
            if (step < Q_STEPS) {
#pragma unroll
                for (int e = 0; e < 4; ++e) a[m][e] = q[step][m][e];
            } else {
                ldmatrix_x4(a[m], (q_lane ^ (step << 5)) + m * 16 * ROW_BYTES);
            }
        }
#pragma unroll
        for (int pair = 0; pair < N_TILES / 2; ++pair) {
            u32 b[4];
            ldmatrix_x4(b, (k_lane ^ (step << 5)) + pair * 16 * ROW_BYTES);
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) {
                mma_16816(s[m][2 * pair], a[m], b[0], b[1]);
                mma_16816(s[m][2 * pair + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// tanh, by exp2: exact at both ends, where the exponential is 0 or infinite.
__device__ __forceinline__ void cap_scores(Scores& s, float to_tanh) {
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                s[m][n][e] = 1.0f - 2.0f * reciprocal(1.0f + exp2_approx(s[m][n][e] * to_tanh));
}

__device__ __forceinline__ void mask_scores(Scores& s, int key0, int row0, int seq_k, int to_left, int to_right) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = row0 + m * 16 + half * 8 + lane / 4;
            const int last = HAS_RIGHT ? min(seq_k - 1, row + to_right) : seq_k - 1;
#pragma unroll
            for (int n = 0; n < N_TILES; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int key = key0 + n * 8 + lane % 4 * 2 + e;
                    if (key > last || (HAS_LEFT && key < row + to_left)) s[m][n][2 * half + e] = minus_infinity();
                }
        }
}

// Raises the row maxima to cover this block's scores, if any row of the warp needs it, and scales
// what was accumulated against the old ones.
__device__ __forceinline__ void update_maximum(
    const Scores& s, Output& o, RowValues& maximum, RowValues& sum, float log2_scale) {
    RowValues raised;
    bool grown = false;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float value = fmaxf(s[m][0][2 * half], s[m][0][2 * half + 1]);
#pragma unroll
            for (int n = 1; n < N_TILES; ++n)
                value = fmaxf(value, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
            value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 2));
            raised[m][half] = fmaxf(maximum[m][half], value);
            // -inf to -inf is NaN, hence not grown; -inf to a number is infinite growth.
            grown |= (raised[m][half] - maximum[m][half]) * log2_scale > RESCALE_THRESHOLD;
        }
    if (!__any_sync(0xffffffff, grown)) return;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float finite = raised[m][half] == minus_infinity() ? 0.0f : raised[m][half];
            const float factor = exp2_approx((maximum[m][half] - finite) * log2_scale);
            maximum[m][half] = raised[m][half];
            sum[m][half] *= factor;
#pragma unroll
            for (int d = 0; d < D_TILES; ++d) {
                o[m][d][2 * half] *= factor;
                o[m][d][2 * half + 1] *= factor;
            }
        }
}

// O += exp2(S - maximum) V, 16 keys at a time. The accumulator layout of two neighbouring score
// tiles is the A operand's layout, so P never leaves the registers.
__device__ __forceinline__ void multiply_pv(
    Scores& s, Output& o, const RowValues& maximum, RowValues& sum, float log2_scale, u32 v_lane) {
    RowValues shift;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            shift[m][half] = maximum[m][half] == minus_infinity() ? 0.0f : maximum[m][half] * log2_scale;
#pragma unroll
    for (int step = 0; step < N_TILES / 2; ++step) {
        u32 a[M_TILES][4];
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float* pair = &s[m][2 * step + e / 2][2 * (e % 2)];
                const float low = exp2_approx(pair[0] * log2_scale - shift[m][e % 2]);
                const float high = exp2_approx(pair[1] * log2_scale - shift[m][e % 2]);
                sum[m][e % 2] += low + high;
                a[m][e] = pack(low, high);
            }
#pragma unroll
        for (int pair = 0; pair < D_TILES / 2; ++pair) {
            u32 b[4];
            ldmatrix_x4_trans(b, (v_lane ^ (pair << 5)) + step * 16 * ROW_BYTES);
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) {
                mma_16816(o[m][2 * pair], a[m], b[0], b[1]);
                mma_16816(o[m][2 * pair + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// Where K and V of this head begin, and the first key block. Kept in shared memory behind the tiles:
// the loop reads it once a block, and more registers there would be spilled.
struct Sources {
    const u16* k;
    const u16* v;
    int first_block;
};
constexpr int SOURCES_BYTES = 32;
constexpr int SHARED_BYTES = Q_BYTES + 2 * STAGES * KV_BYTES + SOURCES_BYTES;

struct Place {
    int tile, batch, head;
    int q_start, seq_q;  // rows of this sequence: where they start (varlen) and how many
};

// Which tile of which head a block owns. Blocks start in index order, so under a causal mask the
// tiles with the most keys come first within a section, and short ones fill the end.
__device__ __forceinline__ Place locate(const AttentionParams& p, int block) {
    const int tiles = (p.seq_q + BLOCK_M - 1) / BLOCK_M;
    const int per_section = max(p.heads_per_section, 1);
    const int section = block / (per_section * tiles);
    const int within = block - section * per_section * tiles;
    const int first_head = section * per_section;
    const int width = min(per_section, p.batch * p.heads_q - first_head);
    const int batch_head = first_head + within % width;
    Place place;
    place.tile = HAS_RIGHT ? tiles - 1 - within / width : within / width;
    place.batch = batch_head / p.heads_q;
    place.head = batch_head - place.batch * p.heads_q;
#if ATTN_VARLEN
    place.q_start = p.cu_seqlens_q[place.batch];
    place.seq_q = p.cu_seqlens_q[place.batch + 1] - place.q_start;
#else
    place.q_start = 0;
    place.seq_q = p.seq_q;
#endif
    return place;
}

// ---- kernel ---------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, ATTN_MIN_BLOCKS)
    attention_forward_mma(const __grid_constant__ AttentionParams p) {
    // The XORs above need tiles aligned to a row.
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    const u32 q_tile = shared_address(shared_memory);
    const u32 k_tiles = q_tile + Q_BYTES;
    const u32 v_tiles = k_tiles + STAGES * KV_BYTES;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;

    const Place place = locate(p, blockIdx.x);
    const int batch = place.batch, head = place.head;
    const int head_kv = head / (p.heads_q / p.heads_kv);

    const int seq_q = place.seq_q;
#if ATTN_VARLEN
    const int k_start = p.cu_seqlens_k[batch];
    const int seq_k = p.cu_seqlens_k[batch + 1] - k_start;
    const u16* q = p.q + place.q_start * p.q_seq_stride + head * p.q_head_stride;
    const u16* k = p.k + k_start * p.k_seq_stride + head_kv * p.k_head_stride;
    const u16* v = p.v + k_start * p.v_seq_stride + head_kv * p.v_head_stride;
#else
    const int seq_k = p.seq_k;
    const u16* q = p.q + batch * p.q_batch_stride + head * p.q_head_stride;
    const u16* k = p.k + batch * p.k_batch_stride + head_kv * p.k_head_stride;
    const u16* v = p.v + batch * p.v_batch_stride + head_kv * p.v_head_stride;
#endif
    const int row0 = place.tile * BLOCK_M;
    if (row0 >= seq_q) return;

    // Keys that any row of this tile can see: the first, and one past the last.
    // Limits are clamped to what makes them vacuous, so that no sum below overflows.
    const int right = ATTN_CAUSAL ? 0 : p.window_right < 0 ? seq_q : min(p.window_right, seq_q);
    const int left = p.window_left < 0 ? seq_k : min(p.window_left, seq_k);
    const int to_right = seq_k - seq_q + right;
    const int to_left = seq_k - seq_q - left;
    const int key_end = HAS_RIGHT ? min(seq_k, min(row0 + BLOCK_M, seq_q) + to_right) : seq_k;
    const int key_begin = HAS_LEFT ? max(0, row0 + to_left) : 0;

    QueryFragments q_fragments;
    Output output;
    RowValues maximum, sum;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            maximum[m][half] = minus_infinity();
            sum[m][half] = 0.0f;
        }
#pragma unroll
        for (int d = 0; d < D_TILES; ++d)
#pragma unroll
            for (int e = 0; e < 4; ++e) output[m][d][e] = 0.0f;
    }

#if ATTN_SOFTCAP
    // tanh replaces the scores, the cap becomes the scale.
    const float to_tanh = p.softmax_scale / p.softcap * (2.0f * LOG2_E);
    const float log2_scale = p.softcap * LOG2_E;
#else
    const float log2_scale = p.softmax_scale * LOG2_E;
#endif

    // Lane parts of the ldmatrix addresses. Q: 16 rows, two chunks. K: 8 keys, two chunks, 8 keys
    // more. V, transposed: 16 keys, two chunks.
    const u32 q_lane = q_tile + (warp * ROWS_PER_WARP + lane % 16) * ROW_BYTES + (((lane / 16) ^ (lane & 7)) << 4);
    const u32 k_lane = k_tiles + (lane % 8 + lane / 16 * 8) * ROW_BYTES + (((lane / 8 % 2) ^ (lane & 7)) << 4);
    const u32 v_lane = v_tiles + (lane % 16) * ROW_BYTES + (((lane / 16) ^ (lane & 7)) << 4);

    const int block_begin = key_begin / BLOCK_N;
    const int block_last = key_end > key_begin ? (key_end - 1) / BLOCK_N : block_begin - 1;
    Sources* sources = reinterpret_cast<Sources*>(shared_memory + SHARED_BYTES - SOURCES_BYTES);
    if (threadIdx.x == 0) *sources = {k, v, block_begin};
    if (block_last >= block_begin) {
        load_tile<BLOCK_M, true>(q_tile, q, p.q_seq_stride, row0, seq_q);
        load_tile<BLOCK_N, true>(k_tiles, k, p.k_seq_stride, block_last * BLOCK_N, seq_k);
        if (STAGES == 2) load_tile<BLOCK_N, true>(v_tiles, v, p.v_seq_stride, block_last * BLOCK_N, seq_k);
        cp_async_commit();
        if (Q_STEPS > 0) {
            cp_async_wait<0>();
            __syncthreads();
#pragma unroll
            for (int step = 0; step < Q_STEPS; ++step)
#pragma unroll
                for (int m = 0; m < M_TILES; ++m)
                    ldmatrix_x4(q_fragments[step][m], (q_lane ^ (step << 5)) + m * 16 * ROW_BYTES);
        }
    }

    u32 stage = 0;  // byte offset of the current buffers
    bool more = block_last >= block_begin;
#pragma unroll 1
    for (int block = block_last; more; --block) {
        // Behind this barrier the loads of this block have arrived for every warp, and no warp reads
        // the buffers that the next loads fill.
        cp_async_wait<0>();
        __syncthreads();
        more = block > sources->first_block;
        if (STAGES == 1) {
            load_tile<BLOCK_N, true>(v_tiles, sources->v, p.v_seq_stride, block * BLOCK_N, seq_k);
            cp_async_commit();
        } else if (more) {
            const u32 other = stage ^ KV_BYTES;
            load_tile<BLOCK_N, false>(k_tiles + other, sources->k, p.k_seq_stride, (block - 1) * BLOCK_N, seq_k);
            load_tile<BLOCK_N, false>(v_tiles + other, sources->v, p.v_seq_stride, (block - 1) * BLOCK_N, seq_k);
            cp_async_commit();
        }
#pragma unroll 1
        for (int first = BLOCK_N - STEP_N; first >= 0; first -= STEP_N) {
            const int key0 = block * BLOCK_N + first;
            const u32 rows = stage + first * ROW_BYTES;
            // Opaque, or with one stage the limits below would take registers through the loop.
            const int warp_first = (HAS_LEFT && STAGES == 1 ? opaque(row0) : row0) + warp * ROWS_PER_WARP;
            const int warp_last = warp_first + ROWS_PER_WARP - 1;
            bool visible = (STEP_N == BLOCK_N || key0 < seq_k) && (!HAS_RIGHT || key0 <= warp_last + to_right) &&
                           (!HAS_LEFT || key0 + STEP_N > warp_first + to_left);
            // The same in all lanes; the vote tells the compiler so.
            if (HAS_RIGHT || HAS_LEFT) visible = __any_sync(0xffffffff, visible);
            const bool whole = key0 + STEP_N <= seq_k && (!HAS_RIGHT || key0 + STEP_N - 1 <= warp_first + to_right) &&
                               (!HAS_LEFT || key0 >= warp_last + to_left);
            Scores scores;
            if (visible) multiply_qk(scores, q_fragments, q_lane, k_lane + rows);
            if (STAGES == 1) {
                cp_async_wait<0>();
                __syncthreads();
                if (more)
                    load_tile<BLOCK_N, false>(k_tiles, sources->k, p.k_seq_stride, (block - 1) * BLOCK_N, seq_k);
                cp_async_commit();
            }
            if (!visible) continue;
#if ATTN_SOFTCAP
            cap_scores(scores, to_tanh);
#endif
            if (!whole) mask_scores(scores, key0, warp_first, seq_k, to_left, to_right);
            update_maximum(scores, output, maximum, sum, log2_scale);
            multiply_pv(scores, output, maximum, sum, log2_scale, v_lane + rows);
        }
        if (STAGES == 2) stage ^= KV_BYTES;
    }

    // Each warp puts its rows where its rows of Q were, to write whole 16-byte chunks. The place is
    // worked out again, rather than held in registers through the loop.
    const Place end = locate(p, opaque(blockIdx.x));
    const int end_row0 = end.tile * BLOCK_M;
#if ATTN_VARLEN
    u16* o = p.o + end.q_start * p.o_seq_stride + end.head * p.o_head_stride;
    float* lse = p.lse + static_cast<i64>(end.head) * p.total_q + end.q_start;
#else
    u16* o = p.o + end.batch * p.o_batch_stride + end.head * p.o_head_stride;
    float* lse = p.lse + (static_cast<i64>(end.batch) * p.heads_q + end.head) * p.seq_q;
#endif
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float total = sum[m][half];
            total += __shfl_xor_sync(0xffffffff, total, 1);
            total += __shfl_xor_sync(0xffffffff, total, 2);
            const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
            const int row = warp * ROWS_PER_WARP + m * 16 + half * 8 + lane / 4;
#pragma unroll
            for (int d = 0; d < D_TILES; ++d) {
                const u32 packed = pack(output[m][d][2 * half] * inverse, output[m][d][2 * half + 1] * inverse);
                const int place = row * ROW_BYTES + ((d ^ (row & 7)) << 4) + lane % 4 * 4;
                *reinterpret_cast<u32*>(shared_memory + place) = packed;
            }
            if (ATTN_LSE && lane % 4 == 0 && end_row0 + row < end.seq_q)
                lse[end_row0 + row] = total == 0.0f ? minus_infinity()
                                                : (maximum[m][half] * log2_scale + log2_approx(total)) * LN_2;
        }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ROWS_PER_WARP * CHUNKS / 32; ++i) {
        const int row = warp * ROWS_PER_WARP + (i * 32 + lane) / CHUNKS;
        const int chunk = (i * 32 + lane) % CHUNKS;
        const uint4 value = *reinterpret_cast<const uint4*>(shared_memory + row * ROW_BYTES + ((chunk ^ (row & 7)) << 4));
        if (end_row0 + row < end.seq_q) *reinterpret_cast<uint4*>(o + (end_row0 + row) * p.o_seq_stride + chunk * 8) = value;
    }
}
