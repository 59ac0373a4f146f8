#include "emulate.h"
#include "kernel.inc"  // forward_mma.cu without its instruction section

static std::mt19937 gen(7);
static int failures = 0;

struct Case { int B, HQ, HK, SQ, SK, left, right; float scale_up; std::vector<int> lq, lk; };

static void run(const Case& c) {
    const int D = HEAD_DIM;
    const bool varlen = ATTN_VARLEN;
    int total_q = c.B * c.SQ, total_k = c.B * c.SK, max_q = c.SQ, max_k = c.SK;
    std::vector<int> cq{0}, ck{0};
    if (varlen) {
        max_q = max_k = 0;
        for (int b = 0; b < c.B; ++b) {
            cq.push_back(cq.back() + c.lq[b]); ck.push_back(ck.back() + c.lk[b]);
            max_q = max(max_q, c.lq[b]); max_k = max(max_k, c.lk[b]);
        }
        total_q = cq.back(); total_k = ck.back();
    }
    // v has a gap of 8 elements between heads, k is [B, H, S, D] in memory: strides must be honoured.
    const int VH = D + 8;
    std::normal_distribution<float> nd;
    auto fill = [&](size_t n, float s) { std::vector<uint16_t> x(n + 8); for (auto& e : x) e = emu::narrow(nd(gen) * s); return x; };
    auto q = fill((size_t)total_q * c.HQ * D, c.scale_up), k = fill((size_t)total_k * c.HK * D, 1), v = fill((size_t)total_k * c.HK * VH, 1);
    std::vector<uint16_t> o((size_t)total_q * c.HQ * D + 8, 0x7fff);
    std::vector<float> lse((size_t)total_q * c.HQ, NAN);
    auto align = [](std::vector<uint16_t>& x) { return (uint16_t*)(((uintptr_t)x.data() + 15) / 16 * 16); };
    AttentionParams p{};
    uint16_t *Q = align(q), *K = align(k), *V = align(v), *O = align(o);
    emu::readable = {{(char*)Q, (size_t)total_q * c.HQ * D * 2}, {(char*)K, (size_t)total_k * c.HK * D * 2}, {(char*)V, (size_t)total_k * c.HK * VH * 2}};
    p.q = Q; p.k = K; p.v = V; p.o = O; p.lse = lse.data(); p.cu_seqlens_q = cq.data(); p.cu_seqlens_k = ck.data();
    p.q_seq_stride = c.HQ * D; p.q_head_stride = D; p.q_batch_stride = (i64)c.SQ * c.HQ * D;
    if (varlen) { p.k_seq_stride = c.HK * D; p.k_head_stride = D; p.k_batch_stride = 0; }
    else { p.k_seq_stride = D; p.k_head_stride = (i64)c.SK * D; p.k_batch_stride = (i64)c.SK * c.HK * D; }
    p.v_seq_stride = c.HK * VH; p.v_head_stride = VH; p.v_batch_stride = (i64)c.SK * c.HK * VH;
    p.o_seq_stride = c.HQ * D; p.o_head_stride = D; p.o_batch_stride = (i64)c.SQ * c.HQ * D;
    p.batch = c.B; p.heads_q = c.HQ; p.heads_kv = c.HK; p.seq_q = max_q; p.seq_k = max_k; p.total_q = total_q;
    p.window_left = c.left; p.window_right = c.right;
    p.softmax_scale = 1 / std::sqrt((float)D); p.softcap = 2.0f; p.heads_per_section = 1 + gen() % (c.B * c.HQ);
    shared_limit = SHARED_BYTES;
    gridDim.x = (max_q + BLOCK_M - 1) / BLOCK_M * c.B * c.HQ;
    for (int b = 0; b < gridDim.x; ++b) { blockIdx.x = b; emu::run_block(THREADS, [&] { attention_forward_mma(p); }); }

    double worst = 0, worst_lse = 0; int shown = 0;
    for (int b = 0; b < c.B; ++b) for (int h = 0; h < c.HQ; ++h) {
        const int sq = varlen ? c.lq[b] : c.SQ, sk = varlen ? c.lk[b] : c.SK, hk = h / (c.HQ / c.HK);
        const uint16_t *qb = Q + (varlen ? cq[b] * p.q_seq_stride : b * p.q_batch_stride) + h * p.q_head_stride;
        const uint16_t *kb = K + (varlen ? ck[b] * p.k_seq_stride : b * p.k_batch_stride) + hk * p.k_head_stride;
        const uint16_t *vb = V + (varlen ? ck[b] * p.v_seq_stride : b * p.v_batch_stride) + hk * p.v_head_stride;
        const uint16_t *ob = O + (varlen ? cq[b] * p.o_seq_stride : b * p.o_batch_stride) + h * p.o_head_stride;
        for (int i = 0; i < sq; ++i) {
            std::vector<double> s(sk), out(D);
            double mx = -INFINITY, sum = 0;
            for (int j = 0; j < sk; ++j) {
                double d = 0;
                for (int e = 0; e < D; ++e) d += (double)emu::widen(qb[i * p.q_seq_stride + e]) * emu::widen(kb[j * p.k_seq_stride + e]);
                d *= p.softmax_scale;
                if (ATTN_SOFTCAP) d = p.softcap * std::tanh(d / p.softcap);
                const int R = ATTN_CAUSAL ? 0 : ATTN_WINDOW ? c.right : -1, L = ATTN_WINDOW ? c.left : -1;
                if (R >= 0 && j > i + sk - sq + R) d = -INFINITY;
                if (L >= 0 && j < i + sk - sq - L) d = -INFINITY;
                s[j] = d; mx = max(mx, d);
            }
            if (mx > -INFINITY) for (int j = 0; j < sk; ++j) {
                const double w = std::exp(s[j] - mx); sum += w;
                for (int e = 0; e < D; ++e) out[e] += w * emu::widen(vb[j * p.v_seq_stride + e]);
            }
            const double want = sum > 0 ? mx + std::log(sum) : -INFINITY;
            const float got = lse[varlen ? (size_t)h * total_q + cq[b] + i : ((size_t)b * c.HQ + h) * c.SQ + i];
            if (ATTN_LSE) { double e = want == got ? 0 : std::fabs(want - got) / (1 + std::fabs(want)); if (!(e <= worst_lse)) worst_lse = e; if (e != e) worst_lse = 1e9; }
            for (int e = 0; e < D; ++e) {
                const double w = sum > 0 ? out[e] / sum : 0, g = emu::widen(ob[i * p.o_seq_stride + e]);
                const double err = std::fabs(w - g);
                if (!(err < 3e-2) && shown++ < 3) std::printf("  b%d h%d row %d d %d want %g got %g\n", b, h, i, e, w, g);
                if (err != err) worst = 1e9; else worst = max(worst, err);
            }
        }
    }
    const bool ok = worst < 3e-2 && worst_lse < 1e-4;
    failures += !ok;
    std::printf("%s B%d H%d/%d S%dx%d win %d,%d x%g lazy%d: err %.2e lse %.2e\n", ok ? "ok  " : "FAIL", c.B, c.HQ, c.HK, c.SQ, c.SK, c.left, c.right, c.scale_up, emu::lazy, worst, worst_lse);
}

int main() {
    const int M = BLOCK_M, N = BLOCK_N;
    std::vector<Case> cases;
    if (ATTN_VARLEN) cases = {{4, 2, 1, 0, 0, 20, 3, 1, {1, 0, M + 3, 17}, {N + 5, 9, 2 * N + 1, 0}}};
    else cases = {{1, 2, 1, M + 9, 3 * N + 7, 20, 3, 1}, {2, 1, 1, 33, 20, -1, 5, 1}, {1, 1, 1, 1, 1, 0, 0, 1},
                  {1, 2, 2, 40, 0, 3, 3, 1}, {1, 1, 1, 2 * M, N, 5, -1, 40}};
    for (auto& c : cases) for (int lazy = 0; lazy < 2; ++lazy) { emu::lazy = lazy; run(c); }
    return failures != 0;
}
