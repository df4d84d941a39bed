"""Time the scan beside mamba_ssm's CUDA extension in one run: forward and backward, float32 and bfloat16.

    python benchmarks/cuda/upstream.py OUT.json [OUT.md]

Needs a CUDA device, triton, mamba_ops and an importable `selective_scan_cuda` (of state-spaces/mamba). Inputs: 16
states, one group, D, z, delta_bias and softplus. Prints medians in milliseconds, the ratios upstream / ours, times of
channel-last inputs and of packed sequences (mean length 1024), and the shares of two floors: the time to move every
byte once at the speed of a copy, and the time of the exponentials alone. Then the Python loop of
`mamba_ops.reference`. Writes all of it with the names of the machine and the versions; OUT.md gets the table.
"""

import json
import math
import subprocess
import sys
import time

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


def channel_last(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def packed(args, mean=1024):
    """The same tokens as one row of sequences, of lengths drawn from 1 to twice the mean."""
    length = args[0].shape[0] * args[0].shape[2]
    torch.manual_seed(1)
    bounds = torch.cat([torch.zeros(1), torch.randint(1, 2 * mean, (2 * length // mean + 2,)).cumsum(0)])
    bounds = torch.cat([bounds[bounds < length], torch.tensor([length])]).to(torch.int64).cuda()

    def row(x):
        return x.movedim(0, -2).reshape(1, *x.shape[1:-1], length).contiguous()

    u, delta, A, B, C, D, z, bias = args
    return (row(u), row(delta), A, row(B), row(C), D, row(z), bias, True, None, bounds)


def machine_limits():
    """Bytes per second of a copy; exponentials per second."""
    x, y = (torch.empty(1 << 28, device="cuda") for _ in range(2))
    bandwidth = 2 * x.nbytes / (median(lambda: y.copy_(x)) * 1e-3)
    query = ["nvidia-smi", "--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits"]
    clock = float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]) * 1e6
    return bandwidth, 16 * clock * torch.cuda.get_device_properties(0).multi_processor_count


def floors(args, limits):
    """Milliseconds below which no forward goes: memory; exponentials, N for the states, 2 for softplus and gate."""
    u, A, B = args[0], args[2], args[3]
    moved = 4 * u.nbytes + 2 * B.nbytes
    return 1e3 * moved / limits[0], 1e3 * u.numel() * (A.shape[1] + 2) / limits[1]


def python_loop(length):
    args = inputs(1, 256, length, torch.float32)
    mamba_ops.reference.selective_scan_ref(*args, True)
    torch.cuda.synchronize()
    start = time.perf_counter()
    mamba_ops.reference.selective_scan_ref(*args, True)
    torch.cuda.synchronize()
    loop, ours = 1e3 * (time.perf_counter() - start), median(lambda: torch.ops.mamba.selective_scan(*args, True))
    return dict(batch=1, dim=256, length=length, python_loop=loop, forward=ours, ratio=loop / ours)


def measure(shape, dtype, limits):
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
    last = [channel_last(x) if i in (0, 1, 6) else x for i, x in enumerate(args)]
    row["channel_last"] = median(lambda: torch.ops.mamba.selective_scan(*last, True))
    rows = packed(args)
    row["packed"] = median(lambda: torch.ops.mamba.selective_scan(*rows))
    memory, exponentials = floors(args, limits)
    row["share_of_memory_floor"], row["share_of_exponentials"] = memory / row["forward"], exponentials / row["forward"]
    row["ratio_forward"] = row["upstream_forward"] / row["forward"]
    row["ratio_backward"] = row["upstream_backward"] / row["backward"]
    return row


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def geometric_means(rows):
    for dtype in ("float32", "bfloat16"):
        for direction in ("forward", "backward"):
            ratios = [row[f"ratio_{direction}"] for row in rows if row["dtype"] == dtype]
            yield f"{dtype}, {direction}: {geometric_mean(ratios):.2f}, least {min(ratios):.2f}"


def table(rows, loops):
    """Markdown. What checkpoints, channel-last inputs and packing cost is in percent of the plain forward."""
    columns = "dtype | batch, dim, length | forward: peer | ours | ratio | checkpoints | channel-last | packed"
    columns += " | share of memory floor | of exponentials | backward: peer | ours | ratio"
    yield f"| {columns} |"
    yield "|---" * 13 + "|"
    for row in rows:
        extra = [100 * (row[x] / row["forward"] - 1) for x in ("forward_with_checkpoints", "channel_last", "packed")]
        cells = [row["dtype"], f"{row['batch']}, {row['dim']}, {row['length']}"]
        cells += [f"{row['upstream_forward']:.3f}", f"{row['forward']:.3f}", f"{row['ratio_forward']:.2f}"]
        cells += [f"{x:+.0f}%" for x in extra]
        cells += [f"{100 * row[x]:.0f}%" for x in ("share_of_memory_floor", "share_of_exponentials")]
        cells += [f"{row['upstream_backward']:.3f}", f"{row['backward']:.3f}", f"{row['ratio_backward']:.2f}"]
        yield f"| {' | '.join(cells)} |"
    yield "\nGeometric means of the ratios:\n"
    for line in geometric_means(rows):
        yield f"* {line}"
    yield "\nThe Python loop, float32, one call of each:\n"
    for loop in loops:
        size = f"{loop['batch']}, {loop['dim']}, {loop['length']}"
        yield f"* {size}: {loop['python_loop']:.0f} ms, the forward {loop['forward']:.4f} ms, ratio {loop['ratio']:.0f}"


def main():
    rows, limits = [], machine_limits()
    for dtype in (torch.float32, torch.bfloat16):
        for shape in SHAPES:
            rows.append(measure(shape, dtype, limits))
            print({name: round(x, 4) if isinstance(x, float) else x for name, x in rows[-1].items()}, flush=True)
            torch.cuda.empty_cache()
    loops = [python_loop(length) for length in (1024, 2048)]
    report = "\n".join(table(rows, loops))
    print(report)
    machine = dict(
        bytes_per_second=limits[0],
        exponentials_per_second=limits[1],
        gpu=torch.cuda.get_device_name(),
        torch=torch.__version__,
        library=mamba_ops.info(),
    )
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(dict(machine=machine, milliseconds=rows, python_loop=loops), file, indent=1, default=str)
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            file.write(report + "\n")


if __name__ == "__main__":
    main()
