"""Checks and times forward_sm90.cu on a Hopper GPU, beside PyTorch's attention.

    python3 harness_sm90.py            debug probes, all cases, full sweep (under three minutes)
    python3 harness_sm90.py --quick    one probe a head size, few cases, the best-known tiles only
    python3 harness_sm90.py --debug    the probes alone, with maps of what was read from where

Each job runs in a forked child with a time limit, so a hang or a bad address costs that job alone. The
parent never touches CUDA. Kernels come from cache/ beside this file where their hash matches (filled by
`compile_sm90.py --set harness --cache cache`), else from NVRTC here.
"""
import argparse, ctypes, json, math, os, select, signal, sys, time, traceback
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from compile_sm90 import SOURCE, cached, find_nvrtc, label, report, spec

START = time.time()
SHARED_LIMIT = 232448


def say(*a):
    print(*a, flush=True)


# ---- what to build ---------------------------------------------------------------------------------

def tiles(d, causal=False):
    return {64: (192, 128), 128: (128, 128 if causal else 176), 256: (128, 80)}[d]


def case(name, s, **kw):
    return dict(name=name, spec=s, **kw)


def cases(quick):
    out = []
    for d in (64, 128, 256):
        full, caus = tiles(d), tiles(d, True)
        soft = (128, 128) if d == 64 else caus
        for ty in (1, 0):
            if quick and ty == 0 and d != 128:
                continue
            out += [case("full, odd", spec(d, *full, type=ty, lse=1), b=2, h=6, hk=2, sq=257, sk=333),
                    case("causal, square", spec(d, *caus, type=ty, lse=1, causal=1), b=2, h=4, hk=4, sq=700, sk=700)]
        c = spec(d, *caus, lse=1, causal=1)
        out += [case("causal, more keys", c, b=1, h=4, hk=1, sq=100, sk=613),
                case("causal, blind rows", c, b=2, h=2, hk=2, sq=613, sk=100),
                case("full, few blocks, many tiles", spec(d, *full, lse=1), b=3, h=6, hk=3, sq=640, sk=129, grid=7, sched=1)]
        if quick:
            continue
        out += [case("full, one key", spec(d, *full, lse=1), b=2, h=2, hk=1, sq=65, sk=1),
                case("full, no key", spec(d, *full, lse=1), b=2, h=2, hk=1, sq=130, sk=0),
                case("full, huge logits", spec(d, *full, lse=1), b=1, h=2, hk=2, sq=200, sk=900, gain=300.0),
                case("causal, dynamic, sections", c, b=3, h=5, hk=5, sq=900, sk=900, grid=11, sched=1, sec=4),
                case("causal, bhsd", c, b=2, h=3, hk=3, sq=450, sk=450, layout="bhsd"),
                case("causal, qkv packed", c, b=2, h=3, hk=3, sq=450, sk=450, layout="packed"),
                case("window", spec(d, *caus, lse=1, window=1), b=2, h=2, hk=1, sq=900, sk=1000, wl=200, wr=77),
                case("window, left open", spec(d, *caus, lse=1, window=1), b=1, h=2, hk=1, sq=500, sk=500, wl=-1, wr=30),
                case("window, off the end", spec(d, *caus, lse=1, window=1), b=1, h=2, hk=1, sq=700, sk=200, wl=16, wr=16),
                case("causal window", spec(d, *caus, lse=1, window=1, causal=1), b=2, h=2, hk=1, sq=1000, sk=1000, wl=300, wr=50),
                case("softcap causal", spec(d, *soft, lse=1, softcap=1, causal=1), b=2, h=2, hk=2, sq=400, sk=500, cap=5.0, gain=6.0)]
        lens = dict(lq=[1, 64, 300, 0, 129, 200], lk=[5, 64, 333, 170, 0, 77], h=4, hk=2)
        out += [case("packed", spec(d, *caus, lse=1, varlen=1), **lens),
                case("packed causal", spec(d, *caus, lse=1, varlen=1, causal=1), **lens, sched=1, grid=9),
                case("packed, everything", spec(d, *soft, lse=1, varlen=1, window=1, softcap=1, causal=1), **lens, wl=100, wr=5, cap=8.0)]
    return out


SHAPES = {
    "d128 full": dict(b=2, h=16, s=8192, d=128, causal=0, bar=600),
    "d128 causal": dict(b=2, h=16, s=8192, d=128, causal=1, bar=540),
    "d64 causal": dict(b=8, h=16, s=2048, d=64, causal=1, bar=320),
}


def sweep(quick):
    """(shape, M, N, stages, pingpong, dynamic, MiB of K and V a section; 0: one head, -1: all)"""
    out = [("d128 full", 128, 176, 2, 1, 0, 0), ("d128 causal", 128, 128, 2, 1, 1, 32), ("d64 causal", 192, 128, 2, 1, 1, 32)]
    if not quick:
        out += [("d128 full", 128, 176, 2, 0, 0, 0), ("d128 full", 128, 128, 2, 1, 0, 0),
                ("d128 full", 128, 160, 2, 1, 0, 0), ("d128 full", 128, 192, 2, 1, 0, 0),
                ("d128 full", 128, 176, 2, 1, 1, 0), ("d128 full", 128, 144, 2, 1, 0, 0),
                ("d128 causal", 128, 128, 2, 0, 1, 32), ("d128 causal", 128, 176, 2, 1, 1, 32),
                ("d128 causal", 128, 160, 2, 1, 1, 32), ("d128 causal", 128, 144, 2, 1, 1, 32),
                ("d128 causal", 128, 128, 2, 1, 0, 32), ("d128 causal", 128, 128, 2, 1, 1, -1),
                ("d64 causal", 192, 128, 2, 0, 1, 32), ("d64 causal", 192, 128, 3, 1, 1, 32),
                ("d64 causal", 192, 96, 3, 1, 1, 32), ("d64 causal", 128, 128, 2, 1, 1, 32),
                ("d64 causal", 128, 192, 2, 1, 1, 32), ("d64 causal", 128, 128, 4, 0, 1, 32),
                ("d64 causal", 192, 128, 2, 1, 0, 32), ("d64 causal", 192, 128, 2, 1, 1, -1)]
    return [(f, spec(SHAPES[f]["d"], m, n, st, pp, causal=SHAPES[f]["causal"]), dyn, mib) for f, m, n, st, pp, dyn, mib in out]


def probes():
    """Small tiles are watched: a wait that never ends traps instead of hanging. The watch costs registers,
    so the tiles that are timed go without."""
    return ([dict(spec(d, *t, lse=1), WATCHDOG=1 << 24) for d, t in ((64, (64, 64)), (128, (64, 64)), (256, (64, 80)))] +
            [spec(d, *t, lse=1) for d, t in ((128, (128, 176)), (64, (192, 128)))])


def harness_specs(quick=False):
    seen = {}
    for s in probes() + [c["spec"] for c in cases(quick)] + [x[1] for x in sweep(quick)]:
        seen[json.dumps(s, sort_keys=True)] = s
    return list(seen.values())


# ---- driver, by ctypes -----------------------------------------------------------------------------

class Params(ctypes.Structure):
    _fields_ = ([(n, ctypes.c_void_p) for n in ("out", "lse", "cu_q", "cu_k", "scheduler")] +
                [(n, ctypes.c_int64) for n in ("o_batch", "o_seq", "o_head")] +
                [(n, ctypes.c_int) for n in ("batch", "heads_q", "heads_kv", "seq_q", "seq_k")] +
                [("scale", ctypes.c_float), ("softcap", ctypes.c_float)] +
                [(n, ctypes.c_int) for n in ("window_left", "window_right", "heads_per_section")])


def shared_bytes(s):
    d, m, n, st = s["HEAD_DIM"], s["BLOCK_M"], s["BLOCK_N"], s["STAGES"]
    least = 2048 + 2 * d * (m + 2 * st * n)
    return least + 2 * d * m if least + 2 * d * m <= SHARED_LIMIT else least


class Kernel:
    def __init__(self, cubin, s):
        self.cu = ctypes.CDLL("libcuda.so.1")
        self.spec = s
        self.keep = cubin
        mod, self.fn = ctypes.c_void_p(), ctypes.c_void_p()
        self.ok(self.cu.cuModuleLoadData(ctypes.byref(mod), cubin))
        self.ok(self.cu.cuModuleGetFunction(ctypes.byref(self.fn), mod, b"attention_forward_sm90"))
        self.ok(self.cu.cuFuncSetAttribute(self.fn, 8, shared_bytes(s)))

    def ok(self, rc):
        if rc:
            name = ctypes.c_char_p()
            self.cu.cuGetErrorString(rc, ctypes.byref(name))
            raise RuntimeError(f"driver error {rc}: {name.value}")

    def attribute(self, a):
        v = ctypes.c_int()
        self.ok(self.cu.cuFuncGetAttribute(ctypes.byref(v), a, self.fn))
        return v.value

    def tensor_map(self, t, rows):
        """t: [batch, seq, heads, dim] view, any strides, or [seq, heads, dim] packed."""
        if t.dim() == 3:
            t = t.unsqueeze(0)
        b, n, h, d = t.shape
        e = 2
        sb, sn, sh, _ = [x * e for x in t.stride()]
        fix = lambda x: x if x else 16  # a dimension of one may have any stride
        dims = (ctypes.c_uint64 * 5)(64, max(n, 1), d // 64, h, b)
        strides = (ctypes.c_uint64 * 4)(fix(sn), 128, fix(sh), fix(sb))
        box = (ctypes.c_uint32 * 5)(64, rows, d // 64, 1, 1)
        ones = (ctypes.c_uint32 * 5)(1, 1, 1, 1, 1)
        raw = ctypes.create_string_buffer(128 + 64)
        at = (ctypes.addressof(raw) + 63) & ~63
        dtype = 9 if self.spec.get("TYPE", 1) else 6
        self.ok(self.cu.cuTensorMapEncodeTiled(ctypes.c_void_p(at), dtype, 5, ctypes.c_void_p(t.data_ptr()), dims, strides,
                                               box, ones, 0, 3, 2, 0))
        return raw, at

    def prepare(self, q, k, v, o, lse=None, scale=None, cap=0.0, wl=-1, wr=-1, cu_q=None, cu_k=None, max_q=None, max_k=None,
                sched=None, grid=None, sec=1):
        import torch
        s = self.spec
        m, n = s["BLOCK_M"], s["BLOCK_N"]
        packed = cu_q is not None
        batch = len(cu_q) - 1 if packed else q.shape[0]
        sq, sk = (max_q, max_k) if packed else (q.shape[1], k.shape[1])
        hq, hk = q.shape[-2], k.shape[-2]
        one_row = lambda t: t if t.shape[-3] else t.new_zeros(*t.shape[:-3], 1, *t.shape[-2:])
        k, v = one_row(k), one_row(v)
        maps = [self.tensor_map(q, 64), self.tensor_map(k, n), self.tensor_map(v, n), self.tensor_map(o, 64)]
        st = o.stride() if not packed else (0,) + o.stride()
        p = Params(o.data_ptr(), lse.data_ptr() if lse is not None else None,
                   cu_q.data_ptr() if packed else None, cu_k.data_ptr() if packed else None,
                   sched.data_ptr() if sched is not None else None, st[0], st[1], st[2], batch, hq, hk, sq, sk,
                   scale if scale is not None else q.shape[-1] ** -0.5, cap, wl, wr, max(1, min(sec, batch * hq)))
        total = (sq + m - 1) // m * hq * batch
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        args = (ctypes.c_void_p * 5)(*[a for _, a in maps], ctypes.addressof(p))
        keep = (maps, p, args, k, v)
        return keep, min(grid or sms, total)

    def launch(self, prepared):
        import torch
        keep, grid = prepared
        threads = 128 * (1 + self.spec["BLOCK_M"] // 64)
        self.ok(self.cu.cuLaunchKernel(self.fn, grid, 1, 1, threads, 1, 1, shared_bytes(self.spec),
                                       ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), keep[2], None))


# ---- reference -------------------------------------------------------------------------------------

def reference(q, k, v, scale, causal=0, wl=-1, wr=-1, cap=0.0):
    """f64, one sequence: q [n, h, d], k and v [m, hk, d] -> out [n, h, d], lse [h, n]."""
    import torch
    q, k, v = q.double(), k.double(), v.double()
    g = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
    s = torch.einsum("nhd,mhd->hnm", q, k) * scale
    if cap:
        s = cap * torch.tanh(s / cap)
    n, m = q.shape[0], k.shape[0]
    i = torch.arange(n, device=q.device)[:, None] + (m - n)
    j = torch.arange(m, device=q.device)[None, :]
    see = torch.ones(n, m, dtype=torch.bool, device=q.device)
    if causal:
        wr = 0
    if wr >= 0:
        see &= j <= i + wr
    if wl >= 0:
        see &= j >= i - wl
    s = s.masked_fill(~see, -math.inf)
    if m == 0:
        return torch.zeros_like(q), torch.full((q.shape[1], n), -math.inf, device=q.device, dtype=q.dtype)
    lse = torch.logsumexp(s, -1)
    w = torch.exp(s - torch.where(lse.isinf(), torch.zeros_like(lse), lse)[..., None])
    return torch.einsum("hnm,mhd->nhd", w, v), lse


def compare(out, ref, lse, ref_lse, dtype):
    import torch
    out, ref = out.double(), ref.double()
    bad = int((~out.isfinite()).sum())
    norm = ref.norm().item()
    rel = (out - ref).norm().item() / norm if norm else (out - ref).norm().item()
    worst = (out - ref).abs().nan_to_num(1e30).max().item() if out.numel() else 0.0
    inf_ok = bool((ref_lse.isinf() == lse.isinf()).all()) and not bool(lse.isnan().any())
    fin = ref_lse.isfinite() & lse.isfinite()
    e = ((lse.double() - ref_lse)[fin].abs() / (1 + ref_lse[fin].abs())).max().item() if fin.any() else 0.0
    limit = 1e-2 if dtype else 2e-3
    return dict(rel=rel, worst=worst, nonfinite=bad, lse=e, inf_ok=inf_ok,
                ok=bad == 0 and rel < limit and e < 1e-3 and inf_ok and not math.isnan(rel))


# ---- jobs, each in a child -------------------------------------------------------------------------

CUBINS = {}


def kernel(s):
    import torch
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    c = CUBINS[json.dumps(s, sort_keys=True)]
    if c is None:
        raise RuntimeError("did not compile")
    return Kernel(c, s)


def poisoned(shape, dtype):
    """A view of NaN with a guard behind it."""
    import torch
    n = math.prod(shape)
    raw = torch.full((n + 4096,), float("nan"), dtype=dtype, device="cuda")
    raw[n:] = 7.0
    return raw[:n].view(shape), raw[n:]


def job_case(c):
    import torch
    s = c["spec"]
    kern = kernel(s)
    dt = torch.bfloat16 if s.get("TYPE", 1) else torch.float16
    d, h, hk = s["HEAD_DIM"], c["h"], c["hk"]
    gen = torch.Generator(device="cuda").manual_seed(int(time.time() * 1e3) % 2**31)
    rand = lambda *sh: torch.randn(*sh, device="cuda", generator=gen, dtype=torch.float32).to(dt)
    gain = c.get("gain", 1.0)
    kw = dict(cap=c.get("cap", 0.0), wl=c.get("wl", -1), wr=c.get("wr", -1))
    sched = torch.zeros(2, dtype=torch.int32, device="cuda") if c.get("sched") else None
    run = dict(sched=sched, grid=c.get("grid"), sec=c.get("sec", 1), **kw)
    scale = d ** -0.5
    causal = s.get("CAUSAL", 0)
    if "lq" in c:
        cq = torch.tensor([0] + c["lq"], dtype=torch.int32).cumsum(0).int().cuda()
        ck = torch.tensor([0] + c["lk"], dtype=torch.int32).cumsum(0).int().cuda()
        tq, tk = sum(c["lq"]), sum(c["lk"])
        q, k, v = rand(tq, h, d) * gain, rand(tk, hk, d), rand(tk, hk, d)
        # A sequence without queries may hold anything.
        for i, n in enumerate(c["lq"]):
            if n == 0:
                k[int(ck[i]):int(ck[i + 1])] = float("inf")
                v[int(ck[i]):int(ck[i + 1])] = float("nan")
        o, guard = poisoned((tq, h, d), dt)
        lse, lguard = poisoned((h, tq), torch.float32)
        prep = kern.prepare(q, k, v, o, lse, scale, cu_q=cq, cu_k=ck, max_q=max(c["lq"]), max_k=max(c["lk"]), **run)
        refs = []
        for i in range(len(c["lq"])):
            a, b, e, f = int(cq[i]), int(cq[i + 1]), int(ck[i]), int(ck[i + 1])
            if b > a:
                refs.append(reference(q[a:b], k[e:f], v[e:f], scale, causal, kw["wl"], kw["wr"], kw["cap"]))
        ref = torch.cat([r for r, _ in refs])
        ref_lse = torch.cat([l for _, l in refs], 1)
    else:
        b, sq, sk = c["b"], c["sq"], c["sk"]
        lay = c.get("layout", "bshd")
        if lay == "packed":
            x = rand(b, sq, 3, h, d)
            q, k, v = x.unbind(2)
        elif lay == "bhsd":
            q, k, v = (rand(b, n, m, d).transpose(1, 2) for n, m in ((h, sq), (hk, sk), (hk, sk)))
        else:
            q, k, v = rand(b, sq, h, d), rand(b, sk, hk, d), rand(b, sk, hk, d)
        if gain != 1.0:
            q = q * gain
        if lay == "bhsd":
            o, guard = poisoned((b, h, sq, d), dt)
            o = o.transpose(1, 2)
        else:
            o, guard = poisoned((b, sq, h, d), dt)
        lse, lguard = poisoned((b, h, sq), torch.float32)
        prep = kern.prepare(q, k, v, o, lse, scale, **run)
        refs = [reference(q[i], k[i], v[i], scale, causal, kw["wl"], kw["wr"], kw["cap"]) for i in range(b)]
        ref = torch.stack([r for r, _ in refs])
        ref_lse = torch.stack([l for _, l in refs])
    torch.cuda.synchronize()
    kern.launch(prep)
    torch.cuda.synchronize()
    first = o.clone()
    r = compare(o, ref, lse, ref_lse, s.get("TYPE", 1))
    for _ in range(3):  # a moving answer is a race
        kern.launch(prep)
    torch.cuda.synchronize()
    r["same"] = bool(torch.equal(first.view(torch.int16), o.view(torch.int16))) if first.is_contiguous() else bool(torch.equal(first, o))
    r["guard"] = bool((guard == 7).all()) and bool((lguard == 7).all())
    r["sched"] = sched is None or sched.tolist() == [0, 0]
    r["ok"] = r["ok"] and r["same"] and r["guard"] and r["sched"]
    if not r["ok"]:
        r["where"] = where(o, ref, 0.05 * max(1e-6, ref.abs().max().item()))
    return r


def where(o, ref, tol):
    """Which rows, columns, heads are off, in the units a layout mistake would show."""
    import torch
    bad = ((o.double() - ref.double()).abs() > tol) | ~o.isfinite()
    if o.dim() == 3:
        bad = bad.unsqueeze(0)
    b, n, h, d = bad.shape
    rows = bad.any(3).any(2).any(0).nonzero().flatten().tolist()
    cols = bad.any(0).any(0).any(0).nonzero().flatten().tolist()
    heads = bad.any(3).any(1).nonzero().tolist()
    return (f"{int(bad.sum())} of {bad.numel()} off; rows {ranges(rows)}; row%64 {ranges(sorted({r % 64 for r in rows}))}; "
            f"columns {ranges(cols)}; (batch, head) {heads[:8]}")


def ranges(x):
    out, i = [], 0
    while i < len(x) and len(out) < 10:
        j = i
        while j + 1 < len(x) and x[j + 1] == x[j] + 1:
            j += 1
        out.append(f"{x[i]}-{x[j]}" if j > i else str(x[i]))
        i = j + 1
    return "[" + ",".join(out) + ("..." if i < len(x) else "") + "]"


def job_probe(s):
    """One tile, one block. Attention that picks one key a query, over values that name their place."""
    import torch
    kern = kernel(s)
    d, m, n = s["HEAD_DIM"], s["BLOCK_M"], s["BLOCK_N"]
    dt = torch.bfloat16
    lines = [f"probe {label(s)}: registers {kern.attribute(4)}, local {kern.attribute(3)} B"]
    ok = True
    torch.manual_seed(1)
    code = torch.randint(0, 2, (n, d), device="cuda").float() * 2 - 1
    pick = torch.randint(0, n, (m,), device="cuda")
    dims = torch.arange(d, device="cuda").float()
    keys = torch.arange(n, device="cuda").float()

    def go(q, k, v, scale):
        o, _ = poisoned((1, m, 1, d), dt)
        lse, _ = poisoned((1, 1, m), torch.float32)
        t = [x.to(dt).view(1, -1, 1, d).contiguous() for x in (q, k, v)]
        prep = kern.prepare(*t, o, lse, scale)
        kern.launch(prep)
        torch.cuda.synchronize()
        return o.view(m, d).float(), lse.view(m)

    zq = torch.zeros(m, d, device="cuda")
    def test(name, got, want, tol):
        nonlocal ok
        bad = ~((got - want).abs() <= tol)
        if not bad.any():
            lines.append(f"   ok   {name}")
            return
        ok = False
        at = bad.nonzero()
        show = [f"[{i},{j}] {got[i, j].item():g} want {want[i, j].item():g}" for i, j in at[:6].tolist()]
        lines.append(f"   BAD  {name}: {len(at)} off; rows {ranges(sorted(set(at[:, 0].tolist())))}, columns "
                     f"{ranges(sorted(set(at[:, 1].tolist())))}; " + "; ".join(show))
        for i in (0, 1, 8, 16):
            lines.append(f"        row {i}: " + " ".join(f"{x:g}" for x in got[i, :72:3].tolist()))

    # Weights all 1/n: the output product alone. Columns name themselves; then rows are averaged.
    o, lse = go(zq, code, dims[None, :].expand(n, d), 1.0)
    test("uniform weights, v = column", o, dims[None, :].expand(m, d), 1.0)
    test("uniform weights, lse = log n", lse[:, None], torch.full((m, 1), math.log(n), device="cuda"), 1e-4)
    for j in (0, 1, 8, 17, n - 1):
        v = torch.zeros(n, d, device="cuda")
        v[j] = n
        o, _ = go(zq, code, v, 1.0)
        test(f"uniform weights, only key {j} has values", o, torch.ones(m, d, device="cuda"), 0.02)
    # One key a query: K's and Q's reading, the weights' layout, exact values.
    q = code[pick]
    o, _ = go(q, code, dims[None, :].expand(n, d), 8.0)
    test("one key a query, v = column", o, dims[None, :].expand(m, d), 0)
    o, _ = go(q, code, keys[:, None].expand(n, d), 8.0)
    test("one key a query, v = key", o, pick.float()[:, None].expand(m, d), 0)
    # Scores themselves: one query dimension and one key dimension at a time.
    for c in (0, 1, 8, 17, 63, 64, d - 1):
        if c >= d:
            continue
        q, k = torch.zeros(m, d, device="cuda"), torch.zeros(n, d, device="cuda")
        q[:, c] = torch.arange(m, device="cuda") % 4 + 1.0
        k[:, c] = keys % 8 / 8
        o, lse = go(q, k, torch.randn(n, d, device="cuda"), 1.0)
        want = torch.logsumexp(q @ k.T, 1)
        test(f"lse of column {c} alone", lse[:, None], want[:, None], 1e-3)
    q, k, v = (torch.randn(r, d, device="cuda") for r in (m, n, n))
    o, lse = go(q, k, v, d ** -0.5)
    ref, rl = reference(*[x.to(dt).view(-1, 1, d) for x in (q, k, v)], d ** -0.5)
    test("random", o, ref.view(m, d).float(), 0.02)
    return dict(ok=ok, lines=lines)


def job_time(shape, s, dyn, mib, flash):
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    f = SHAPES[shape]
    b, h, n, d, causal = f["b"], f["h"], f["s"], f["d"], f["causal"]
    kern = kernel(s)
    q, k, v = (torch.randn(b, h, n, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    o = torch.full_like(q, float("nan"))
    flip = lambda t: t.transpose(1, 2)
    sched = torch.zeros(2, dtype=torch.int32, device="cuda") if dyn else None
    sec = 1 if mib == 0 else b * h if mib < 0 else max(1, (mib << 20) // (2 * n * d * 2))
    prep = kern.prepare(flip(q), flip(k), flip(v), flip(o), sched=sched, sec=sec)
    kern.launch(prep)
    torch.cuda.synchronize()
    worst, rel = 0.0, 0.0
    for i, j in ((0, 0), (b - 1, h - 1)):
        ref = torch.empty(n, d, device="cuda", dtype=torch.float32)
        part = min(n, 2048)
        for r in range(0, n, part):
            sc = (q[i, j, r:r + part].float() @ k[i, j].float().T) * d ** -0.5
            if causal:
                sc.masked_fill_(torch.arange(n, device="cuda")[None] > torch.arange(r, r + part, device="cuda")[:, None], -math.inf)
            ref[r:r + part] = torch.softmax(sc, -1) @ v[i, j].float()
        e = o[i, j].float() - ref
        worst = max(worst, e.abs().nan_to_num(1e30).max().item())
        rel = max(rel, (e.norm() / ref.norm()).nan_to_num(1e30).item())
    whole = bool(o.isfinite().all())

    def sdpa(backend):
        def go():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=bool(causal))
        return go
    sides = {"ours": lambda: kern.launch(prep)}
    for name, be in (("cudnn", SDPBackend.CUDNN_ATTENTION),) + ((("flash", SDPBackend.FLASH_ATTENTION),) if flash else ()):
        try:
            sdpa(be)()
            sides[name] = sdpa(be)
        except Exception as e:
            say(f"   {name} unavailable: {e}")
    reps = 24
    times = {x: [] for x in sides}
    for r in range(3 + reps):
        marks = []
        for x, go in sides.items():
            a, z = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            go()
            z.record()
            marks.append((x, a, z))
        torch.cuda.synchronize()
        if r >= 3:
            for x, a, z in marks:
                times[x].append(a.elapsed_time(z))
    flop = 4.0 * b * h * n * n * d * (0.5 if causal else 1.0)
    med = lambda x: sorted(x)[len(x) // 2]
    res = {x: flop / med(t) / 1e9 for x, t in times.items()}
    # Back to back, as a model would run it.
    a, z = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record()
    for _ in range(20):
        kern.launch(prep)
    z.record()
    torch.cuda.synchronize()
    return dict(ok=whole and rel < 1e-2, tflops=res, best=flop / min(times["ours"]) / 1e9, train=flop * 20 / a.elapsed_time(z) / 1e9,
                rel=rel, worst=worst, regs=kern.attribute(4), local=kern.attribute(3), sched=sched is None or sched.tolist() == [0, 0])


def fork(fn, items, limit):
    """Runs fn over items in one child; a death or a silence of `limit` seconds costs the item it was on."""
    results, i = [], 0
    while i < len(items):
        began = i
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(r)
            with os.fdopen(w, "w") as pipe:
                for x in items[i:]:
                    try:
                        y = fn(*x)
                    except Exception as e:
                        y = dict(ok=False, error=f"{type(e).__name__}: {str(e)[:300]}")
                        if os.environ.get("TRACE"):
                            traceback.print_exc()
                    pipe.write(json.dumps(y) + "\n")
                    pipe.flush()
                    if "error" in y:  # the context may be lost
                        break
            os._exit(0)
        os.close(w)
        buf = b""
        while i < len(items):
            ready, _, _ = select.select([r], [], [], limit)
            chunk = os.read(r, 1 << 16) if ready else b""
            if not chunk:
                if not ready:
                    os.kill(pid, signal.SIGKILL)
                    results.append(dict(ok=False, error=f"no answer in {limit} s"))
                    i += 1
                break
            buf += chunk
            while b"\n" in buf:
                line, buf = buf.split(b"\n", 1)
                results.append(json.loads(line))
                i += 1
        os.close(r)
        _, status = os.waitpid(pid, 0)
        if i == began:  # it died on its first item, or on the same one twice
            results.append(dict(ok=False, error=f"child ended with status {status:#x}"))
            i += 1
    return results


# ---- the run ---------------------------------------------------------------------------------------

def main():
    a = argparse.ArgumentParser()
    a.add_argument("--quick", action="store_true")
    a.add_argument("--debug", action="store_true")
    a.add_argument("--force", action="store_true", help="go on after a failed probe")
    a.add_argument("--no-cases", action="store_true")
    a.add_argument("--no-time", action="store_true")
    a.add_argument("--shape", help="time shapes whose name contains this")
    a.add_argument("--cache", default=os.path.join(HERE, "cache"))
    a.add_argument("--budget", type=float, default=170.0)
    a = a.parse_args()

    source = open(SOURCE).read()
    nvrtc = None
    todo = probes() if a.debug else harness_specs(a.quick)
    missing = []
    from compile_sm90 import key
    for s in todo:
        path = os.path.join(a.cache, key(source, s) + ".cubin")
        if os.path.exists(path):
            CUBINS[json.dumps(s, sort_keys=True)] = open(path, "rb").read()
        else:
            missing.append(s)
    if missing:
        nvrtc = find_nvrtc()
        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
            for s, (c, log) in zip(missing, pool.map(lambda s: cached(nvrtc, source, s, None), missing)):
                CUBINS[json.dumps(s, sort_keys=True)] = c
                regs, spill, warn = report(log)
                if c is None or warn or (spill and spill[1]):
                    say(f"compile {label(s)}: regs {regs}, stack/spill {spill} {warn[:4]}")
    say(f"{len(todo)} kernels, {len(missing)} compiled here, {time.time() - START:.1f} s")
    import torch
    say(f"torch {torch.__version__}, {time.time() - START:.1f} s")
    log = dict(probes=[], cases=[], times=[])

    good = 0
    for s, r in zip(probes(), [fork(job_probe, [(s,)], 60)[0] for s in (probes()[:3] if a.quick else probes())]):
        good += r["ok"]
        log["probes"].append((label(s), r))
        lines = r.get("lines") or [f"probe {label(s)}: {r.get('error')}"]
        say("\n".join(lines if a.debug or not r["ok"] else [lines[0] + ": all good"]))
    say(f"probes: {good} good, {time.time() - START:.1f} s")
    if a.debug or (good == 0 and not a.force):
        return save(log)

    fails = 0
    if not a.no_cases:
        cs = cases(a.quick)
        rs = fork(job_case, [(c,) for c in cs], 30)
        for c, r in zip(cs, rs):
            log["cases"].append((label(c["spec"]), c["name"], r))
            fails += not r["ok"]
            if not r["ok"] and fails <= 14:  # the rest is in the JSON
                say(f"FAIL {label(c['spec'])}: {c['name']}: " + (r.get("error") or
                    f"rel {r['rel']:.2e} worst {r['worst']:.2e} nonfinite {r['nonfinite']} lse {r['lse']:.2e} inf {r['inf_ok']} "
                    f"same {r['same']} guard {r['guard']} counters {r['sched']}\n     {r.get('where')}"))
        fine = [r for r in rs if r["ok"]]
        say(f"cases: {len(fine)} of {len(cs)} good; worst relative error {max([r['rel'] for r in fine] or [0]):.2e}, "
            f"lse {max([r['lse'] for r in fine] or [0]):.1e}; {time.time() - START:.1f} s")

    if not a.no_time:
        rows, seen = [], set()
        for shape, s, dyn, mib in sweep(a.quick):
            if a.shape and a.shape not in shape:
                continue
            if time.time() - START > a.budget:
                rows.append(f"{shape:12} {label(s)}: out of time")
                continue
            r = fork(job_time, [(shape, s, dyn, mib, shape not in seen)], 30)[0]
            seen.add(shape)
            log["times"].append((shape, label(s), dyn, mib, r))
            if "error" in r:
                rows.append(f"{shape:12} {label(s)} dyn{dyn} L2 {mib}: {r['error']}")
            else:
                t = r["tflops"]
                rows.append(f"{shape:12} M{s['BLOCK_M']} N{s['BLOCK_N']:<3} st{s['STAGES']} pp{s['PINGPONG']} dyn{dyn} L2 {mib:>2} | ours "
                            f"{t['ours']:6.1f} best {r['best']:6.1f} train {r['train']:6.1f} | cudnn {t.get('cudnn', 0):6.1f}"
                            + (f" flash {t['flash']:6.1f}" if "flash" in t else "") +
                            f" | rel {r['rel']:.1e} max {r['worst']:.1e} regs {r['regs']} local {r['local']} {'ok' if r['ok'] and r['sched'] else 'WRONG'}"
                            f" (bar {SHAPES[shape]['bar']})")
            say(rows[-1])
    say(f"done: {fails} cases failed, {time.time() - START:.1f} s")
    save(log)


def save(log):
    if os.environ.get("OUT"):
        with open(os.path.join(os.environ["OUT"], "harness_sm90.json"), "w") as f:
            json.dump(log, f, indent=1)


if __name__ == "__main__":
    main()
