#!/usr/bin/env python3
"""Builds and runs the CPU emulation (emulate.h) of the kernels over option combinations: emulate.py forward|decode [n]"""
import itertools, os, random, re, subprocess, sys, tempfile
HERE = os.path.dirname(os.path.abspath(__file__))
KERNELS = os.environ.get("KERNELS") or os.path.join(HERE, "../src/kernels")


def emulate(file, main, defines):
    src = open(os.path.join(KERNELS, file)).read()
    a, b = src.index("// ---- instructions"), src.index("// ---- tiles")
    with tempfile.TemporaryDirectory() as d:
        open(os.path.join(d, "kernel.inc"), "w").write(src[:a] + src[b:])
        exe = os.path.join(d, "emu")
        cmd = ["g++", "-O2", "-std=c++20", "-w", "-I", d, "-I", HERE, os.path.join(HERE, main), "-o", exe]
        r = subprocess.run(cmd + [f"-D{k}={v}" for k, v in defines.items()], capture_output=True, text=True)
        if r.returncode:
            return r.returncode, r.stderr[:3000]
        try:
            r = subprocess.run([exe], capture_output=True, text=True, timeout=600)
        except subprocess.TimeoutExpired:
            return 99, "timeout"
        return r.returncode, r.stdout + r.stderr


def main():
    which, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 12
    rnd = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 3)
    if which == "forward":
        tiles = {64: [(128, 64, 4, 2), (64, 64, 4, 2), (128, 64, 4, 1)], 128: [(128, 64, 4, 2), (128, 32, 4, 1), (64, 64, 4, 2), (128, 64, 8, 2)],
                 256: [(128, 64, 8, 1), (64, 32, 4, 2), (128, 64, 8, 2)]}
        combos = [dict(ATTN_HEAD_DIM=d, ATTN_TYPE=t, ATTN_CAUSAL=c, ATTN_WINDOW=w, ATTN_SOFTCAP=s, ATTN_VARLEN=v, ATTN_LSE=1,
                       ATTN_BLOCK_M=m[0], ATTN_BLOCK_N=m[1], ATTN_WARPS=m[2], ATTN_STAGES=m[3])
                  for d in tiles for m in tiles[d] for t, c, w, s, v in itertools.product((0, 1), repeat=5)]
        file, main = "forward_mma.cu", "emulate_forward.cpp"
    else:
        tiles = {64: [(16, 4, 3), (32, 4, 2)], 128: [(16, 4, 3), (32, 2, 3), (16, 8, 2)], 256: [(16, 4, 2), (16, 2, 3)]}
        combos = [dict(ATTN_HEAD_DIM=d, ATTN_TYPE=t, ATTN_WINDOW=w, ATTN_SOFTCAP=s, ATTN_LSE=1, ATTN_TILE=m[0], ATTN_WARPS=m[1], ATTN_STAGES=m[2])
                  for d in tiles for m in tiles[d] for t, w, s in itertools.product((0, 1), repeat=3)]
        file, main = "decode.cu", "emulate_decode.cpp"
    rnd.shuffle(combos)
    bad = 0
    for c in combos[:n]:
        rc, out = emulate(file, main, c)
        bad += rc != 0
        print("PASS" if rc == 0 else f"FAIL rc={rc}", " ".join(f"{k[5:]}={v}" for k, v in c.items()), flush=True)
        worst = max(re.findall(r"err ([\d.e+-]+)", out) or ["?"], key=lambda x: float(x) if x != "?" else 0)
        print("     worst err", worst) if rc == 0 else print(out)
    print(bad, "failed of", min(n, len(combos)))
    return bad != 0


sys.exit(main())
