"""Time the causal convolution beside a copy of the same bytes in the same run, and beside PyTorch's own convolution.

    python benchmarks/cuda/conv.py OUT.json [TABLES.md]

Needs a CUDA device, triton and mamba_ops. Four taps, a bias; silu and initial states where a row says so. Milliseconds,
medians of triton's do_bench, which flushes the L2 cache before each call. Bytes: what must be read and written once (x
and out; the backward: x, dout and dx). The copy moves as many within tensors of its own. The step is timed in a CUDA
graph, the cache warm.
"""

import json
import sys

import mamba_ops
import torch
import torch.nn.functional as F
from decode import graph_time
from triton.testing import do_bench

SHAPES = [(8, 2048, 2048), (1, 5120, 4096)]
STEPS = [(1, 5120), (64, 5120), (256, 5120)]
conv, backward = torch.ops.mamba.causal_conv1d, torch.ops.mamba._causal_conv1d_bwd


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, device="cuda").to(dtype)


def median(call):
    return do_bench(call, warmup=10, rep=40, return_mode="median")


def copy_time(count):
    source, target = torch.randn(count // 8, device="cuda"), torch.empty(count // 8, device="cuda")
    return median(lambda: target.copy_(source))


def measure(shape, dtype, layout, silu, packed=False):
    batch, dim, length = shape
    if layout == "channels":
        x, dout = (normal(batch, length, dim, dtype=dtype).transpose(1, 2) for _ in range(2))
    else:
        x, dout = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype)
    weight, bias = normal(dim, 4), normal(dim)
    bounds, state = None, None
    if packed:
        bounds = torch.tensor([*range(0, length, 700), length], device="cuda")
        state = normal(len(bounds) - 1, dim, 3, dtype=dtype)
    copies = [copy_time(count * x.numel() * x.element_size()) for count in (2, 3)]
    row = dict(batch=batch, dim=dim, length=length, dtype=str(dtype)[6:], contiguous=layout, silu=silu, packed=packed)
    row["forward"] = median(lambda: conv(x, weight, bias, state, bounds, silu))
    mask = [True] * 3 + [packed]
    row["backward"] = median(lambda: backward(dout, None, x, weight, bias, state, bounds, silu, mask))
    if not packed:
        kernel, bias_of_type = weight.to(dtype).unsqueeze(1), bias.to(dtype)

        def pytorch():
            out = F.conv1d(x, kernel, bias_of_type, padding=3, groups=dim)[..., :length]
            return F.silu(out) if silu else out

        row["pytorch_forward"] = median(pytorch)
    row["copy_forward"], row["copy_backward"] = copies
    row["share_forward"], row["share_backward"] = copies[0] / row["forward"], copies[1] / row["backward"]
    return row


def measure_step(batch, dim, dtype):
    made = [(normal(batch, dim, 3, dtype=dtype), normal(batch, dim, dtype=dtype)) for _ in range(2)]
    weight, bias = normal(dim, 4), normal(dim)
    moved = made[0][0].nbytes * 2 + made[0][1].nbytes * 2
    copied = dict(source=normal(moved // 8), target=normal(moved // 8))
    row = dict(batch=batch, dim=dim, dtype=str(dtype)[6:])
    row["step"] = graph_time(lambda call: torch.ops.mamba.causal_conv1d_update(*call, weight, bias, True), made[:1], 40)
    row["copy"] = graph_time(lambda call: call["target"].copy_(call["source"]), [copied], 40)
    return row


def tables(rows, steps):
    """Markdown, in microseconds; shares are the copy's time over ours."""
    columns = "batch, dim, length | x | contiguous | silu | packed | forward | share of copy | PyTorch forward"
    yield f"| {columns} | backward | share of copy |"
    yield "|---" * 10 + "|"
    for row in rows:
        cells = [f"{row['batch']}, {row['dim']}, {row['length']}", row["dtype"], row["contiguous"]]
        cells += ["yes" if row[flag] else "no" for flag in ("silu", "packed")]
        cells += [f"{1e3 * row['forward']:.0f}", f"{row['share_forward']:.2f}"]
        cells += [f"{1e3 * row['pytorch_forward']:.0f}" if "pytorch_forward" in row else "-"]
        cells += [f"{1e3 * row['backward']:.0f}", f"{row['share_backward']:.2f}"]
        yield f"| {' | '.join(cells)} |"
    yield "\n| rows, dim | x | step | copy |\n|---|---|---|---|"
    for row in steps:
        yield f"| {row['batch']}, {row['dim']} | {row['dtype']} | {row['step']:.2f} | {row['copy']:.2f} |"


def main():
    torch.manual_seed(0)
    rows, steps = [], []
    with torch.no_grad():
        for shape in SHAPES:
            for dtype in (torch.float32, torch.bfloat16):
                for layout in ("time", "channels"):
                    for silu, packed in ((True, False), (False, False), (True, True)):
                        if packed and shape[0] > 1:
                            continue
                        rows.append(measure(shape, dtype, layout, silu, packed))
                        print({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
        for batch, dim in STEPS:
            for dtype in (torch.float32, torch.bfloat16):
                steps.append(measure_step(batch, dim, dtype))
                print({k: round(v, 3) if isinstance(v, float) else v for k, v in steps[-1].items()}, flush=True)
    machine = dict(gpu=torch.cuda.get_device_name(), torch=torch.__version__, library=mamba_ops.info())
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(dict(machine=machine, milliseconds=rows, step_microseconds=steps), file, indent=1, default=str)
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            file.write("\n".join(tables(rows, steps)) + "\n")


if __name__ == "__main__":
    main()
