"""The operators on the CPU beside other ways to compute the same, at the ISA level of this process: JSON on stdout.

python benchmarks/cpu/operator_benchmark.py LIBRARY [--peers]    with mamba_ops importable

LIBRARY is libscalar_loops.so of the build folder's benchmarks/. Peers: a scalar C++ loop, the Python loop of
mamba_ops.reference, and the scan in tensor operators of transformers, where that is installed and has it as a function.
Times are in seconds, on one thread unless the name says otherwise; medians over rounds.
"""

import argparse
import ctypes
import importlib
import json
import statistics
import sys

import mamba_ops
import torch
from torch.utils.benchmark import Timer

FORWARD = ("dim", "length", "dstate", "u", "delta", "A", "B", "C", "D", "z", "delta_bias", "out", "state")
UPDATE = ("dim", "dstate", "state", "x", "dt", "A", "B", "C", "D", "z", "dt_bias", "out")

# (batch, dim, length, dstate) and (rows, dim, dstate).
SIZES = ((1, 1536, 2048, 16), (1, 256, 1024, 16), (1, 256, 2048, 16), (1, 32, 8192, 16), (8, 256, 256, 16))
STEPS = ((1, 5120, 16), (16, 5120, 16))


class Scalar:
    """A scalar loop and the memory that it works on."""

    def __init__(self, function, names, values):
        self.values = {name: values[name] for name in names}
        fields = [(name, ctypes.c_int64 if isinstance(x, int) else ctypes.c_void_p) for name, x in self.values.items()]
        kind = type("Struct", (ctypes.Structure,), {"_fields_": fields})
        numbers = {name: x if isinstance(x, int) else x.data_ptr() for name, x in self.values.items()}
        self.function, self.struct = function, kind(**numbers)

    def __call__(self):
        self.function(ctypes.byref(self.struct))


def scan_inputs(batch, dim, length, dstate, dtype=torch.float32):
    """Like a trained model's: steps around 0.02, A = -1 ... -dstate."""
    torch.manual_seed(0)
    activations = {name: torch.randn(batch, dim, length) for name in ("u", "z")}
    activations["delta"] = 0.5 * torch.randn(batch, dim, length)
    activations.update(B=torch.randn(batch, dstate, length), C=torch.randn(batch, dstate, length))
    inputs = {name: x.to(dtype) for name, x in activations.items()}
    inputs.update(A=-torch.arange(1.0, dstate + 1).repeat(dim, 1), D=torch.randn(dim))
    return dict(inputs, delta_bias=-4 + 0.7 * torch.randn(dim), delta_softplus=True)


def channel_last(inputs):
    """The same, with activations as they come from a (batch, length, features) tensor."""
    names = ("u", "delta", "z", "B", "C")
    return dict(inputs, **{x: inputs[x].transpose(1, 2).contiguous().transpose(1, 2) for x in names})


def step_inputs(rows, dim, dstate):
    torch.manual_seed(0)
    inputs = {name: torch.randn(rows, dim) for name in ("x", "z")}
    inputs.update(state=torch.randn(rows, dim, dstate), dt=0.5 * torch.randn(rows, dim))
    inputs.update(A=-torch.arange(1.0, dstate + 1).repeat(dim, 1), B=torch.randn(rows, dstate))
    return dict(inputs, C=torch.randn(rows, dstate), D=torch.randn(dim), dt_bias=-4 + 0.7 * torch.randn(dim))


def transformers_function(name):
    try:
        return getattr(importlib.import_module("transformers.models.mamba.modeling_mamba"), name, None)
    except ImportError:
        return None


class Clock:
    """Times functions in turn, round after round, so that a slow spell of the machine meets all of them."""

    ROUNDS = 7

    def __init__(self, least):
        self.least = least  # seconds for each function, all rounds together

    def __call__(self, functions):
        timers = {name: Timer("f()", globals={"f": f}, num_threads=threads_of(name)) for name, f in functions.items()}
        first = {name: timer.timeit(1).median for name, timer in timers.items()}
        rounds = {name: [] for name in timers}
        for i in range(self.ROUNDS):
            for name, timer in timers.items():
                if i == 0 or first[name] < self.least:
                    count = max(1, round(self.least / self.ROUNDS / first[name]))
                    rounds[name].append(timer.timeit(count).median)
        return {"seconds": {name: statistics.median(x) for name, x in rounds.items()}, "rounds": rounds}


def threads_of(name):
    return 2 if name.endswith("2 threads") else 1


def backward_functions(inputs):
    leaves = {name: x.requires_grad_() if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
    wanted = [x for x in leaves.values() if isinstance(x, torch.Tensor)]
    out = torch.ops.mamba.selective_scan(**leaves)
    weight = torch.randn_like(out)

    def backward():
        return torch.autograd.grad(out, wanted, weight, retain_graph=True)

    return {
        "forward for training": lambda: torch.ops.mamba.selective_scan(**leaves),
        "backward": backward,
        "backward, 2 threads": backward,
    }


def scan_functions(scalar, size, with_peers):
    batch, dim, length, dstate = size
    scan, inputs = torch.ops.mamba.selective_scan, scan_inputs(*size)
    halves, rows = scan_inputs(*size, dtype=torch.bfloat16), channel_last(inputs)
    functions = {
        "forward": lambda: scan(**inputs),
        "forward, 2 threads": lambda: scan(**inputs),
        "forward, bfloat16": lambda: scan(**halves),
        "forward, channel-last": lambda: scan(**rows),
        **backward_functions(scan_inputs(*size)),
    }
    if batch == 1:
        memory = dict(out=torch.empty_like(inputs["u"]), state=torch.empty(dim, dstate))
        loop = Scalar(scalar.scalar_forward, FORWARD, dict(inputs, dim=dim, length=length, dstate=dstate, **memory))
        loop()
        torch.testing.assert_close(scan(**inputs), memory["out"], rtol=1e-3, atol=1e-3)
        functions["scalar C++ loop"] = loop
    if with_peers:
        functions["Python loop"] = lambda: mamba_ops.reference.selective_scan_ref(**inputs)
        if theirs := transformers_function("mamba_selective_scan"):
            renamed = dict(inputs, hidden_states=inputs["u"], dt=inputs["delta"])
            del renamed["u"], renamed["delta"]
            torch.testing.assert_close(scan(**inputs), theirs(**renamed), rtol=1e-3, atol=1e-3)
            functions["transformers"] = lambda: theirs(**renamed)
    return functions


def step_functions(scalar, size):
    rows, dim, dstate = size
    update, inputs = torch.ops.mamba.selective_state_update, step_inputs(*size)
    functions = {"step": lambda: update(**inputs, dt_softplus=True)}
    if rows == 1:
        memory = dict(inputs, state=inputs["state"].clone(), out=torch.empty(1, dim), dim=dim, dstate=dstate)
        functions["scalar C++ loop"] = Scalar(scalar.scalar_update, UPDATE, memory)
    if theirs := transformers_function("mamba_selective_state_update"):
        renamed = dict(inputs, state=inputs["state"].clone(), hidden_states=inputs["x"], dt_softplus=True)
        del renamed["x"]
        functions["transformers"] = lambda: theirs(**renamed)
    return functions


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--least", type=float, default=0.5, help="seconds for which each thing is timed")
    parser.add_argument("--peers", action="store_true", help="also the peers that have no ISA level and take long")
    arguments = parser.parse_args()
    scalar, clock = ctypes.CDLL(arguments.library), Clock(arguments.least)
    scans = [{"size": x, **clock(scan_functions(scalar, x, arguments.peers))} for x in SIZES]
    steps = [{"size": x, **clock(step_functions(scalar, x))} for x in STEPS]
    json.dump({"scans": scans, "steps": steps}, sys.stdout)


if __name__ == "__main__":
    main()
