#!/usr/bin/env python3
"""Compiles every option combination of forward_mma.cu and decode.cu with NVRTC, no GPU needed.

    python3 -m venv .venv && .venv/bin/pip install 'nvidia-cuda-nvrtc==13.0.*'
    .venv/bin/python crates/flashattn/tools/compile_mma.py [--quick] [--only forward|decode] [--sass OUT.cubin -DX=.. --arch A]

Prints registers, spills and stack from the ptxas log, worst per row. Exits 1 if anything fails or spills.
"""
import ctypes, glob, itertools, os, re, sys, time
from concurrent.futures import ProcessPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
KERNELS = os.path.join(HERE, "../src/kernels")
ARCHS = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100"]
SHARED_LIMIT = {"sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90a": 227, "sm_100": 227}  # KiB a block


def nvrtc():
    for p in sys.path:
        for f in glob.glob(os.path.join(p, "nvidia/cu13/lib/libnvrtc.so.13")):
            # NVRTC opens its builtins by name; loaded once here, they are found without LD_LIBRARY_PATH.
            for b in glob.glob(os.path.join(os.path.dirname(f), "libnvrtc-builtins.so.*")):
                ctypes.CDLL(b, mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(f)
    for f in glob.glob("/usr/local/cuda*/lib64/libnvrtc.so.13"):
        return ctypes.CDLL(f)
    return ctypes.CDLL("libnvrtc.so.13")


def compile_source(path, arch, defines):
    """Returns (cubin or None, log)."""
    lib = nvrtc()
    src = open(path, "rb").read()
    prog = ctypes.c_void_p()
    assert lib.nvrtcCreateProgram(ctypes.byref(prog), src, os.path.basename(path).encode(), 0, None, None) == 0
    opts = [f"--gpu-architecture={arch}", "--std=c++17", "-default-device", "--ptxas-options=-v"]
    opts += [f"-D{k}={v}" for k, v in defines.items()]
    arr = (ctypes.c_char_p * len(opts))(*[o.encode() for o in opts])
    rc = lib.nvrtcCompileProgram(prog, len(opts), arr)
    n = ctypes.c_size_t()
    lib.nvrtcGetProgramLogSize(prog, ctypes.byref(n))
    log = ctypes.create_string_buffer(n.value)
    lib.nvrtcGetProgramLog(prog, log)
    cubin = None
    if rc == 0:
        lib.nvrtcGetCUBINSize(prog, ctypes.byref(n))
        buf = ctypes.create_string_buffer(n.value)
        lib.nvrtcGetCUBIN(prog, buf)
        cubin = buf.raw
    lib.nvrtcDestroyProgram(ctypes.byref(prog))
    return cubin, log.value.decode(errors="replace")


def forward_tiles(arch, d):
    """BLOCK_M, BLOCK_N, WARPS, STAGES: the defaults written in forward_mma.cu."""
    if arch in ("sm_86", "sm_89"):
        return {64: (128, 64, 4, 2), 128: (64, 64, 4, 1), 256: (64, 32, 4, 2)}[d]
    if arch == "sm_80":
        return {64: (128, 64, 4, 2), 128: (128, 64, 4, 1), 256: (128, 64, 8, 1)}[d]
    if arch == "sm_100":
        return {64: (128, 64, 4, 2), 128: (128, 32, 4, 2), 256: (128, 64, 8, 2)}[d]
    return {64: (128, 64, 4, 2), 128: (128, 64, 4, 2), 256: (128, 64, 8, 2)}[d]


def decode_tiles(arch, d):
    """TILE, WARPS, STAGES: the defaults written in decode.cu."""
    if arch in ("sm_86", "sm_89"):
        return {64: (16, 4, 3), 128: (16, 4, 3), 256: (16, 2, 3)}[d]
    if arch == "sm_80":
        return {64: (16, 4, 4), 128: (16, 4, 2), 256: (16, 4, 2)}[d]
    return {64: (16, 4, 4), 128: (16, 4, 3), 256: (16, 4, 3)}[d]


def jobs(which, quick):
    for arch in ARCHS:
        for d, t in itertools.product((64, 128, 256), (0, 1)):
            if which in (None, "forward"):
                bm, bn, w, st = forward_tiles(arch, d)
                for causal, window, cap, varlen, lse in itertools.product((0, 1), repeat=5):
                    if quick and (t, lse) != (1, 1):  # neither changes the registers much
                        continue
                    yield "forward_mma.cu", arch, dict(
                        ATTN_HEAD_DIM=d, ATTN_TYPE=t, ATTN_CAUSAL=causal, ATTN_WINDOW=window, ATTN_SOFTCAP=cap,
                        ATTN_VARLEN=varlen, ATTN_LSE=lse, ATTN_BLOCK_M=bm, ATTN_BLOCK_N=bn, ATTN_WARPS=w, ATTN_STAGES=st)
            if which in (None, "decode") and os.path.exists(os.path.join(KERNELS, "decode.cu")):
                tile, w, st = decode_tiles(arch, d)
                for window, cap, lse in itertools.product((0, 1), repeat=3):
                    yield "decode.cu", arch, dict(
                        ATTN_HEAD_DIM=d, ATTN_TYPE=t, ATTN_WINDOW=window, ATTN_SOFTCAP=cap, ATTN_LSE=lse,
                        ATTN_TILE=tile, ATTN_WARPS=w, ATTN_STAGES=st)


def shared_bytes(file, d):
    dim = d["ATTN_HEAD_DIM"]
    if file == "forward_mma.cu":
        return 2 * dim * (d["ATTN_BLOCK_M"] + 2 * d["ATTN_STAGES"] * d["ATTN_BLOCK_N"]) + 32
    return d["ATTN_WARPS"] * d["ATTN_STAGES"] * d["ATTN_TILE"] * dim * 4


def report(log):
    """{kernel: (registers, spill bytes, stack bytes)} out of a ptxas -v log."""
    out, name = {}, None
    for line in log.splitlines():
        if m := re.search(r"(?:Function properties for|Compiling entry function '?)\s*'?(\w+)", line):
            name = m[1]
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            out.setdefault(name, [0, 0, 0])[1:] = [int(m[2]) + int(m[3]), int(m[1])]
        elif m := re.search(r"Used (\d+) registers", line):
            out.setdefault(name, [0, 0, 0])[0] = int(m[1])
    return out


def run(job):
    file, arch, defines = job
    cubin, log = compile_source(os.path.join(KERNELS, file), arch, defines)
    return job, cubin is not None, report(log), log


def main():
    args = sys.argv[1:]
    if "--sass" in args:  # one variant to a cubin, for nvdisasm
        arch = args[args.index("--arch") + 1] if "--arch" in args else "sm_90a"
        file = "decode.cu" if "decode" in args else "forward_mma.cu"
        defines = dict(a[2:].split("=") for a in args if a.startswith("-D"))
        cubin, log = compile_source(os.path.join(KERNELS, file), arch, defines)
        print(log)
        if cubin:
            open(args[args.index("--sass") + 1], "wb").write(cubin)
        return 0 if cubin else 1
    which = args[args.index("--only") + 1] if "--only" in args else None
    t0, rows, bad, count = time.time(), {}, 0, 0
    with ProcessPoolExecutor(max_workers=2) as pool:
        for (file, arch, d), ok, rep, log in pool.map(run, list(jobs(which, "--quick" in args)), chunksize=8):
            count += 1
            if not ok:
                bad += 1
                if bad < 4:
                    print("FAILED", file, arch, d, "\n", log[:3000], flush=True)
                continue
            tiles = tuple(d[k] for k in ("ATTN_BLOCK_M", "ATTN_BLOCK_N", "ATTN_TILE", "ATTN_WARPS", "ATTN_STAGES") if k in d)
            for kernel, (regs, spill, stack) in rep.items():
                key = (kernel, arch, d["ATTN_HEAD_DIM"], tiles, shared_bytes(file, d))
                r = rows.setdefault(key, [0, 999, 0, 0, 0, 0])
                r[0], r[1], r[2] = max(r[0], regs), min(r[1], regs), max(r[2], spill)
                r[3], r[4], r[5] = max(r[3], stack), r[4] + (spill > 0), r[5] + 1
                if spill and "-v" in args:
                    print("spill", spill, kernel, arch, d)
    print(f"{'kernel':26} {'arch':7} {'D':>3} {'tiles':18} {'smem KB':>7} {'regs min..max':>13} {'max spill B':>11} {'spilling':>8} {'of':>4}")
    for (kernel, arch, dim, tiles, smem), (mx, mn, spill, stack, n_spill, n) in rows.items():
        over = " OVER" if smem > SHARED_LIMIT[arch] * 1024 else ""
        bad += bool(over)
        print(f"{kernel:26} {arch:7} {dim:3} {str(tiles):18} {smem / 1024:7.0f} {f'{mn}..{mx}':>13} {spill:11} {n_spill:8} {n:4}{over}")
    spilling = sum(r[4] for r in rows.values())
    print(f"{count} compiled, {bad} failed, {spilling} spilling, {time.time() - t0:.0f} s")
    return 1 if bad or spilling else 0


if __name__ == "__main__":
    sys.exit(main())
