"""Writes torch_attention.safetensors: attention as PyTorch computes it, in float64 from bf16 inputs.

    python3 torch_attention.py [torch_attention.safetensors]

Each case has q, k, v [batch, seq, heads, head_dim] in bf16, o (float64 arithmetic by
torch.nn.functional.scaled_dot_product_attention's math backend, stored as f32), and flash: the same from
PyTorch's FLASH_ATTENTION backend on a GPU, in bf16.
"""
import json, struct, sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

CASES = {
    "full_64": dict(b=1, sq=70, sk=70, hq=2, hk=2, d=64, causal=False),
    "causal_64": dict(b=2, sq=65, sk=65, hq=1, hk=1, d=64, causal=True),
    "full_128": dict(b=1, sq=33, sk=90, hq=2, hk=2, d=128, causal=False),
    "causal_128": dict(b=1, sq=80, sk=80, hq=4, hk=2, d=128, causal=True),
    "full_256": dict(b=1, sq=20, sk=40, hq=1, hk=1, d=256, causal=False),
}
NAMES = {torch.bfloat16: "BF16", torch.float32: "F32"}


def main(path):
    torch.manual_seed(0)
    tensors = {}
    for name, c in CASES.items():
        q = torch.randn(c["b"], c["sq"], c["hq"], c["d"]).bfloat16()
        k, v = (torch.randn(c["b"], c["sk"], c["hk"], c["d"]).bfloat16() for _ in range(2))
        heads_first = [x.transpose(1, 2) for x in (q, k, v)]
        how = dict(is_causal=c["causal"], enable_gqa=c["hq"] != c["hk"])
        with sdpa_kernel(SDPBackend.MATH):
            o = F.scaled_dot_product_attention(*(x.double() for x in heads_first), **how)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            flash = F.scaled_dot_product_attention(*(x.cuda() for x in heads_first), **how)
        tensors |= {f"{name}.q": q, f"{name}.k": k, f"{name}.v": v}
        tensors[f"{name}.o"] = o.float().transpose(1, 2)
        tensors[f"{name}.flash"] = flash.cpu().transpose(1, 2)
    header, data = {"__metadata__": {"torch": torch.__version__}}, b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = dict(dtype=NAMES[tensor.dtype], shape=list(tensor.shape), data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


main(sys.argv[1] if len(sys.argv) > 1 else "torch_attention.safetensors")
