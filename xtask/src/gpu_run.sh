#!/usr/bin/env bash
# Runs what `cargo xtask gpu-bundle` packed. Needs a CUDA driver; no Rust, no source.
set -euo pipefail

usage() {
    echo "usage: run test [FILTER...] | bench [FILTER] | gpu-bench [FILTER] | example NAME [ARGUMENT...]" >&2
    exit 2
}

started_in=$PWD
cd "$(dirname "$0")"
bundle=$PWD

# NVIDIA's pip wheels keep each library in a folder of its own.
wheels=$(python3 -c '
import glob, nvidia
print(":".join(lib for root in nvidia.__path__ for lib in sorted(glob.glob(root + "/*/lib"))))
' 2>/dev/null || true)
export LD_LIBRARY_PATH="${wheels:+$wheels:}/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

[ -d benches ] || tar -xzf programs.tar.gz

[ $# -gt 0 ] || usage
what=$1
shift
case $what in
test)
    exec ./cargo-nextest nextest run --archive-file tests.tar.zst --extract-to work --extract-overwrite \
        --workspace-remap work --no-fail-fast "$@"
    ;;
bench)
    for bench in benches/*; do
        echo "== ${bench#benches/}"
        "$bench" --bench "$@"
    done
    ;;
gpu-bench)
    # Only results go to standard output: `run gpu-bench >results.jsonl`.
    for bench in benches/*-gpu; do
        echo "== ${bench#benches/}" >&2
        "$bench" --bench "$@"
    done
    ;;
example)
    [ $# -gt 0 ] || usage
    name=$1
    shift
    [ -x "$bundle/examples/$name" ] || { echo "no example $name; there are:" examples/* >&2; exit 2; }
    cd "$started_in"
    exec "$bundle/examples/$name" "$@"
    ;;
*) usage ;;
esac
