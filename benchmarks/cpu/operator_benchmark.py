"""The operators on the CPU, beside a scalar C++ loop and the Python loop of mamba_ops.reference, in one run.

python benchmarks/cpu/operator_benchmark.py [--json FILE]    with mamba_ops importable and a C++ compiler

Times are medians of blocked_autorange. MAMBA_OPS_CPU chooses the ISA level, as always.
"""

import argparse
import ctypes
import json
import os
import platform
import subprocess
import tempfile
from pathlib import Path

import mamba_ops
import torch
from torch.utils.benchmark import Timer

HERE = Path(__file__).parent
FORWARD = ("dim", "length", "dstate", "u", "delta", "A", "B", "C", "D", "z", "delta_bias", "out", "state")
UPDATE = ("dim", "dstate", "state", "x", "dt", "A", "B", "C", "D", "z", "dt_bias", "out")


def scalar_library():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scalar.so"
        compiler = os.environ.get("CXX", "c++")
        command = [compiler, "-std=c++17", "-O3", "-shared", "-fPIC", str(HERE / "scalar.cpp"), "-o", str(path)]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(path))


def struct_of(names, values):
    """What a C++ struct of those members holds: sizes, then pointers."""
    fields = [(name, ctypes.c_int64 if isinstance(values[name], int) else ctypes.c_void_p) for name in names]
    kind = type("Struct", (ctypes.Structure,), {"_fields_": fields})
    return kind(**{name: x if isinstance(x, int) else x.data_ptr() for name, x in values.items() if name in names})


def scan_inputs(batch, dim, length, dstate, dtype=torch.float32):
    """Like a trained model's: steps around 0.02, A = -1 ... -dstate."""
    torch.manual_seed(0)
    activations = {name: torch.randn(batch, dim, length) for name in ("u", "z")}
    activations["delta"] = 0.5 * torch.randn(batch, dim, length)
    activations.update(B=torch.randn(batch, dstate, length), C=torch.randn(batch, dstate, length))
    inputs = {name: x.to(dtype) for name, x in activations.items()}
    inputs.update(A=-torch.arange(1.0, dstate + 1).repeat(dim, 1), D=torch.randn(dim))
    return dict(inputs, delta_bias=-4 + 0.7 * torch.randn(dim), delta_softplus=True)


def seconds(function, threads=1):
    return Timer("f()", globals={"f": function}, num_threads=threads).blocked_autorange(min_run_time=1.0).median


def time_scan(scalar, size, results):
    batch, dim, length, dstate = size
    inputs = scan_inputs(*size)
    scan = torch.ops.mamba.selective_scan
    times = {"forward": seconds(lambda: scan(**inputs))}
    times["forward, 2 threads"] = seconds(lambda: scan(**inputs), threads=2)
    halves = scan_inputs(*size, dtype=torch.bfloat16)
    times["forward, bfloat16"] = seconds(lambda: scan(**halves))
    leaves = {name: x.requires_grad_() if isinstance(x, torch.Tensor) else x for name, x in scan_inputs(*size).items()}
    wanted = [x for x in leaves.values() if isinstance(x, torch.Tensor)]
    out = scan(**leaves)
    weight = torch.randn_like(out)
    for threads in (1, 2):
        backward = seconds(lambda: torch.autograd.grad(out, wanted, weight, retain_graph=True), threads)
        times["backward" if threads == 1 else "backward, 2 threads"] = backward
    loop = dict(inputs, dim=dim, length=length, dstate=dstate, out=torch.empty_like(inputs["u"]))
    loop.update(state=torch.empty(dim, dstate))
    if batch == 1:
        problem = struct_of(FORWARD, loop)
        times["scalar C++ loop"] = seconds(lambda: scalar.scalar_forward(ctypes.byref(problem)))
    if dim <= 256:
        times["Python loop"] = seconds(lambda: mamba_ops.reference.selective_scan_ref(**inputs))
    results.append({"size": size, "seconds": times})


def time_update(scalar, dim, dstate, results):
    torch.manual_seed(0)
    inputs = dict(state=torch.randn(1, dim, dstate), x=torch.randn(1, dim), dt=0.5 * torch.randn(1, dim),
                  A=-torch.arange(1.0, dstate + 1).repeat(dim, 1), B=torch.randn(1, dstate), C=torch.randn(1, dstate),
                  D=torch.randn(dim), z=torch.randn(1, dim), dt_bias=-4 + 0.7 * torch.randn(dim))  # fmt: skip
    update = torch.ops.mamba.selective_state_update
    loop = struct_of(UPDATE, dict(inputs, dim=dim, dstate=dstate, out=torch.empty(1, dim)))
    times = {
        "step": seconds(lambda: update(**inputs, dt_softplus=True)),
        "scalar C++ loop": seconds(lambda: scalar.scalar_update(ctypes.byref(loop))),
    }
    results.append({"size": [1, dim, dstate], "seconds": times})


def cpu_name():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.processor())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    scalar, results = scalar_library(), []
    for size in ((1, 1536, 2048, 16), (1, 256, 1024, 16), (1, 256, 2048, 16), (1, 32, 8192, 16), (8, 256, 256, 16)):
        time_scan(scalar, size, results)
    time_update(scalar, 5120, 16, results)
    for result in results:
        print(*result["size"])
        for name, time in result["seconds"].items():
            print(f"  {name:24} {1e3 * time:10.3f} ms")
    report = dict(cpu=cpu_name(), cpus=os.cpu_count(), torch=torch.__version__, results=results)
    report.update(level=os.environ.get("MAMBA_OPS_CPU", "the highest"))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
