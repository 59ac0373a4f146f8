#include "emulate.h"
#include "kernel.inc"  // decode.cu without its instruction section

static std::mt19937 gen(7);
static int failures = 0;

struct Case { int seq_q, HQ, HK, page, left, splits, split_tokens; float scale_up; std::vector<int> lens; };

static void run(const Case& c) {
    const int D = HEAD_DIM, B = c.lens.size(), group = c.HQ / c.HK;
    int max_len = 1;
    for (int l : c.lens) max_len = max(max_len, l);
    const int max_pages = (max_len + c.page - 1) / c.page + 1, num_pages = B * max_pages + 3;
    std::normal_distribution<float> nd;
    auto align = [](std::vector<uint16_t>& x) { return (uint16_t*)(((uintptr_t)x.data() + 15) / 16 * 16); };
    auto fill = [&](size_t n, float s) { std::vector<uint16_t> x(n + 8); for (auto& e : x) e = emu::narrow(nd(gen) * s); return x; };
    const size_t cache = (size_t)num_pages * c.page * c.HK * D;
    auto q = fill((size_t)B * c.seq_q * c.HQ * D, c.scale_up), k = fill(cache, 1), v = fill(cache, 1);
    std::vector<uint16_t> o((size_t)B * c.seq_q * c.HQ * D + 8, 0x7fff);
    std::vector<float> lse((size_t)B * c.HQ * c.seq_q, NAN);
    std::vector<float> po((size_t)B * c.HQ * c.seq_q * c.splits * D + 4, NAN), pl((size_t)B * c.HQ * c.seq_q * c.splits, NAN);
    uint16_t *Q = align(q), *K = align(k), *V = align(v), *O = align(o);
    // Pages shuffled; entries past the length point nowhere; unused cache rows are NaN.
    std::vector<int> table((size_t)B * max_pages, 0x7fffff00), order(num_pages);
    for (int i = 0; i < num_pages; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), gen);
    std::vector<char> used((size_t)num_pages * c.page);
    int n = 0;
    for (int b = 0; b < B; ++b)
        for (int i = 0; i * c.page < c.lens[b]; ++i) {
            table[b * max_pages + i] = order[n];
            for (int t = 0; t < c.page && i * c.page + t < c.lens[b]; ++t) used[(size_t)order[n] * c.page + t] = 1;
            ++n;
        }
    for (size_t t = 0; t < used.size(); ++t)
        if (!used[t]) for (int e = 0; e < c.HK * D; ++e) K[t * c.HK * D + e] = V[t * c.HK * D + e] = 0x7fff;
    emu::readable = {{(char*)K, cache * 2}, {(char*)V, cache * 2}};
    DecodeParams p{};
    p.q = Q; p.k_cache = K; p.v_cache = V; p.page_table = table.data(); p.cache_lens = c.lens.data(); p.o = O; p.lse = lse.data();
    p.partial_o = (float*)(((uintptr_t)po.data() + 15) / 16 * 16); p.partial_lse = pl.data();
    p.q_head_stride = p.o_head_stride = D; p.q_seq_stride = p.o_seq_stride = c.HQ * D; p.q_batch_stride = p.o_batch_stride = (i64)c.seq_q * c.HQ * D;
    p.k_head_stride = p.v_head_stride = D; p.k_token_stride = p.v_token_stride = c.HK * D; p.k_page_stride = p.v_page_stride = (i64)c.page * c.HK * D;
    p.batch = B; p.seq_q = c.seq_q; p.heads_q = c.HQ; p.heads_kv = c.HK; p.max_pages = max_pages; p.num_pages = num_pages;
    while ((1 << p.page_shift) < c.page) ++p.page_shift;
    p.num_splits = c.splits; p.split_tokens = c.split_tokens; p.window_left = c.left; p.softmax_scale = 1 / std::sqrt((float)D); p.softcap = 2.0f;
    shared_limit = WARPS * WARP_BYTES;
    const int row_tiles = (c.seq_q * group + 15) / 16;
    for (int z = 0; z < B; ++z) for (int y = 0; y < c.splits; ++y) for (int x = 0; x < c.HK * row_tiles; ++x) {
        blockIdx.x = x; blockIdx.y = y; blockIdx.z = z;
        emu::run_block(THREADS, [&] { attention_decode_split(p); });
    }
    if (c.splits > 1)
        for (int x = 0; x < (B * c.seq_q * c.HQ + 3) / 4; ++x) { blockIdx = {}; blockIdx.x = x; emu::run_block(128, [&] { attention_decode_combine(p); }); }

    double worst = 0, worst_lse = 0; int shown = 0;
    for (int b = 0; b < B; ++b) for (int i = 0; i < c.seq_q; ++i) for (int h = 0; h < c.HQ; ++h) {
        const int len = c.lens[b];
        const uint16_t *qr = Q + ((size_t)(b * c.seq_q + i) * c.HQ + h) * D;
        std::vector<double> s(len), out(D);
        double mx = -INFINITY, sum = 0;
        auto at = [&](int j) { return ((size_t)table[b * max_pages + j / c.page] * c.page + j % c.page) * c.HK * D + (size_t)(h / group) * D; };
        for (int j = 0; j < len; ++j) {
            double d = 0;
            for (int e = 0; e < D; ++e) d += (double)emu::widen(qr[e]) * emu::widen(K[at(j) + e]);
            d *= p.softmax_scale;
            if (ATTN_SOFTCAP) d = p.softcap * std::tanh(d / p.softcap);
            if (j > len - c.seq_q + i || (ATTN_WINDOW && c.left >= 0 && j < len - c.seq_q + i - c.left)) d = -INFINITY;
            s[j] = d; mx = max(mx, d);
        }
        if (mx > -INFINITY) for (int j = 0; j < len; ++j) {
            const double w = std::exp(s[j] - mx);
            if (w == 0) continue;
            sum += w;
            for (int e = 0; e < D; ++e) out[e] += w * emu::widen(V[at(j) + e]);
        }
        const double want = sum > 0 ? mx + std::log(sum) : -INFINITY;
        const float got = lse[((size_t)b * c.HQ + h) * c.seq_q + i];
        const double el = want == got ? 0 : std::fabs(want - got) / (1 + std::fabs(want));
        if (el != el) worst_lse = 1e9; else worst_lse = max(worst_lse, el);
        for (int e = 0; e < D; ++e) {
            const double w = sum > 0 ? out[e] / sum : 0, g = emu::widen(O[((size_t)(b * c.seq_q + i) * c.HQ + h) * D + e]), err = std::fabs(w - g);
            if (!(err < 3e-2) && shown++ < 3) std::printf("  b%d q%d h%d d %d want %g got %g\n", b, i, h, e, w, g);
            if (err != err) worst = 1e9; else worst = max(worst, err);
        }
    }
    const bool ok = worst < 3e-2 && worst_lse < 1e-4;
    failures += !ok;
    std::printf("%s seq %d H%d/%d page %d left %d splits %d x %d lazy%d: err %.2e lse %.2e\n", ok ? "ok  " : "FAIL", c.seq_q, c.HQ, c.HK, c.page, c.left, c.splits, c.split_tokens, emu::lazy, worst, worst_lse);
}

int main() {
    const int T = TILE * WARPS;
    std::vector<Case> cases = {
        {1, 8, 1, 16, 37, 1, T, 1, {0, 1, 100, 259}},
        {1, 4, 2, 32, -1, 3, T, 1, {0, 17, 2 * T, 4 * T + 5}},
        {1, 20, 1, 64, 5, 2, 2 * T, 1, {300, 64}},
        {3, 6, 2, 16, 20, 4, TILE, 1, {2, 0, 90}},
        {5, 4, 1, 256, 9, 1, T, 40, {200, 4}},
    };
    for (auto& c : cases) for (int lazy = 0; lazy < 2; ++lazy) { emu::lazy = lazy; run(c); }
    return failures != 0;
}
