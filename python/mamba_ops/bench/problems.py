"""What is timed: a problem, its inputs, and the least that any implementation has to do for it."""

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence

import torch
from torch import Tensor

from .._errors import CommandError

DIRECTIONS = ("forward", "backward", "decode")
DTYPES = ("float32", "bfloat16", "float16", "float64")
LAYOUTS = ("channel-first", "channel-last")


@dataclass(frozen=True)
class Problem:
    """One scan, its backward, or one decoding step (length 1), as in a Mamba block: D, z, delta_bias and softplus.

    layout: activations are (batch, dim, length) in memory, or (batch, length, dim) seen as that.
    """

    direction: str
    batch: int
    dim: int
    length: int
    dstate: int
    dtype: str = "float32"
    layout: str = "channel-first"

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def size(self) -> str:
        """As --sizes takes it."""
        return f"{self.batch}x{self.dim}x{self.length}x{self.dstate}"

    @property
    def work(self) -> int:
        """Steps of a state."""
        return self.batch * self.dim * self.length * self.dstate

    def __str__(self) -> str:
        return f"{self.direction} {self.size} {self.dtype} {self.layout}"


def problems(
    sizes: Sequence[str], directions: Sequence[str], dtypes: Sequence[str], layouts: Sequence[str]
) -> List[Problem]:
    """Every combination; a decoding step has neither a length nor a layout, so each of those stands once."""
    found = []
    for direction in directions:
        for dtype in dtypes:
            for layout in layouts:
                for batch, dim, length, dstate in map(parse_size, sizes):
                    if direction == "decode":
                        length, layout = 1, LAYOUTS[0]
                    found.append(Problem(direction, batch, dim, length, dstate, dtype, layout))
    return list(dict.fromkeys(found))


def parse_size(text: str) -> Sequence[int]:
    """BATCHxDIMxLENGTH or BATCHxDIMxLENGTHxDSTATE; dstate is 16 unless given."""
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2,3}", text):
        raise CommandError(f"{text!r} is no size: write BATCHxDIMxLENGTH or BATCHxDIMxLENGTHxDSTATE, as 1x256x1024x16")
    numbers = [int(part) for part in text.split("x")]
    return numbers if len(numbers) == 4 else [*numbers, 16]


def scan_inputs(problem: Problem, device: str) -> Dict[str, Any]:
    """Keyword arguments of selective_scan, of the sizes that a trained model has: steps of about 0.02, A near -1 to
    -dstate. Parameters are float32, or float64 with float64 activations."""
    batch, dim, length, dstate = problem.batch, problem.dim, problem.length, problem.dstate
    dtype, parameter = problem.torch_dtype, parameter_dtype(problem)
    torch.manual_seed(0)

    def activation(rows: int, values=torch.randn) -> Tensor:
        if problem.layout == "channel-last":
            return values(batch, length, rows, device=device).to(dtype).transpose(1, 2)
        return values(batch, rows, length, device=device).to(dtype)

    return dict(
        u=activation(dim),
        delta=activation(dim, lambda *shape, **options: 0.5 * torch.rand(*shape, **options) - 4),
        A=_decays(dim, dstate, device).to(parameter),
        B=activation(dstate),
        C=activation(dstate),
        D=torch.randn(dim, device=device).to(parameter),
        z=activation(dim),
        delta_bias=0.5 * torch.rand(dim, device=device).to(parameter),
        delta_softplus=True,
    )


def step_inputs(problem: Problem, device: str) -> Dict[str, Any]:
    """Keyword arguments of selective_state_update: the same for one step; the state is in the parameters' dtype."""
    scan = scan_inputs(problem, device)
    column = {name: scan[name][..., 0] for name in ("u", "delta", "B", "C", "z")}
    state = torch.randn(problem.batch, problem.dim, problem.dstate, device=device).to(parameter_dtype(problem))
    return dict(
        state=state,
        x=column["u"],
        dt=column["delta"],
        A=scan["A"],
        B=column["B"],
        C=column["C"],
        D=scan["D"],
        z=column["z"],
        dt_bias=scan["delta_bias"],
        dt_softplus=True,
    )


def parameter_dtype(problem: Problem) -> torch.dtype:
    return torch.float64 if problem.dtype == "float64" else torch.float32


def bytes_moved(problem: Problem) -> int:
    """Every input read once and every result written once."""
    steps = problem.batch * problem.length
    activations, coefficients = steps * problem.dim, 2 * steps * problem.dstate
    parameters = problem.dim * (problem.dstate + 2) * parameter_dtype(problem).itemsize
    states = problem.batch * problem.dim * problem.dstate * parameter_dtype(problem).itemsize
    width = problem.torch_dtype.itemsize
    if problem.direction == "backward":  # u, delta, z, dout in; du, ddelta, dz out; B, C, parameters and theirs
        return (7 * activations + 2 * coefficients) * width + 2 * parameters
    once = (4 * activations + coefficients) * width + parameters  # u, delta, z in; out
    return once + 2 * states if problem.direction == "decode" else once


def exponentials(problem: Problem) -> int:
    """One for each state and step, one in the softplus, one in the gate; the backward needs them again."""
    return problem.batch * problem.dim * problem.length * (problem.dstate + 2)


def _decays(dim: int, dstate: int, device: str) -> Tensor:
    rows = torch.arange(1, dstate + 1, device=device, dtype=torch.float32).repeat(dim, 1)
    return -rows * torch.exp(0.1 * torch.randn(dim, dstate, device=device))
