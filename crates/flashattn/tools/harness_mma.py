#!/usr/bin/env python3
"""Checks and times forward_mma.cu and decode.cu on a GPU machine (python3 with torch; libcuda and NVRTC through ctypes).

    python3 crates/flashattn/tools/harness_mma.py [check|time] [only-names-containing]

Everything is compiled first, in parallel. Then workers run the items one by one; an item that fails or
hangs (30 s) costs itself only: the worker is replaced and goes on with the next.
"""
import ctypes, itertools, math, os, re, subprocess, sys, tempfile, threading, time, queue
from concurrent.futures import ProcessPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from compile_mma import KERNELS, compile_source, decode_tiles, forward_tiles, report

ARCH = "sm_90"
FORWARD, DECODE = "forward_mma.cu", "decode.cu"
I64, I32, F32, P = ctypes.c_longlong, ctypes.c_int, ctypes.c_float, ctypes.c_void_p


class AttentionParams(ctypes.Structure):
    _fields_ = ([(n, P) for n in "q k v o lse cu_seqlens_q cu_seqlens_k".split()]
                + [(f"{t}_{n}_stride", I64) for t in "qkvo" for n in ("batch", "seq", "head")]
                + [(n, I32) for n in "batch heads_q heads_kv seq_q seq_k total_q window_left window_right".split()]
                + [("softmax_scale", F32), ("softcap", F32), ("heads_per_section", I32)])


class DecodeParams(ctypes.Structure):
    _fields_ = ([(n, P) for n in "q k_cache v_cache page_table cache_lens o lse partial_o partial_lse".split()]
                + [(f"{t}_{n}_stride", I64) for t in "qo" for n in ("batch", "seq", "head")]
                + [(f"{t}_{n}_stride", I64) for t in "kv" for n in ("page", "token", "head")]
                + [(n, I32) for n in "batch seq_q heads_q heads_kv page_shift max_pages num_pages num_splits split_tokens window_left".split()]
                + [("softmax_scale", F32), ("softcap", F32)])


# ---- the list of work: (group, name, file, defines, arguments) ------------------------------------

def forward_defines(d, t=1, causal=0, window=0, cap=0, varlen=0, lse=0, m=128, n=64, w=4, s=2, **more):
    return dict(ATTN_HEAD_DIM=d, ATTN_TYPE=t, ATTN_CAUSAL=causal, ATTN_WINDOW=window, ATTN_SOFTCAP=cap, ATTN_VARLEN=varlen,
                ATTN_LSE=lse, ATTN_BLOCK_M=m, ATTN_BLOCK_N=n, ATTN_WARPS=w, ATTN_STAGES=s, **more)


def decode_defines(d, t=1, window=0, cap=0, lse=0, tile=16, w=4, s=3, **more):
    return dict(ATTN_HEAD_DIM=d, ATTN_TYPE=t, ATTN_WINDOW=window, ATTN_SOFTCAP=cap, ATTN_LSE=lse, ATTN_TILE=tile,
                ATTN_WARPS=w, ATTN_STAGES=s, **more)


def items():
    out = []
    # forward, checked: each option combination once over two head dimensions in turn, types alternating
    for i, (causal, window, cap, varlen) in enumerate(itertools.product((0, 1), repeat=4)):
        for d in ((64, 128), (128, 256), (256, 64))[i % 3]:
            m, n, w, s = forward_tiles("sm_90a", d)
            t = (i + d // 64) % 2
            out.append(("check", f"fwd D{d} {'bf16' if t else 'f16 '} causal{causal} window{window} cap{cap} varlen{varlen}", FORWARD,
                        forward_defines(d, t, causal, window, cap, varlen, 1, m, n, w, s), {}))
    for label, kw in (("128x64 s1", dict(s=1)), ("128x32 q8", dict(n=32, ATTN_Q_STEPS=8)), ("step32", dict(ATTN_STEP_N=32, ATTN_Q_STEPS=8)),
                      ("256x64 w8", dict(m=256, w=8)), ("128x128 w8", dict(n=128, w=8)), ("64x64", dict(m=64))):
        out.append(("check", f"fwd D128 bf16 causal {label}", FORWARD, forward_defines(128, 1, 1, lse=1, **kw), {}))
    for d, t, window, cap in itertools.product((64, 128, 256), (0, 1), (0, 1), (0, 1)):
        if (d // 64 + t + window + cap) % 2:
            tile, w, s = decode_tiles("sm_90a", d)
            out.append(("check", f"dec D{d} {'bf16' if t else 'f16 '} window{window} cap{cap}", DECODE, decode_defines(d, t, window, cap, 1, tile, w, s), {}))
    out.append(("check", "dec D128 bf16 tile32", DECODE, decode_defines(128, 1, 1, 0, 1, 32, 4, 2), {}))

    # forward, timed
    variants = {
        128: [("128x64 w4 s2", {}), ("128x64 w4 s1", dict(s=1)), ("128x64 w4 s2 q1", dict(ATTN_Q_STEPS=1)),
              ("128x32 w4 s2 q8", dict(n=32, ATTN_Q_STEPS=8)), ("128x32 w4 s2 q0", dict(n=32, ATTN_Q_STEPS=0)),
              ("128x64/32 w4 s2 q8", dict(ATTN_STEP_N=32, ATTN_Q_STEPS=8)), ("128x64/32 w4 s2 q6", dict(ATTN_STEP_N=32, ATTN_Q_STEPS=6)),
              ("128x48 w4 s2 q2", dict(n=48, ATTN_Q_STEPS=2)), ("256x64 w8 s2", dict(m=256, w=8)),
              ("128x128 w8 s2", dict(n=128, w=8)), ("128x64 w8 s2 2b", dict(w=8, ATTN_MIN_BLOCKS=2, ATTN_Q_STEPS=0)),
              ("64x64 w4 s2 2b", dict(m=64))],
        64: [("128x64 w4 s2", {}), ("128x64 w4 s2 3b", dict(ATTN_MIN_BLOCKS=3)), ("128x128 w4 s2", dict(n=128)),
             ("128x128 w4 s1", dict(n=128, s=1)), ("128x64 w4 s2 3b q0", dict(ATTN_MIN_BLOCKS=3, ATTN_Q_STEPS=0)),
             ("128x32 w4 s2 3b", dict(n=32, ATTN_MIN_BLOCKS=3)), ("64x64 w4 s2 4b", dict(m=64, ATTN_MIN_BLOCKS=4)),
             ("128x128 w8 s2 2b", dict(n=128, w=8, ATTN_MIN_BLOCKS=2)), ("256x64 w8 s2", dict(m=256, w=8))],
        256: [("128x64 w8 s2", dict(w=8)), ("128x64 w8 s1", dict(w=8, s=1)), ("64x64 w4 s1 2b", dict(m=64, s=1)), ("128x32 w8 s2", dict(n=32, w=8))],
    }
    for d, causal, (b, s) in ((128, 0, (2, 8192)), (128, 1, (2, 8192)), (64, 1, (8, 2048)), (256, 0, (2, 4096)), (256, 1, (2, 4096))):
        for label, kw in variants[d]:
            # the default is what fits 32 MiB of L2 if causal, else one head a section, the plain order
            sections = ((0, 1, 10**6) if causal else (0, 8)) if label == variants[d][0][0] and d != 256 else (0,)
            for section in sections:
                out.append((f"fwd D{d} {'causal' if causal else 'full'} B{b} H16 S{s}", label + ({0: "", 10**6: " all heads"}.get(section, f" {section} heads")), FORWARD,
                            forward_defines(d, 1, causal, **kw), dict(b=b, s=s, section=section)))
    # decode, timed
    for label, kw in (("t16 w4 s3", {}), ("t16 w4 s4 1b", dict(s=4, ATTN_MIN_BLOCKS=1)), ("t16 w8 s3", dict(w=8)), ("t32 w4 s2 1b", dict(tile=32, s=2)),
                      ("t32 w4 s3", dict(tile=32, s=3, ATTN_MIN_BLOCKS=1)), ("t16 w2 s4 3b", dict(w=2, s=4, ATTN_MIN_BLOCKS=3)), ("t16 w4 s2 3b", dict(s=2, ATTN_MIN_BLOCKS=3))):
        out.append(("decode D128 bf16 H64/8", label, DECODE, decode_defines(128, **kw), {}))
    return out


def compile_item(job):
    i, file, defines, folder = job
    cubin, log = compile_source(os.path.join(KERNELS, file), ARCH, defines)
    if cubin:
        open(os.path.join(folder, f"{i}.cubin"), "wb").write(cubin)
    return i, cubin is not None, report(log), log[:1500]


# ---- driver ---------------------------------------------------------------------------------------

class Kernel:
    cuda = None

    def __init__(self, path, name, shared):
        if Kernel.cuda is None:
            Kernel.cuda = ctypes.CDLL("libcuda.so.1")
        module, self.f = P(), P()
        self.ok(self.cuda.cuModuleLoadData(ctypes.byref(module), open(path, "rb").read()), "load")
        self.ok(self.cuda.cuModuleGetFunction(ctypes.byref(self.f), module, name.encode()), "function")
        self.ok(self.cuda.cuFuncSetAttribute(self.f, 8, shared), "shared memory")  # MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.shared = shared
        n = I32()
        self.cuda.cuFuncGetAttribute(ctypes.byref(n), 4, self.f); self.registers = n.value
        self.cuda.cuFuncGetAttribute(ctypes.byref(n), 3, self.f); self.local = n.value

    def ok(self, rc, what):
        if rc:
            raise RuntimeError(f"CUDA error {rc} at {what}")

    def blocks_per_sm(self, threads):
        n = I32()
        self.cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(ctypes.byref(n), self.f, threads, ctypes.c_size_t(self.shared))
        return n.value

    def launch(self, grid, threads, params):
        import torch
        args = (P * 1)(ctypes.addressof(params))
        self.ok(self.cuda.cuLaunchKernel(self.f, *(ctypes.c_uint(g) for g in grid), ctypes.c_uint(threads), ctypes.c_uint(1), ctypes.c_uint(1),
                                         ctypes.c_uint(self.shared), P(torch.cuda.current_stream().cuda_stream), args, None), "launch")


def median_ms(*calls, reps=20, warm=3):
    """Medians of several calls, alternated."""
    import torch
    for _ in range(warm):
        for c in calls: c()
    events = [[(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(reps)] for _ in calls]
    for r in range(reps):
        for c, e in zip(calls, events):
            e[r][0].record(); c(); e[r][1].record()
    torch.cuda.synchronize()
    return [sorted(a.elapsed_time(b) for a, b in e)[reps // 2] for e in events]


def compare(got, want, got_lse, want_lse, bf16):
    """(error text or None, relative error, lse error). Tensors [rows.., D] and [rows..]."""
    import torch
    g, w = got.double(), want.double()
    rel = ((g - w).norm() / w.norm().clamp_min(1e-9)).item() if w.numel() else 0.0
    limit = (2.5e-2 if bf16 else 4e-3) * (1 + w.abs())
    bad = ~((g - w).abs() <= limit)
    dl = torch.where(got_lse.double() == want_lse, torch.zeros_like(want_lse), (got_lse.double() - want_lse).abs() / (1 + want_lse.abs()))
    bad_lse = ~(dl <= 1e-4)
    text = None
    if bad.any() or not rel <= (6e-3 if bf16 else 1e-3):
        where = bad.nonzero()[:3].tolist()
        rows = bad.any(-1).nonzero()
        text = f"{int(bad.sum())} of {bad.numel()} wrong, {int(torch.isnan(g).sum())} NaN, rel {rel:.1e}; first " + "; ".join(
            f"{x}: want {w[tuple(x)].item():.4g} got {g[tuple(x)].item():.4g}" for x in where) + f"; bad rows {rows[:2].tolist()}..{rows[-1:].tolist()}"
    elif bad_lse.any():
        where = bad_lse.nonzero()[:3].tolist()
        text = "lse wrong: " + "; ".join(f"{x}: want {want_lse[tuple(x)].item():.6g} got {got_lse[tuple(x)].item():.6g}" for x in where)
    return text, rel, dl.max().item() if dl.numel() else 0.0


def reference(q, k, v, scale, right, left, cap):
    """f64 attention of one sequence: q [Sq, H, D], k and v [Sk, Hk, D] -> o [Sq, H, D], lse [H, Sq]."""
    import torch
    sq, sk, g = q.shape[0], k.shape[0], q.shape[1] // max(1, k.shape[1])
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = k.repeat_interleave(g, 0), v.repeat_interleave(g, 0)
    s = q @ k.transpose(1, 2) * scale
    if cap:
        s = cap * torch.tanh(s / cap)
    i, j = torch.arange(sq, device=q.device)[:, None] + sk - sq, torch.arange(sk, device=q.device)[None]
    mask = torch.zeros(sq, sk, dtype=torch.bool, device=q.device)
    if right >= 0: mask |= j > i + right
    if left >= 0: mask |= j < i - left
    s = s.masked_fill(mask, -math.inf)
    lse = torch.logsumexp(s, -1) if sk else torch.full((q.shape[0], sq), -math.inf, dtype=torch.float64, device=q.device)
    p = torch.exp(s - torch.where(lse == -math.inf, torch.zeros_like(lse), lse)[..., None])
    return (p @ v).transpose(0, 1), lse


class Forward:
    def __init__(self, path, d):
        self.d = d
        self.threads = 32 * d["ATTN_WARPS"]
        self.k = Kernel(path, "attention_forward_mma", 2 * d["ATTN_HEAD_DIM"] * (d["ATTN_BLOCK_M"] + 2 * d["ATTN_STAGES"] * d["ATTN_BLOCK_N"]) + 32)

    def params(self, q, k, v, o, lse=None, cu_q=None, cu_k=None, max_q=None, max_k=None, left=-1, right=-1, cap=0.0, section=0):
        """q, k, v, o are [B, S, H, D] views, or [total, H, D] with cu_seqlens."""
        p = AttentionParams()
        p.q, p.k, p.v, p.o = q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()
        p.lse = lse.data_ptr() if lse is not None else None
        for n, x in (("q", q), ("k", k), ("v", v), ("o", o)):
            st = x.stride() if x.dim() == 4 else (0,) + x.stride()
            setattr(p, f"{n}_batch_stride", st[0]); setattr(p, f"{n}_seq_stride", st[1]); setattr(p, f"{n}_head_stride", st[2])
        p.heads_q, p.heads_kv = q.shape[-2], k.shape[-2]
        if cu_q is not None:
            p.cu_seqlens_q, p.cu_seqlens_k = cu_q.data_ptr(), cu_k.data_ptr()
            p.batch, p.seq_q, p.seq_k, p.total_q = cu_q.numel() - 1, max_q, max_k, q.shape[0]
        else:
            p.batch, p.seq_q, p.seq_k, p.total_q = q.shape[0], q.shape[1], k.shape[1], 0
        p.window_left, p.window_right, p.softcap = left, right, cap
        p.softmax_scale = q.shape[-1] ** -0.5
        group = p.heads_q // p.heads_kv
        fits = max(1, 32 * 2**20 // max(1, 4 * p.seq_k * q.shape[-1]))
        ordered = self.d["ATTN_CAUSAL"] or self.d["ATTN_WINDOW"]
        p.heads_per_section = min(max(1, p.batch * p.heads_q), section or (fits * group if ordered else 1))
        return p

    def launch(self, p):
        blocks = -(-p.seq_q // self.d["ATTN_BLOCK_M"]) * p.batch * p.heads_q
        if blocks:
            self.k.launch((blocks, 1, 1), self.threads, p)


def check_forward(path, d):
    import torch
    f, D, dt = Forward(path, d), d["ATTN_HEAD_DIM"], torch.bfloat16 if d["ATTN_TYPE"] else torch.float16
    cap = 3.0 if d["ATTN_SOFTCAP"] else 0.0
    M, N = d["ATTN_BLOCK_M"], d["ATTN_BLOCK_N"]
    right0 = 0 if d["ATTN_CAUSAL"] else None
    worst = [0.0, 0.0]
    r = lambda *s, up=1.0: (torch.randn(*s, device="cuda") * up).to(dt)

    def one(label, run, o, lse, want, want_lse, pick_o, pick_lse):
        outs = []
        for _ in range(2):
            o.fill_(math.nan); lse.fill_(math.nan)
            run(); torch.cuda.synchronize()
            outs.append(o.clone())
        if not torch.equal(outs[0].nan_to_num(7), outs[1].nan_to_num(7)):
            return f"{label}: differs from run to run"
        text, e, el = compare(pick_o(o), want, pick_lse(lse), want_lse, d["ATTN_TYPE"])
        worst[0], worst[1] = max(worst[0], e), max(worst[1], el)
        return f"{label}: {text}" if text else None

    errors = []
    if not d["ATTN_VARLEN"]:
        shapes = [(2, 4, 2, 2 * M + 37, 3 * N + 5, 50, 3, 1), (1, 2, 1, 77, 1000, 130, 0, 1), (2, 2, 2, 300, 65, -1, 9, 1), (3, 6, 1, 1, 1, 0, 0, 1),
                  (1, 4, 4, 130, 0, 5, 5, 1), (1, 3, 3, 1, 511, 64, -1, 1), (1, 2, 2, 1024, 1024, 200, 0, 30), (2, 8, 2, 513, 513, 7, 1, 1)]
        for b, hq, hk, sq, sk, left, right, up in shapes:
            q, o = r(b, sq, hq, D, up=up), torch.empty(b, sq, hq, D, device="cuda", dtype=dt)
            k, v = r(b, hk, sk, D).transpose(1, 2), r(b, sk, hk, D + 8)[..., :D]
            lse = torch.empty(b, hq, sq, device="cuda")
            R = right0 if right0 is not None else right if d["ATTN_WINDOW"] else -1
            L = left if d["ATTN_WINDOW"] else -1
            refs = [reference(q[i], k[i], v[i], D ** -0.5, R, L, cap) for i in range(b)]
            p = f.params(q, k, v, o, lse, left=left, right=right, cap=cap, section=3)
            e = one(f"B{b} H{hq}/{hk} S{sq}x{sk} win {L},{R} x{up}", lambda: f.launch(p), o, lse, torch.stack([x[0] for x in refs]),
                    torch.stack([x[1] for x in refs]), lambda x: x, lambda x: x)
            if e: errors.append(e)
    else:
        for hq, hk, lq, lk, left, right in [(4, 2, [1, 0, M + 3, 17, 200], [N + 5, 9, 2 * N + 1, 0, 200], 40, 2), (3, 1, [300, 1, 64], [1, 300, 64], -1, 0)]:
            q, k, v = r(sum(lq), hq, D), r(sum(lk), hk, D), r(sum(lk), hk, D + 8)[..., :D]
            o, lse = torch.empty(sum(lq), hq, D, device="cuda", dtype=dt), torch.empty(hq, sum(lq), device="cuda")
            cq = torch.tensor([0] + list(itertools.accumulate(lq)), dtype=torch.int32, device="cuda")
            ck = torch.tensor([0] + list(itertools.accumulate(lk)), dtype=torch.int32, device="cuda")
            R = right0 if right0 is not None else right if d["ATTN_WINDOW"] else -1
            L = left if d["ATTN_WINDOW"] else -1
            refs = [reference(a, b_, c, D ** -0.5, R, L, cap) for a, b_, c in zip(q.split(lq), k.split(lk), v.split(lk))]
            p = f.params(q, k, v, o, lse, cq, ck, max(lq), max(lk), left, right, cap, section=3)
            e = one(f"varlen {lq} x {lk} win {L},{R}", lambda: f.launch(p), o, lse, torch.cat([x[0] for x in refs]), torch.cat([x[1] for x in refs], 1), lambda x: x, lambda x: x)
            if e: errors.append(e)
    return errors, f"rel {worst[0]:.1e} lse {worst[1]:.1e}"


class Decode:
    def __init__(self, path, d):
        self.d, self.threads = d, 32 * d["ATTN_WARPS"]
        self.k = Kernel(path, "attention_decode_split", d["ATTN_WARPS"] * d["ATTN_STAGES"] * d["ATTN_TILE"] * d["ATTN_HEAD_DIM"] * 4)
        self.combine = Kernel(path, "attention_decode_combine", 0)

    def params(self, q, kc, vc, table, lens, o, lse, splits, split_tokens, left=-1, cap=0.0):
        """q and o [B, S, H, D]; caches [pages, page_size, Hk, D]."""
        import torch
        p = DecodeParams()
        self.part_o = torch.full((*q.shape[:3], splits, q.shape[3]), math.nan, device="cuda") if splits > 1 else None
        self.part_l = torch.full((*q.shape[:3], splits), math.nan, device="cuda") if splits > 1 else None
        for n, x in (("q", q), ("k_cache", kc), ("v_cache", vc), ("page_table", table), ("cache_lens", lens), ("o", o), ("lse", lse),
                     ("partial_o", self.part_o), ("partial_lse", self.part_l)):
            setattr(p, n, x.data_ptr() if x is not None else None)
        for n, x, names in (("q", q, ("batch", "seq", "head")), ("o", o, ("batch", "seq", "head")), ("k", kc, ("page", "token", "head")), ("v", vc, ("page", "token", "head"))):
            for i, s in enumerate(names):
                setattr(p, f"{n}_{s}_stride", x.stride(i))
        p.batch, p.seq_q, p.heads_q, p.heads_kv = q.shape[0], q.shape[1], q.shape[2], kc.shape[2]
        p.page_shift, p.max_pages = kc.shape[1].bit_length() - 1, table.shape[1]
        p.num_pages = kc.shape[0]
        p.num_splits, p.split_tokens, p.window_left = splits, split_tokens, left
        p.softmax_scale, p.softcap = q.shape[3] ** -0.5, cap
        return p

    def launch(self, p):
        row_tiles = -(-p.seq_q * (p.heads_q // p.heads_kv) // 16)
        self.k.launch((p.heads_kv * row_tiles, p.num_splits, p.batch), self.threads, p)
        if p.num_splits > 1:
            self.combine.launch((-(-p.batch * p.seq_q * p.heads_q // 4), 1, 1), 128, p)


def choose_splits(work, slots, tokens, warps, tile):
    """The function in decode.cu's header."""
    most = max(1, min(128, tokens // (8 * warps * tile)))
    fill = lambda s: (work * s / slots) / math.ceil(work * s / slots)
    best = max(fill(s) for s in range(1, most + 1))
    s = next(s for s in range(1, most + 1) if fill(s) >= 0.95 * best)
    unit = warps * tile
    split_tokens = -(-max(1, tokens) // (s * unit)) * unit
    return max(1, -(-tokens // split_tokens)), split_tokens


def check_decode(path, d):
    import torch
    f, D, dt = Decode(path, d), d["ATTN_HEAD_DIM"], torch.bfloat16 if d["ATTN_TYPE"] else torch.float16
    cap = 3.0 if d["ATTN_SOFTCAP"] else 0.0
    T = d["ATTN_TILE"] * d["ATTN_WARPS"]
    errors, worst = [], [0.0, 0.0]
    for seq_q, hq, hk, page, left, splits, st, up, lens in [
            (1, 8, 1, 16, 37, 1, T, 1, [0, 1, 100, 1259]), (1, 32, 4, 64, -1, 7, 2 * T, 1, [0, 17, 2 * T, 4 * T + 5, 3000]),
            (1, 24, 1, 32, 500, 3, 4 * T, 1, [900, 64]), (3, 6, 2, 16, 20, 40, T, 1, [2, 0, 2090]), (2, 32, 2, 256, -1, 4, 512, 25, [2000, 1])]:
        b, max_pages = len(lens), -(-max(lens) // page) + 2
        n = b * max_pages + 3
        q, o = (torch.randn(b, seq_q, hq, D, device="cuda") * up).to(dt), torch.empty(b, seq_q, hq, D, device="cuda", dtype=dt)
        kc, vc = (torch.full((n, page, hk, D), math.nan, device="cuda", dtype=dt) for _ in range(2))  # unused rows stay NaN
        table = torch.full((b, max_pages), 0x7fffff00, dtype=torch.int32, device="cuda")
        order, at, refs = torch.randperm(n).tolist(), 0, []
        for i, length in enumerate(lens):
            k, v = torch.randn(length, hk, D, device="cuda").to(dt), torch.randn(length, hk, D, device="cuda").to(dt)
            for j in range(0, length, page):
                kc[order[at], :min(page, length - j)], vc[order[at], :min(page, length - j)] = k[j:j + page], v[j:j + page]
                table[i, j // page] = order[at]
                at += 1
            refs.append(reference(q[i], k, v, D ** -0.5, 0, left if d["ATTN_WINDOW"] else -1, cap))
        lse, cl = torch.empty(b, hq, seq_q, device="cuda"), torch.tensor(lens, dtype=torch.int32, device="cuda")
        p = f.params(q, kc, vc, table, cl, o, lse, splits, st, left, cap)
        outs = []
        for _ in range(2):
            o.fill_(math.nan); lse.fill_(math.nan)
            f.launch(p); torch.cuda.synchronize()
            outs.append(o.clone())
        label = f"seq {seq_q} H{hq}/{hk} page {page} left {left} splits {splits}x{st} lens {lens}"
        if not torch.equal(outs[0].nan_to_num(7), outs[1].nan_to_num(7)):
            errors.append(label + ": differs from run to run")
        text, e, el = compare(o, torch.stack([x[0] for x in refs]), lse, torch.stack([x[1] for x in refs]), d["ATTN_TYPE"])
        worst = [max(worst[0], e), max(worst[1], el)]
        if text: errors.append(f"{label}: {text}")
    return errors, f"rel {worst[0]:.1e} lse {worst[1]:.1e}"


SHARED = {}  # inputs of the timed groups, made once a worker


def time_forward(path, d, b, s, section):
    import torch, torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    D, causal = d["ATTN_HEAD_DIM"], bool(d["ATTN_CAUSAL"])
    if SHARED.get("key") != (D, causal, b, s):
        SHARED.clear()
        SHARED["key"] = (D, causal, b, s)
        SHARED["qkv"] = [torch.randn(b, 16, s, D, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            SHARED["want"] = F.scaled_dot_product_attention(*SHARED["qkv"], is_causal=causal)
    q, k, v = SHARED["qkv"]
    f = Forward(path, d)
    o = torch.full_like(q, math.nan)
    p = f.params(*(x.transpose(1, 2) for x in (q, k, v, o)), section=section)
    f.launch(p); torch.cuda.synchronize()
    rel = ((o.float() - SHARED["want"].float()).norm() / SHARED["want"].float().norm()).item()

    def base():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    ours, theirs = median_ms(lambda: f.launch(p), base)
    flops = 4 * b * 16 * s * s * D / (2 if causal else 1)
    tf = lambda ms: flops / ms / 1e9
    flag = "" if rel < 6e-3 else "  WRONG"
    return (f"{tf(ours):7.1f} TFLOP/s | torch {tf(theirs):6.1f} | ratio {theirs / ours:5.3f} | rel {rel:.1e} | regs {f.k.registers} local {f.k.local} "
            f"blocks/SM {f.k.blocks_per_sm(f.threads)} shared {f.k.shared // 1024}K{flag}")


def time_decode(path, d):
    import torch
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    D, hq, hk, B, S, lines = 128, 64, 8, 16, 32768, []
    if "cache" not in SHARED:
        SHARED.clear()
        SHARED["cache"] = [torch.randn(B * S // 64, 64, hk, D, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        x, y = torch.empty(2**30, dtype=torch.int8, device="cuda"), torch.empty(2**30, dtype=torch.int8, device="cuda")
        x.random_()
        (ms,) = median_ms(lambda: y.copy_(x))
        SHARED["copy"] = 2 * 2**30 / ms / 1e9
        lines.append(f"device copy {SHARED['copy']:.2f} TB/s (read + written)")
    f = Decode(path, d)
    slots = sms * f.k.blocks_per_sm(f.threads)
    for batch, tokens, page in ((16, 32768, 64), (16, 32768, 16), (1, 524288, 64)):
        kc, vc = (c.view(-1, page, hk, D) for c in SHARED["cache"])
        pages = tokens // page
        table = torch.randperm(batch * pages, device="cuda").to(torch.int32).view(batch, pages)
        lens = torch.full((batch,), tokens, dtype=torch.int32, device="cuda")
        q = torch.randn(batch, 1, hq, D, device="cuda", dtype=torch.bfloat16)
        o = torch.full_like(q, math.nan)
        unit = d["ATTN_WARPS"] * d["ATTN_TILE"]
        auto = choose_splits(batch * hk, slots, tokens, d["ATTN_WARPS"], d["ATTN_TILE"])
        tries = [("auto", auto)] + ([(str(s), (s, -(-tokens // (s * unit)) * unit)) for s in (1, 2, 4, 8, 16)] if (batch, page) == (16, 64) else [])
        got = []
        for label, (s, st) in tries:
            p = f.params(q, kc, vc, table, lens, o, None, s, st)
            o.fill_(math.nan)
            f.launch(p)
            k = kc[table[-1].long()].view(tokens, hk, D)[:, 3].float(); v = vc[table[-1].long()].view(tokens, hk, D)[:, 3].float()
            want = torch.softmax(q[-1, 0, 24:32].float() @ k.T * D ** -0.5, -1) @ v
            rel = ((o[-1, 0, 24:32].float() - want).norm() / want.norm()).item()
            (ms,) = median_ms(lambda: f.launch(p))
            tb = 4 * batch * tokens * hk * D / ms / 1e9
            got.append(f"{label}{f'={s}' if label == 'auto' else ''}: {tb:.2f} TB/s {tb / SHARED['copy'] * 100:.0f}%" + ("" if rel < 1e-2 else f" WRONG rel {rel:.1e}"))
        lines.append(f"B{batch} {tokens} tokens page {page}: " + ", ".join(got))
    lines[-1] += f" | regs {f.k.registers} local {f.k.local} blocks/SM {slots // sms} shared {f.k.shared // 1024}K"
    return "\n      ".join(lines)


# ---- running --------------------------------------------------------------------------------------

def worker(folder, wanted):
    import torch
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(1)
    torch.zeros(1, device="cuda")
    all_items = items()
    print("@ready", flush=True)
    for i in wanted:
        group, name, file, d, kw = all_items[i]
        path = os.path.join(folder, f"{i}.cubin")
        print(f"@begin {i}", flush=True)
        t0 = time.time()
        try:
            if group == "check":
                errors, summary = (check_forward if file == FORWARD else check_decode)(path, d)
                print(f"@check {'ok  ' if not errors else 'FAIL'} {name}: {summary} {time.time() - t0:.1f}s" + "".join(f"\n      {e}" for e in errors[:3]), flush=True)
            else:
                print(f"  {name:24} " + (time_forward(path, d, **kw) if file == FORWARD else "\n      " + time_decode(path, d)), flush=True)
            torch.cuda.synchronize()
        except Exception as e:
            print(f"@check FAIL {name}: {type(e).__name__}: {str(e)[:300]}", flush=True)
            try:
                torch.cuda.synchronize()
            except Exception:
                os._exit(3)  # the context is lost; the parent starts another worker
        print(f"@done {i}", flush=True)


def run_group(folder, group, wanted, names, deadline):
    """Runs the items in workers; returns (passed, failed)."""
    passed, failed = 0, 0
    while wanted and time.time() < deadline:
        proc = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--worker", folder, ",".join(map(str, wanted))],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = queue.Queue()
        threading.Thread(target=lambda: ([lines.put(l) for l in proc.stdout], lines.put(None)), daemon=True).start()
        current, limit, tail = None, time.time() + 60, []
        while True:
            try:
                line = lines.get(timeout=max(0.1, min(limit, deadline) - time.time()))
            except queue.Empty:
                print(f"  FAIL {names[current] if current is not None else 'start'}: no answer in time", flush=True)
                proc.kill(); failed += 1
                break
            if line is None:
                proc.wait()
                if current is not None:
                    failed += 1
                    print(f"  FAIL {names[current]}: worker ended ({proc.returncode}) " + " | ".join(tail[-3:]), flush=True)
                break
            line = line.rstrip()
            if line.startswith("@begin"):
                current, limit = int(line.split()[1]), time.time() + 30
            elif line.startswith("@done"):
                wanted = [i for i in wanted if i != int(line.split()[1])]
                current, limit = None, time.time() + 30
            elif line.startswith("@check"):
                ok = line.startswith("@check ok")
                passed += ok; failed += not ok
                if not ok or "-v" in sys.argv: print("  " + line[7:], flush=True)
            elif line.startswith("  "):
                print(line, flush=True)
            elif line != "@ready":
                tail.append(line)
        if current is None and proc.poll() == 0: break
        if current is None and wanted:
            print("  worker did not start: " + " | ".join(tail[-3:]), flush=True)
            break
        wanted = [i for i in wanted if i != current]
    if wanted and time.time() >= deadline: print(f"  out of time, {len(wanted)} left", flush=True)
    return passed, failed


def main():
    if "--worker" in sys.argv:
        at = sys.argv.index("--worker")
        return worker(sys.argv[at + 1], [int(x) for x in sys.argv[at + 2].split(",")])
    args = [a for a in sys.argv[1:] if not a.startswith("-")]
    start, all_items = time.time(), items()
    mode = args[0] if args and args[0] in ("check", "time") else None
    contains = [a for a in args if a not in ("check", "time")]
    chosen = [i for i, x in enumerate(all_items) if (mode is None or (mode == "check") == (x[0] == "check"))
              and (not contains or any(c in x[0] + " " + x[1] for c in contains))]
    with tempfile.TemporaryDirectory() as folder:
        good = set()
        with ProcessPoolExecutor(max_workers=max(2, (os.cpu_count() or 2) - 2)) as pool:
            for i, ok, rep, log in pool.map(compile_item, [(i, all_items[i][2], all_items[i][3], folder) for i in chosen]):
                if ok: good.add(i)
                else: print("COMPILE FAILED", all_items[i][:2], log, flush=True)
                spill = {k: v for k, v in rep.items() if v[1]}
                if spill and all_items[i][0] == "check": print("  spills", all_items[i][1], spill, flush=True)
        print(f"{len(good)} of {len(chosen)} compiled in {time.time() - start:.0f} s", flush=True)
        names = {i: x[1] for i, x in enumerate(all_items)}
        groups = list(dict.fromkeys(all_items[i][0] for i in chosen))
        total = [0, 0]
        for group in groups:
            t0, wanted = time.time(), [i for i in chosen if i in good and all_items[i][0] == group]
            print(f"== {group} ({len(wanted)})", flush=True)
            if "--compile-only" in sys.argv: continue
            p, f = run_group(folder, group, wanted, names, start + 145)
            total = [total[0] + p, total[1] + f]
            print(f"   {group}: {p} checks passed, {f} failed, {time.time() - t0:.0f} s" if group == "check" else f"   {time.time() - t0:.0f} s" + (f", {f} failed" if f else ""), flush=True)
        print(f"TOTAL {total[0]} checks passed, {total[1]} failed, {time.time() - start:.0f} s", flush=True)
    return total[1] != 0


if __name__ == "__main__":
    sys.exit(main())
