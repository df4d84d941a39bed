"""Time one decoding step beside mamba_ssm's Triton kernel and a copy of the same bytes, all in one run.

    python benchmarks/cuda/decode.py OUT.json

Needs a CUDA device, triton, mamba_ops, and mamba_ssm.ops.triton.selective_state_update of state-spaces/mamba on the
path. D, z, dt_bias and softplus are on.

Graph: microseconds of a call, of many captured in one graph. "cold" works through copies of the tensors that together
are far larger than the L2 cache; "warm" repeats one call. The copy moves the bytes that a step reads and writes, within
tensors of its own, in the same cache state. Eager: microseconds between calls as the host issues them.
"""

import json
import math
import statistics
import sys
import time

import mamba_ops
import torch

L2_MULTIPLE = 4
# batch, channels (dim, or heads and head_dim), dstate
SHAPES = [
    (1, (1536,), 16),
    (1, (5120,), 16),
    (8, (5120,), 16),
    (64, (5120,), 16),
    (256, (5120,), 16),
    (1, (80, 64), 128),
    (64, (80, 64), 128),
]


def inputs(batch, channels, dstate, dtype, state_dtype, slots=None):
    def normal(*shape, dtype=torch.float32):
        return torch.randn(shape, device="cuda").to(dtype)

    A = -torch.rand(*channels, dstate, device="cuda") - 0.5
    D, bias = normal(*channels), normal(*channels)
    dt = normal(batch, *channels, dtype=dtype)
    if len(channels) == 2:  # as Mamba-2 has them: a rate and a step size for each head
        A = A[:, :1, :1].expand(*channels, dstate)
        D, bias, dt = (x[..., :1].expand(x.shape) for x in (D, bias, dt))
    x, z = normal(batch, *channels, dtype=dtype), normal(batch, *channels, dtype=dtype)
    B, C = normal(batch, 1, dstate, dtype=dtype), normal(batch, 1, dstate, dtype=dtype)
    state = normal(slots or batch, *channels, dstate, dtype=state_dtype)
    made = dict(state=state, x=x, dt=dt, A=A, B=B, C=C, D=D, z=z, dt_bias=bias, dt_softplus=True)
    if slots:
        made["state_batch_indices"] = torch.randperm(slots, device="cuda")[:batch].to(torch.int32)
    return made


def upstream_step():
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    return selective_state_update


def bytes_of(call):
    """What a step must read, and write."""
    rows = call["x"].shape[0]
    state = call["state"][0].numel() * rows * call["state"].element_size()
    others = [x for name, x in call.items() if isinstance(x, torch.Tensor) and name != "state"]
    distinct = [math.prod(n for n, stride in zip(x.shape, x.stride()) if stride) * x.element_size() for x in others]
    read = state + sum(distinct)
    return read, state + call["x"].numel() * call["x"].element_size()


def graph_time(function, calls, repeats):
    """Microseconds of one call, the calls taken in turn."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            function(call)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in calls:
                function(call)
    times = []
    for _ in range(12):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / (repeats * len(calls)))
    return statistics.median(times[2:])


def eager_time(function, number=300):
    times = []
    for _ in range(15):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(number):
            function()
        times.append((time.perf_counter() - start) * 1e6 / number)
    torch.cuda.synchronize()
    return statistics.median(times[3:])


def copies(read, written):
    half = (read + written) // 8
    return dict(source=torch.randn(half, device="cuda"), target=torch.empty(half, device="cuda"))


def measure(shape, dtype, state_dtype, slots, upstream):
    batch, channels, dstate = shape
    call = inputs(*shape, dtype, state_dtype, slots)
    read, written = bytes_of(call)
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    count = min(400, max(2, -(-L2_MULTIPLE * l2 // read)))
    cold = [call] + [inputs(*shape, dtype, state_dtype, slots) for _ in range(count - 1)]
    cold_copies = [copies(read, written) for _ in range(count)]

    row = dict(batch=batch, channels=channels, dstate=dstate, dtype=str(dtype)[6:], state=str(state_dtype)[6:])
    row.update(slots=slots, bytes=read + written)
    ours, theirs = dict(call, state=call["state"].clone()), dict(call, state=call["state"].clone())
    difference = mamba_ops.selective_state_update(**ours).float() - upstream(**theirs).float()
    row["largest_difference"] = difference.abs().max().item()
    functions = dict(
        ours=lambda x: torch.ops.mamba.selective_state_update(**x),
        triton=lambda x: upstream(**x),
        copy=lambda x: x["target"].copy_(x["source"]),
    )
    for name, function in functions.items():
        tensors = cold_copies if name == "copy" else cold
        row[f"{name}_cold"] = graph_time(function, tensors, max(1, 40 // count))
        row[f"{name}_warm"] = graph_time(function, tensors[:1], 40)
    for state in ("cold", "warm"):
        row[f"ratio_{state}"] = row[f"ours_{state}"] / row[f"triton_{state}"]
        row[f"share_of_copy_{state}"] = row[f"copy_{state}"] / row[f"ours_{state}"]
    return row


def measure_eager(upstream):
    call = inputs(1, (5120,), 16, torch.float32, torch.float32)
    args = tuple(call.values())
    packet, overload = torch.ops.mamba.selective_state_update, torch.ops.mamba.selective_state_update.default
    return dict(
        operator=eager_time(lambda: packet(*args)),
        overload=eager_time(lambda: overload(*args)),
        wrapper=eager_time(lambda: mamba_ops.selective_state_update(*args)),
        triton=eager_time(lambda: upstream(*args)),
        empty_like=eager_time(lambda: torch.empty_like(args[1])),
        add=eager_time(lambda: args[1].add_(1)),
    )


def main():
    rows, upstream = [], upstream_step()
    torch.manual_seed(0)
    half = torch.bfloat16
    with torch.no_grad():
        for shape in SHAPES:
            for dtype, state_dtype in ((torch.float32, torch.float32), (half, torch.float32), (half, half)):
                for slots in (None, 2 * shape[0]):
                    if slots and dtype is not half:
                        continue
                    rows.append(measure(shape, dtype, state_dtype, slots, upstream))
                    print({k: round(x, 3) if isinstance(x, float) else x for k, x in rows[-1].items()}, flush=True)
                    torch.cuda.empty_cache()
        eager = measure_eager(upstream)
    print("eager, (1, 5120, 16) float32:", {name: round(x, 2) for name, x in eager.items()})
    machine = dict(gpu=torch.cuda.get_device_name(), torch=torch.__version__, library=mamba_ops.info())
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(dict(machine=machine, microseconds=rows, eager_microseconds=eager), file, indent=1, default=str)


if __name__ == "__main__":
    main()
