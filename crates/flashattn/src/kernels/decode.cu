// Exact attention for decoding against a paged cache: few queries, many keys, split over blocks.
//
// Layouts   q and o [batch, seq_q, heads_q, D]; k_cache and v_cache [num_pages, page_size, heads_kv, D],
//           strides in elements (multiples of 8), head dimension contiguous, 16-byte aligned;
//           page_table i32 [batch, max_pages]; cache_lens i32 [batch], the new tokens included;
//           page_size a power of two >= 16. lse f32 [batch, heads_q, seq_q].
// Masks     query i of seq_q sees keys <= len - seq_q + i, and with a window the last `left` before
//           that. A query that sees no key (len 0) gives 0 and lse = -inf. Neither page ids nor cache
//           rows are read for tokens at or past cache_len; ids and lengths that do not fit are brought
//           into bounds.
// Tiling    the queries that share a KV head, seq_q * group of them, are the rows of the mma, 16 a
//           block, so each cached byte is read once for up to 16 queries. A block takes split_tokens
//           of one sequence and KV head; its warps take tiles of TILE tokens in turn.
// Pipeline  decoding is bound by memory: each warp keeps STAGES - 1 tiles of K and V in flight with
//           cp.async in a ring of its own, without a block barrier before the end, and reads the page
//           of a tile one tile ahead. At the end the warps' partial softmaxes are merged.
// Splits    with num_splits > 1 a block writes its normalised f32 output and its base-2 log-sum-exp,
//           and attention_decode_combine weighs them by exp2; with 1 it writes o and lse itself.
// Sources   Flash-Decoding (Dao, Haziza, Massa, Sizov 2023) for the split and the merge; PagedAttention
//           (Kwon et al. 2023) for the cache; FlashAttention-2 and -4 for the online softmax with lazy
//           rescaling; PTX ISA for the fragment layouts.
//
// Launch    attention_decode_split: grid (heads_kv * ceil(seq_q * group / 16), num_splits, batch),
//           block 32 * WARPS, dynamic shared memory WARPS * STAGES * TILE * D * 4 bytes.
//           attention_decode_combine, if num_splits > 1: grid ceil(batch * seq_q * heads_q / 4), block 128.
//           scale > 0 and softcap > 0, by the caller.
// Scratch   partial_o f32 [batch, seq_q, heads_q, num_splits, D], partial_lse f32 [.., num_splits].
// Defaults  TILE 16; WARPS and STAGES, with the shared memory that each architecture has:
//                     D 64          D 128         D 256
//           sm_80     4w 4s  64K    4w 2s  64K    4w 2s 128K
//           sm_86/89  4w 3s  48K    4w 3s  96K    2w 3s  96K
//           sm_90+    4w 4s  64K    4w 3s  96K    4w 3s 192K
//
// How many splits: enough equal blocks to fill the last wave, no more, as each costs a merge.
//
//   splits(work = batch * heads_kv * row tiles, slots = SMs * blocks an SM, tokens = longest length or window):
//       most = clamp(tokens / (8 * WARPS * TILE), 1, 128)          // each warp keeps at least 8 tiles
//       fill(s) = (work * s / slots) / ceil(work * s / slots)
//       s = the least in 1..=most with fill(s) >= 0.95 * max fill over 1..=most
//       split_tokens = round_up(ceil(tokens / s), WARPS * TILE);  num_splits = ceil(tokens / split_tokens)
//
// Any pair gives right results: the last split takes whatever remains. Splits are counted in tokens,
// not in shares of each sequence, so that ragged batches give equal blocks, and empty ones end at once.

#ifndef ATTN_HEAD_DIM
#define ATTN_HEAD_DIM 128
#endif
#ifndef ATTN_TYPE
#define ATTN_TYPE 1  // 0: f16, 1: bf16
#endif
#ifndef ATTN_WINDOW
#define ATTN_WINDOW 0
#endif
#ifndef ATTN_SOFTCAP
#define ATTN_SOFTCAP 0
#endif
#ifndef ATTN_LSE
#define ATTN_LSE 0
#endif
#ifndef ATTN_TILE
#define ATTN_TILE 16
#endif
#ifndef ATTN_WARPS
#define ATTN_WARPS 4
#endif
#ifndef ATTN_STAGES
#define ATTN_STAGES 3
#endif
#ifndef ATTN_MIN_BLOCKS
#define ATTN_MIN_BLOCKS (ATTN_WARPS <= 4 ? 2 : 1)
#endif

typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;

constexpr int HEAD_DIM = ATTN_HEAD_DIM;
constexpr int TILE = ATTN_TILE;
constexpr int WARPS = ATTN_WARPS;
constexpr int STAGES = ATTN_STAGES;
constexpr int THREADS = 32 * WARPS;
constexpr int ROWS = 16;          // queries of a block
constexpr int UNITS = TILE / 16;  // groups of 16 tokens; a group never crosses a page

constexpr int N_TILES = TILE / 8;
constexpr int D_TILES = HEAD_DIM / 8;
constexpr int K_STEPS = HEAD_DIM / 16;

constexpr int ROW_BYTES = 2 * HEAD_DIM;
constexpr int CHUNKS = HEAD_DIM / 8;  // 16-byte chunks of a row
constexpr int TILE_BYTES = TILE * ROW_BYTES;
constexpr int STAGE_BYTES = 2 * TILE_BYTES;  // K, then V
constexpr int WARP_BYTES = STAGES * STAGE_BYTES;

// For the merge each warp's ring holds its f32 output, rows 8 floats apart from a multiple of the 32
// banks, then a maximum and a sum for each row.
constexpr int MERGE_STRIDE = HEAD_DIM + 8;
constexpr int MERGE_FLOATS = ROWS * MERGE_STRIDE;

constexpr int COMBINE_WARPS = 4;

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128 || HEAD_DIM == 256, "head dimension");
static_assert(TILE % 16 == 0 && STAGES >= 2, "tiles");
static_assert(4 * (MERGE_FLOATS + 2 * ROWS) <= WARP_BYTES, "the merge fits in the ring");

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;
constexpr float RESCALE_THRESHOLD = 8.0f;

struct DecodeParams {
    const u16* q;
    const u16* k_cache;
    const u16* v_cache;
    const int* page_table;
    const int* cache_lens;
    u16* o;
    float* lse;
    float* partial_o;
    float* partial_lse;
    i64 q_batch_stride, q_seq_stride, q_head_stride;
    i64 o_batch_stride, o_seq_stride, o_head_stride;
    i64 k_page_stride, k_token_stride, k_head_stride;
    i64 v_page_stride, v_token_stride, v_head_stride;
    int batch, seq_q, heads_q, heads_kv;
    int page_shift, max_pages;  // log2 of page_size; entries of a row of page_table
    int num_pages;              // of the caches
    int num_splits, split_tokens;  // split_tokens a multiple of TILE
    int window_left;               // -1: no limit
    float softmax_scale, softcap;
};

// ---- instructions ---------------------------------------------------------------------------------

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
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

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// ---- tiles ----------------------------------------------------------------------------------------

typedef float Scores[N_TILES][4];
typedef float Output[D_TILES][4];
typedef u32 QueryFragments[K_STEPS][4];

// What a block works on.
struct Work {
    const u16* k;  // of this KV head
    const u16* v;
    const int* pages;  // of this sequence
    int length;        // tokens of the sequence
    int begin, end;    // tokens of this split that any row sees; begin a multiple of TILE
};

// Page numbers come from the device; one that there is no page for must not become an address.
__device__ __forceinline__ void find_pages(int (&pages)[UNITS], const Work& work, const DecodeParams& p, int token) {
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const u32 page = token + 16 * u < work.end ? work.pages[(token + 16 * u) >> p.page_shift] : 0;
        pages[u] = static_cast<int>(min(page, static_cast<u32>(p.num_pages - 1)));
    }
}

// Starts the copies of one tile: rows of ROW_BYTES, with chunk c of row r at c ^ (r & 7), so that the
// eight rows of an ldmatrix phase fall into different banks. Rows past the end become zero.
__device__ __forceinline__ void load_tile(
    u32 stage, const int (&pages)[UNITS], const Work& work, const DecodeParams& p, int token, int lane) {
    constexpr int STEP = 32 / CHUNKS;  // rows that a warp copies at once
    const int chunk = lane % CHUNKS;
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const int in_page = (token + 16 * u) & ((1 << p.page_shift) - 1);
        const int first = token + 16 * u + lane / CHUNKS;
        const i64 k_offset = pages[u] * p.k_page_stride + (in_page + lane / CHUNKS) * p.k_token_stride + chunk * 8;
        const i64 v_offset = pages[u] * p.v_page_stride + (in_page + lane / CHUNKS) * p.v_token_stride + chunk * 8;
        const u16* k = work.k + k_offset;
        const u16* v = work.v + v_offset;
#pragma unroll
        for (int i = 0; i < 16; i += STEP) {
            const int row = 16 * u + i + lane / CHUNKS;
            const u32 place = stage + row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
            const bool valid = first + i < work.end;
            cp_async_16_or_zero(place, valid ? k : work.k, valid);
            cp_async_16_or_zero(place + TILE_BYTES, valid ? v : work.v, valid);
            k += STEP * p.k_token_stride;
            v += STEP * p.v_token_stride;
        }
    }
}

// S = Q K^T for 16 rows and one tile.
__device__ __forceinline__ void multiply_qk(Scores& s, const QueryFragments& q, u32 k_lane) {
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[n][e] = 0.0f;
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step)
#pragma unroll
        for (int pair = 0; pair < N_TILES / 2; ++pair) {
            u32 b[4];
            ldmatrix_x4(b, (k_lane ^ (step << 5)) + pair * 16 * ROW_BYTES);
            mma_16816(s[2 * pair], q[step], b[0], b[1]);
            mma_16816(s[2 * pair + 1], q[step], b[2], b[3]);
        }
}

// Raises the row maxima if a row grew by more than the threshold, then O += exp2(S - maximum) V.
__device__ __forceinline__ void accumulate(
    const Scores& s, Output& o, float (&maximum)[2], float (&sum)[2], float log2_scale, u32 v_lane) {
    float raised[2];
    bool grown = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float value = maximum[half];
#pragma unroll
        for (int n = 0; n < N_TILES; ++n) value = fmaxf(value, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
        raised[half] = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 2));
        // -inf to -inf is NaN, hence not grown; -inf to a number is infinite growth.
        grown |= (raised[half] - maximum[half]) * log2_scale > RESCALE_THRESHOLD;
    }
    if (__any_sync(0xffffffff, grown)) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float finite = raised[half] == minus_infinity() ? 0.0f : raised[half];
            const float factor = exp2_approx((maximum[half] - finite) * log2_scale);
            maximum[half] = raised[half];
            sum[half] *= factor;
#pragma unroll
            for (int d = 0; d < D_TILES; ++d) {
                o[d][2 * half] *= factor;
                o[d][2 * half + 1] *= factor;
            }
        }
    }
    float shift[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
        shift[half] = maximum[half] == minus_infinity() ? 0.0f : maximum[half] * log2_scale;
#pragma unroll
    for (int step = 0; step < UNITS; ++step) {
        u32 a[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const float* pair = &s[2 * step + e / 2][2 * (e % 2)];
            const float low = exp2_approx(pair[0] * log2_scale - shift[e % 2]);
            const float high = exp2_approx(pair[1] * log2_scale - shift[e % 2]);
            sum[e % 2] += low + high;
            a[e] = pack(low, high);
        }
#pragma unroll
        for (int pair = 0; pair < D_TILES / 2; ++pair) {
            u32 b[4];
            ldmatrix_x4_trans(b, (v_lane ^ (pair << 5)) + step * 16 * ROW_BYTES);
            mma_16816(o[2 * pair], a, b[0], b[1]);
            mma_16816(o[2 * pair + 1], a, b[2], b[3]);
        }
    }
}

// ---- kernels --------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, ATTN_MIN_BLOCKS)
    attention_decode_split(const __grid_constant__ DecodeParams p) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int split = blockIdx.y;
    const int batch = blockIdx.z;

    // Neighbouring blocks share a KV head, or read neighbouring heads of the same tokens.
    const int group = p.heads_q / p.heads_kv;
    const int rows = p.seq_q * group;
    const int row_tiles = (rows + ROWS - 1) / ROWS;
    const int head_kv = blockIdx.x / row_tiles;
    const int row0 = blockIdx.x % row_tiles * ROWS;
    const int block_rows = min(ROWS, rows - row0);

    // Row r is query r / group of head r % group. The first and the last query bound what is read.
    Work work;
    work.k = p.k_cache + head_kv * p.k_head_stride;
    work.v = p.v_cache + head_kv * p.v_head_stride;
    work.pages = p.page_table + static_cast<i64>(batch) * p.max_pages;
    work.length = static_cast<int>(min(static_cast<i64>(max(p.cache_lens[batch], 0)), static_cast<i64>(p.max_pages) << p.page_shift));
    const int to_right = work.length - p.seq_q;
    const int left = ATTN_WINDOW && p.window_left >= 0 ? min(p.window_left, work.length) : work.length;
    const int first_query = row0 / group;
    const int last_query = (row0 + block_rows - 1) / group;
    const int visible_end = to_right + last_query + 1;
    const int visible_begin = max(0, to_right + first_query - left) / TILE * TILE;
    work.begin = static_cast<int>(min(visible_begin + static_cast<i64>(split) * p.split_tokens, static_cast<i64>(work.length)));
    work.end = split == p.num_splits - 1
        ? visible_end : static_cast<int>(min(static_cast<i64>(work.begin) + p.split_tokens, static_cast<i64>(visible_end)));
    const i64 out_row = (static_cast<i64>(batch) * p.seq_q) * p.heads_q + head_kv * group;

    if (work.end <= work.begin && p.num_splits > 1) {
        if (threadIdx.x < block_rows) {
            const int row = row0 + threadIdx.x;
            const i64 place = out_row + static_cast<i64>(row / group) * p.heads_q + row % group;
            p.partial_lse[place * p.num_splits + split] = minus_infinity();
        }
        return;
    }

#if ATTN_SOFTCAP
    const float to_tanh = p.softmax_scale / p.softcap * (2.0f * LOG2_E);
    const float log2_scale = p.softcap * LOG2_E;
#else
    const float log2_scale = p.softmax_scale * LOG2_E;
#endif

    const u32 ring = shared_address(shared_memory) + warp * WARP_BYTES;
    const int stride = WARPS * TILE;
    const int offset = warp * TILE;  // of this warp's tile in each round

    // Pages of the first tiles all at once, then their copies.
    int ahead[STAGES][UNITS];
#pragma unroll
    for (int s = 0; s < STAGES; ++s) find_pages(ahead[s], work, p, work.begin + s * stride + offset);
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        const int round = work.begin + s * stride;
        if (round < work.end) load_tile(ring + s * STAGE_BYTES, ahead[s], work, p, round + offset, lane);
        cp_async_commit();
    }
    int pages[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) pages[u] = ahead[STAGES - 1][u];

    // Queries straight into the A fragments, while the first tiles are on their way.
    QueryFragments q;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row0 + half * 8 + lane / 4;
        const bool valid = row < rows;
        const u16* from = p.q + batch * p.q_batch_stride + (valid ? row / group : 0) * p.q_seq_stride +
                          (head_kv * group + (valid ? row % group : 0)) * p.q_head_stride + lane % 4 * 2;
#pragma unroll
        for (int step = 0; step < K_STEPS; ++step) {
            q[step][half] = valid ? *reinterpret_cast<const u32*>(from + step * 16) : 0;
            q[step][half + 2] = valid ? *reinterpret_cast<const u32*>(from + step * 16 + 8) : 0;
        }
    }

    Output output;
    float maximum[2] = {minus_infinity(), minus_infinity()};
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int d = 0; d < D_TILES; ++d)
#pragma unroll
        for (int e = 0; e < 4; ++e) output[d][e] = 0.0f;

    const u32 k_lane = ring + (lane % 8 + lane / 16 * 8) * ROW_BYTES + (((lane / 8 % 2) ^ (lane & 7)) << 4);
    const u32 v_lane = ring + TILE_BYTES + (lane % 16) * ROW_BYTES + (((lane / 16) ^ (lane & 7)) << 4);
    u32 stage = 0;                                // byte offset of the tile to compute
    u32 refill = (STAGES - 1) * STAGE_BYTES;      // and of the one to load
    // The rounds are the block's, so that the compiler sees whole warps; a warp whose tile of the last
    // round lies past the end finds zeros, all masked.
#pragma unroll 1
    for (int round = work.begin; round < work.end; round += stride) {
        const int token = round + offset;
        // Behind this the tile has arrived for all lanes, and none still reads the one before it.
        cp_async_wait<STAGES - 2>();
        __syncwarp();
        const int next = round + (STAGES - 1) * stride;
        if (next < work.end) load_tile(ring + refill, pages, work, p, next + offset, lane);
        cp_async_commit();
        find_pages(pages, work, p, next + stride + offset);

        Scores scores;
        multiply_qk(scores, q, k_lane + stage);
#if ATTN_SOFTCAP
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                scores[n][e] = 1.0f - 2.0f * reciprocal(1.0f + exp2_approx(scores[n][e] * to_tanh));
#endif
        const bool whole = token + TILE - 1 <= to_right + first_query && token + TILE <= work.end &&
                           (!ATTN_WINDOW || token >= to_right + last_query - left);
        if (!whole) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int row = row0 + e / 2 * 8 + lane / 4;
                const int last = min(to_right + row / group, work.end - 1);
#pragma unroll
                for (int n = 0; n < N_TILES; ++n) {
                    const int key = token + n * 8 + lane % 4 * 2 + e % 2;
                    if (key > last || (ATTN_WINDOW && key < to_right + row / group - left)) scores[n][e] = minus_infinity();
                }
            }
        }
        accumulate(scores, output, maximum, sum, log2_scale, v_lane + stage);
        stage = stage == (STAGES - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
        refill = refill == (STAGES - 1) * STAGE_BYTES ? 0 : refill + STAGE_BYTES;
    }
    cp_async_wait<0>();
    __syncwarp();

    float* mine = reinterpret_cast<float*>(shared_memory + warp * WARP_BYTES);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = half * 8 + lane / 4;
        sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 2);
        if (lane % 4 == 0) {
            mine[MERGE_FLOATS + 2 * row] = maximum[half] * log2_scale;
            mine[MERGE_FLOATS + 2 * row + 1] = sum[half];
        }
#pragma unroll
        for (int d = 0; d < D_TILES; ++d)
            *reinterpret_cast<float2*>(mine + row * MERGE_STRIDE + d * 8 + lane % 4 * 2) =
                make_float2(output[d][2 * half], output[d][2 * half + 1]);
    }
    __syncthreads();

    const float* all = reinterpret_cast<const float*>(shared_memory);
    for (int i = threadIdx.x; i < block_rows * (HEAD_DIM / 4); i += THREADS) {
        const int local = i / (HEAD_DIM / 4);
        const int column = i % (HEAD_DIM / 4) * 4;
        float highest = minus_infinity();
#pragma unroll
        for (int w = 0; w < WARPS; ++w)
            highest = fmaxf(highest, all[w * (WARP_BYTES / 4) + MERGE_FLOATS + 2 * local]);
        const float shift = highest == minus_infinity() ? 0.0f : highest;
        float total = 0.0f;
        float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float* from = all + w * (WARP_BYTES / 4);
            const float weight = exp2_approx(from[MERGE_FLOATS + 2 * local] - shift);
            const float4 part = *reinterpret_cast<const float4*>(from + local * MERGE_STRIDE + column);
            total += weight * from[MERGE_FLOATS + 2 * local + 1];
            value.x += weight * part.x;
            value.y += weight * part.y;
            value.z += weight * part.z;
            value.w += weight * part.w;
        }
        const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
        value = make_float4(value.x * inverse, value.y * inverse, value.z * inverse, value.w * inverse);
        const float log2_sum = total == 0.0f ? minus_infinity() : highest + log2_approx(total);
        const int query = (row0 + local) / group;
        const int head = head_kv * group + (row0 + local) % group;
        if (p.num_splits == 1) {
            u16* to = p.o + batch * p.o_batch_stride + query * p.o_seq_stride + head * p.o_head_stride + column;
            uint2 packed;
            packed.x = pack(value.x, value.y);
            packed.y = pack(value.z, value.w);
            *reinterpret_cast<uint2*>(to) = packed;
            if (ATTN_LSE && column == 0)
                p.lse[(static_cast<i64>(batch) * p.heads_q + head) * p.seq_q + query] = log2_sum * LN_2;
        } else {
            const i64 place = ((static_cast<i64>(batch) * p.seq_q + query) * p.heads_q + head) * p.num_splits + split;
            *reinterpret_cast<float4*>(p.partial_o + place * HEAD_DIM + column) = value;
            if (column == 0) p.partial_lse[place] = log2_sum;
        }
    }
}

// One warp a query: weighs the splits by exp2 of their log-sum-exp. Empty splits wrote no output.
extern "C" __global__ void __launch_bounds__(32 * COMBINE_WARPS)
    attention_decode_combine(const __grid_constant__ DecodeParams p) {
    const int lane = threadIdx.x % 32;
    const i64 row = static_cast<i64>(blockIdx.x) * COMBINE_WARPS + threadIdx.x / 32;
    if (row >= static_cast<i64>(p.batch) * p.seq_q * p.heads_q) return;
    const float* log2_sums = p.partial_lse + row * p.num_splits;
    const float* parts = p.partial_o + row * p.num_splits * HEAD_DIM;

    float highest = minus_infinity();
    for (int s = lane; s < p.num_splits; s += 32) highest = fmaxf(highest, log2_sums[s]);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, step));

    float total = 0.0f;
    float2 value[HEAD_DIM / 64];
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 64; ++j) value[j] = make_float2(0.0f, 0.0f);
    if (highest != minus_infinity()) {
#pragma unroll 4
        for (int s = 0; s < p.num_splits; ++s) {
            const float weight = exp2_approx(log2_sums[s] - highest);
            if (log2_sums[s] == minus_infinity()) continue;
            total += weight;
#pragma unroll
            for (int j = 0; j < HEAD_DIM / 64; ++j) {
                const float2 part = *reinterpret_cast<const float2*>(parts + s * HEAD_DIM + j * 64 + lane * 2);
                value[j].x += weight * part.x;
                value[j].y += weight * part.y;
            }
        }
    }

    const int head = static_cast<int>(row % p.heads_q);
    const int query = static_cast<int>(row / p.heads_q % p.seq_q);
    const int batch = static_cast<int>(row / p.heads_q / p.seq_q);
    const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
    u16* to = p.o + batch * p.o_batch_stride + query * p.o_seq_stride + head * p.o_head_stride + lane * 2;
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 64; ++j)
        *reinterpret_cast<u32*>(to + j * 64) = pack(value[j].x * inverse, value[j].y * inverse);
    if (ATTN_LSE && lane == 0)
        p.lse[(static_cast<i64>(batch) * p.heads_q + head) * p.seq_q + query] =
            total == 0.0f ? minus_infinity() : (highest + log2_approx(total)) * LN_2;
}
