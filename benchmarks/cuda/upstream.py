"""Time the scan beside mamba_ssm's CUDA extension in one run: forward and backward, float32 and bfloat16.

    python benchmarks/cuda/upstream.py OUT.json

Needs a CUDA device, triton, mamba_ops and an importable `selective_scan_cuda` (of state-spaces/mamba). Inputs: 16
states, one group, D, z, delta_bias and softplus. Prints medians in milliseconds and the ratios upstream / ours, writes
them with the names of the machine and the versions.
"""

import json
import math
import sys

import mamba_ops
import selective_scan_cuda
import torch
from triton.testing import do_bench

SHAPES = [
    (8, 2048, 2048),
    (1, 1536, 8192),
    (1, 5120, 2048),
    (64, 384, 256),
    (1, 8192, 4096),
    (1, 2048, 512),
    (128, 768, 256),
    (1, 1536, 131072),
]


def inputs(batch, dim, length, dtype, dstate=16):
    def normal(*shape):
        return torch.randn(shape, device="cuda")

    torch.manual_seed(0)
    A = -torch.arange(1, dstate + 1, device="cuda").float().repeat(dim, 1) * torch.exp(0.1 * normal(dim, dstate))
    delta = (0.5 * torch.rand(batch, dim, length, device="cuda") - 4).to(dtype)
    u, z = normal(batch, dim, length).to(dtype), normal(batch, dim, length).to(dtype)
    B, C = normal(batch, 1, dstate, length).to(dtype), normal(batch, 1, dstate, length).to(dtype)
    return u, delta, A, B, C, normal(dim), z, 0.5 * torch.rand(dim, device="cuda")


def median(call):
    return do_bench(call, warmup=20, rep=120, return_mode="median")


def measure(shape, dtype):
    args = inputs(*shape, dtype)
    out, states, gated = selective_scan_cuda.fwd(*args, True)[:3]
    mine, _, checkpoints = torch.ops.mamba._selective_scan_fwd(*args, True)
    dout, mask = torch.randn_like(mine), [True] * 8 + [False]
    row = dict(dtype=str(dtype)[6:], batch=shape[0], dim=shape[1], length=shape[2])
    row["largest_difference"] = (mine.float() - gated.float()).abs().max().item()
    row["upstream_forward"] = median(lambda: selective_scan_cuda.fwd(*args, True))
    row["forward"] = median(lambda: torch.ops.mamba.selective_scan(*args, True))
    row["forward_with_checkpoints"] = median(lambda: torch.ops.mamba._selective_scan_fwd(*args, True))
    row["upstream_backward"] = median(lambda: selective_scan_cuda.bwd(*args, dout, states, out, None, True, False))
    row["backward"] = median(
        lambda: torch.ops.mamba._selective_scan_bwd(dout, None, *args, True, None, None, False, checkpoints, mask)
    )
    row["ratio_forward"] = row["upstream_forward"] / row["forward"]
    row["ratio_backward"] = row["upstream_backward"] / row["backward"]
    return row


def main():
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for shape in SHAPES:
            rows.append(measure(shape, dtype))
            print({name: round(x, 4) if isinstance(x, float) else x for name, x in rows[-1].items()}, flush=True)
            torch.cuda.empty_cache()
        for what in ("ratio_forward", "ratio_backward"):
            logs = [math.log(row[what]) for row in rows if row["dtype"] == str(dtype)[6:]]
            print(f"{dtype} {what}: geometric mean {math.exp(sum(logs) / len(logs)):.2f}")
    machine = dict(gpu=torch.cuda.get_device_name(), torch=torch.__version__, library=mamba_ops.info())
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(dict(machine=machine, milliseconds=rows), file, indent=1, default=str)


if __name__ == "__main__":
    main()
