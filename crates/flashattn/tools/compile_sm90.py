"""Compiles forward_sm90.cu with NVRTC on a machine without a GPU and reads what ptxas says.

    python3 -m venv .venv && .venv/bin/pip install "nvidia-cuda-nvrtc==13.0.*"
    python3 compile_sm90.py [--root .venv] [--set main|all|harness] [--cache DIR] [--jobs 2] [--sass]

A row is good when nothing spills and ptxas says nothing of serialised products (C7510) or of
ignored setmaxnreg (C7508). --sass counts HGMMA, LDL and STL with cuobjdump, where one is found.
"""
import argparse, ctypes, glob, hashlib, os, re, subprocess, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "../src/kernels/forward_sm90.cu")
KEYS = ("HEAD_DIM", "TYPE", "CAUSAL", "WINDOW", "SOFTCAP", "VARLEN", "LSE", "BLOCK_M", "BLOCK_N", "STAGES", "PINGPONG")


def find_nvrtc(root=None):
    places = []
    if root:
        places += glob.glob(f"{root}/lib/python3*/site-packages/nvidia/cu13/lib/libnvrtc.so.13")
    for p in sys.path:
        places += glob.glob(f"{p}/nvidia/cu13/lib/libnvrtc.so.13") + glob.glob(f"{p}/nvidia/cuda_nvrtc/lib/libnvrtc.so.13")
    places += glob.glob("/usr/local/cuda*/lib64/libnvrtc.so.13") + ["libnvrtc.so.13", "libnvrtc.so"]
    for p in places:
        try:
            # Its companion is looked up by bare name: load it from the same folder first.
            for b in glob.glob(os.path.join(os.path.dirname(p), "libnvrtc-builtins.so.13*")):
                ctypes.CDLL(b, mode=ctypes.RTLD_GLOBAL)
            lib = ctypes.CDLL(p)
            lib.path = p
            return lib
        except OSError:
            continue
    raise SystemExit("no libnvrtc.so.13")


def options(spec):
    out = ["--gpu-architecture=sm_90a", "--std=c++17", "-default-device", "--ptxas-options=-v"]
    return out + [f"-DATTN_{k}={v}" for k, v in sorted(spec.items())]


def key(source, spec):
    return hashlib.sha256((source + "\n".join(options(spec))).encode()).hexdigest()[:20]


def compile_one(nvrtc, source, spec):
    """(cubin or None, log)"""
    prog = ctypes.c_void_p()
    opts = [o.encode() for o in options(spec)]
    arr = (ctypes.c_char_p * len(opts))(*opts)
    nvrtc.nvrtcCreateProgram(ctypes.byref(prog), source.encode(), b"forward_sm90.cu", 0, None, None)
    rc = nvrtc.nvrtcCompileProgram(prog, len(opts), arr)
    n = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(prog, ctypes.byref(n))
    log = ctypes.create_string_buffer(n.value + 1)
    nvrtc.nvrtcGetProgramLog(prog, log)
    cubin = None
    if rc == 0:
        nvrtc.nvrtcGetCUBINSize(prog, ctypes.byref(n))
        buf = ctypes.create_string_buffer(n.value)
        nvrtc.nvrtcGetCUBIN(prog, buf)
        cubin = buf.raw
    nvrtc.nvrtcDestroyProgram(ctypes.byref(prog))
    return cubin, log.value.decode(errors="replace")


def cached(nvrtc, source, spec, cache):
    path = os.path.join(cache, key(source, spec) + ".cubin") if cache else None
    if path and os.path.exists(path):
        return open(path, "rb").read(), open(path[:-6] + ".log").read()
    cubin, log = compile_one(nvrtc, source, spec)
    if path and cubin:
        os.makedirs(cache, exist_ok=True)
        with open(path[:-6] + ".log", "w") as f:
            f.write(log)
        tmp = f"{path}.{os.getpid()}"
        with open(tmp, "wb") as f:
            f.write(cubin)
        os.replace(tmp, path)
    return cubin, log


def spec(d, m, n, st=2, pp=1, **kw):
    s = dict(HEAD_DIM=d, BLOCK_M=m, BLOCK_N=n, STAGES=st, PINGPONG=pp, TYPE=1)
    s.update({k.upper(): int(v) for k, v in kw.items()})
    return s


TILES = {64: (192, 128), 128: (128, 176), 256: (128, 80)}
CAUSAL_TILES = {64: (192, 128), 128: (128, 128), 256: (128, 80)}
SOFTCAP_TILES = {64: (128, 128), 128: (128, 128), 256: (128, 80)}


def main_set():
    out = []
    for d in (64, 128, 256):
        for ty in (0, 1):
            out.append(spec(d, *TILES[d], type=ty, lse=1))
            out.append(spec(d, *CAUSAL_TILES[d], type=ty, lse=1, causal=1))
        t = CAUSAL_TILES[d]
        out.append(spec(d, *t, lse=1, window=1))
        out.append(spec(d, *t, lse=1, window=1, causal=1))
        soft = SOFTCAP_TILES[d]
        out.append(spec(d, *soft, lse=1, softcap=1, causal=1))
        out.append(spec(d, *t, lse=1, varlen=1))
        out.append(spec(d, *t, lse=1, varlen=1, causal=1))
        out.append(spec(d, *soft, lse=1, varlen=1, window=1, softcap=1, causal=1))
    return out


def all_set():
    import itertools
    out = []
    for d in (64, 128, 256):
        for ty, c, w, s, v, l in itertools.product((0, 1), repeat=6):
            t = SOFTCAP_TILES[d] if s else CAUSAL_TILES[d] if (c or w or v) else TILES[d]
            out.append(spec(d, *t, type=ty, causal=c, window=w, softcap=s, varlen=v, lse=l))
    return out


def label(s):
    flags = "".join(c for k, c in (("CAUSAL", "c"), ("WINDOW", "w"), ("SOFTCAP", "s"), ("VARLEN", "v"), ("LSE", "l")) if s.get(k))
    flags += "!" if "WATCHDOG" in s else ""
    return f"d{s['HEAD_DIM']} {'bf16' if s.get('TYPE', 1) else 'f16 '} M{s['BLOCK_M']} N{s['BLOCK_N']} st{s['STAGES']} pp{s['PINGPONG']} {flags or '-'}"


def report(log):
    regs = re.search(r"Used (\d+) registers", log)
    spill = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    warn = [l for l in log.splitlines() if re.search(r"C75\d\d|arning|rror|serializ", l)]
    return (int(regs.group(1)) if regs else None), (tuple(map(int, spill.groups())) if spill else None), warn


def sass(cubin, tool):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin)
        f.flush()
        text = subprocess.run([tool, "--dump-sass", f.name], capture_output=True, text=True).stdout
    out = {w: len(re.findall(rf"\b{w}\b", text)) for w in ("HGMMA", "LDL", "STL")}
    # Exponentials between the wait for scores and the wait for the output: what each step's loop hides.
    hidden, n = [], None
    for line in text.splitlines():
        if "WARPGROUP.DEPBAR.LE gsb0, 0x1" in line:
            n = 0
        elif "WARPGROUP.DEPBAR.LE gsb0, 0x0" in line:
            if n is not None:
                hidden.append(n)
            n = None
        elif n is not None and "MUFU.EX2" in line:
            n += 1
    out["hidden"] = hidden
    return out


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--root", default=".venv")
    a.add_argument("--set", default="main")
    a.add_argument("--cache")
    a.add_argument("--jobs", type=int, default=2)
    a.add_argument("--sass", action="store_true")
    a.add_argument("--log", action="store_true")
    a.add_argument("--only", help="python expression over d, m, n, causal... e.g. 'spec(128,128,176)'", action="append")
    a = a.parse_args()
    nvrtc = find_nvrtc(a.root)
    source = open(SOURCE).read()
    if a.set == "harness":
        from harness_sm90 import harness_specs
        specs = harness_specs()
    else:
        specs = [eval(x) for x in a.only] if a.only else all_set() if a.set == "all" else main_set()
    tool = next(iter(glob.glob(".venv/lib/python3*/site-packages/nvidia/cu13/bin/cuobjdump")), None)
    bad = 0
    def work(s):
        t = time.time()
        c, log = cached(nvrtc, source, s, a.cache)
        return s, c, log, time.time() - t
    with ThreadPoolExecutor(a.jobs) as pool:
        for s, cubin, log, sec in pool.map(work, specs):
            regs, spill, warn = report(log)
            ok = cubin and spill and spill[1] == spill[2] == 0 and not warn
            bad += not ok
            extra = sass(cubin, tool) if (a.sass and cubin and tool) else ""
            print(f"{'ok ' if ok else 'BAD'} {label(s):44} regs {regs} stack/spill {spill} {sec:.1f}s {extra}", flush=True)
            for w in warn[:12]:
                print("     ", w[:300])
            if a.log:
                print(log)
    print(f"{len(specs)} compiled, {bad} bad")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
