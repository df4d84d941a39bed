"""The implementations that are timed: ours, and what is installed beside it.

An implementation is found by a function that imports what it needs and returns a `Scan`, or raises `NotHere` with the
reason, which the report shows. Those of third parties are called in a way of their own but always for the same maths;
every output is compared with ours before it is timed.
"""

import importlib
import inspect
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops, reference
from .._errors import CommandError
from .._library import library_path
from .problems import Problem, scan_inputs, step_inputs

Inputs = Dict[str, Any]
OURS = "mamba_ops"


class NotHere(Exception):
    """Why an implementation, or this problem of it, cannot be timed here."""


@dataclass(frozen=True)
class Scan:
    """An implementation: functions of the keyword arguments of selective_scan and selective_state_update.

    prepare: work on the scan's arguments that is not timed. finish: from what the scan returned to the full output, for
    the comparison alone.
    """

    label: str
    scan: Callable[[Inputs], Tensor]
    step: Optional[Callable[[Inputs], Tensor]] = None
    devices: Tuple[str, ...] = ("cpu", "cuda")
    dtypes: Tuple[str, ...] = ("float32", "bfloat16", "float16", "float64")
    has_backward: bool = True
    prepare: Callable[[Inputs], Inputs] = dict
    finish: Callable[[Inputs, Tensor], Tensor] = lambda inputs, out: out

    def call(self, problem: Problem, device: str) -> Tuple[Callable[[], Any], Callable[[Any], List[Tensor]]]:
        """What to time, and how to get from its result to the tensors that are compared."""
        self._refuse(problem, device)
        if problem.direction == "decode":
            inputs = step_inputs(problem, device)
            return lambda: self.step(inputs), lambda out: [out]
        plain = scan_inputs(problem, device)
        inputs = self.prepare(plain)
        if problem.direction == "forward":
            return lambda: self.scan(inputs), lambda out: [self.finish(plain, out)]
        names = [name for name, x in inputs.items() if isinstance(x, Tensor)]
        leaves = {name: x.requires_grad_() if name in names else x for name, x in inputs.items()}
        with torch.enable_grad():
            out = self.scan(leaves)
        dout = torch.ones_like(out)
        wanted = [leaves[name] for name in names]
        return lambda: torch.autograd.grad(out, wanted, dout, retain_graph=True), list

    def _refuse(self, problem: Problem, device: str) -> None:
        if device not in self.devices:
            raise NotHere(f"not for {device}")
        if problem.dtype not in self.dtypes:
            raise NotHere(f"not for {problem.dtype}")
        if problem.direction == "decode" and self.step is None:
            raise NotHere("has no decoding step")
        if problem.direction == "backward" and not self.has_backward:
            raise NotHere("has no backward")


def _ours() -> Scan:
    return Scan(
        "mamba_ops", lambda inputs: ops.selective_scan(**inputs), lambda inputs: ops.selective_state_update(**inputs)
    )


def _loop() -> Scan:
    def step(inputs: Inputs) -> Tensor:
        sequence = {name: inputs[name][..., None] for name in ("B", "C", "z")}
        out, state = reference.selective_scan_ref(
            inputs["x"][..., None],
            inputs["dt"][..., None],
            inputs["A"],
            sequence["B"],
            sequence["C"],
            inputs["D"],
            sequence["z"],
            inputs["dt_bias"],
            inputs["dt_softplus"],
            inputs["state"],
            return_last_state=True,
        )
        inputs["state"].copy_(state)
        return out[..., 0]

    return Scan("Python loop", lambda inputs: reference.selective_scan_ref(**inputs), step)


def _associative_scan() -> Scan:
    associative_scan = _import("torch._higher_order_ops.associative_scan").associative_scan

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    def scan(inputs: Inputs) -> Tensor:
        u, A, B, C, D, z = (inputs[name].to(inputs["A"].dtype) for name in ("u", "A", "B", "C", "D", "z"))
        delta = _step_sizes(inputs)
        decay = torch.exp(delta[:, :, None] * A[None, :, :, None])
        _, h = associative_scan(combine, (decay, (delta * u)[:, :, None] * B[:, None]), dim=-1, combine_mode="generic")
        y = (h * C[:, None]).sum(2)
        return ((y + D[:, None] * u) * F.silu(z)).to(inputs["u"].dtype)

    return Scan("torch associative_scan (eager)", scan)


def _transformers() -> Scan:
    """The loop that Hugging Face's Mamba falls back to; unwrapped, as it would call mamba_ssm where that is there."""
    modeling = _import("transformers.models.mamba.modeling_mamba")
    names = "mamba_selective_scan", "mamba_selective_state_update"
    if not all(hasattr(modeling, name) for name in names):
        raise NotHere("this transformers has no scan of its own; 5.17 and 5.24 have")
    scan, step = (inspect.unwrap(getattr(modeling, name)) for name in names)

    def call_scan(inputs: Inputs) -> Tensor:
        rest = {name: x for name, x in inputs.items() if name != "u"}
        rest["dt"] = rest.pop("delta")
        return scan(inputs["u"], **rest)

    def call_step(inputs: Inputs) -> Tensor:
        rest = {name: x for name, x in inputs.items() if name != "x"}
        return step(hidden_states=inputs["x"], **rest)

    return Scan("transformers loop", call_scan, call_step)


def _mamba_ssm() -> Scan:
    """The published package, or else its CUDA extension alone."""
    try:
        interface = _import("mamba_ssm.ops.selective_scan_interface")
        step = _import("mamba_ssm.ops.triton.selective_state_update").selective_state_update
    except NotHere:
        return _upstream_extension()
    dtypes = ("float32", "bfloat16", "float16")
    return Scan(
        "mamba_ssm",
        lambda inputs: interface.selective_scan_fn(**inputs),
        lambda inputs: step(**inputs),
        ("cuda",),
        dtypes,
    )


def _upstream_extension() -> Scan:
    extension = _import("selective_scan_cuda", "mamba_ssm is not installed, nor its extension selective_scan_cuda")

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, u, delta, A, B, C, D, z, delta_bias):
            out, states, gated = extension.fwd(u, delta, A, B, C, D, z, delta_bias, True)[:3]
            ctx.save_for_backward(u, delta, A, B, C, D, z, delta_bias, states, out)
            return gated

        @staticmethod
        def backward(ctx, dout):
            *inputs, states, out = ctx.saved_tensors
            du, ddelta, dA, dB, dC, dD, dbias, dz = extension.bwd(*inputs, dout, states, out, None, True, False)[:8]
            return du, ddelta, dA, dB, dC, dD, dz, dbias

    def prepare(inputs: Inputs) -> Inputs:
        """It wants time contiguous and groups written out."""
        found = {name: x.contiguous() if isinstance(x, Tensor) else x for name, x in inputs.items()}
        return dict(found, B=found["B"][:, None], C=found["C"][:, None])

    def scan(inputs: Inputs) -> Tensor:
        return Function.apply(*(x for x in inputs.values() if isinstance(x, Tensor)))

    dtypes = ("float32", "bfloat16", "float16")
    return Scan("mamba_ssm (extension alone)", scan, None, ("cuda",), dtypes, prepare=prepare)


def _study(name: str) -> Callable[[], Scan]:
    """A kernel of the study: the scan in its plain form, without D, z and softplus, which it is spared."""

    def find() -> Scan:
        path = library_path().parent / "libmamba_study.so"
        if not path.is_file():
            raise NotHere("the study's library is not in this package: build the target mamba_study_staged")
        torch.ops.load_library(str(path))
        kernel = getattr(torch.ops.mamba_study, f"scan_{name}")

        def prepare(inputs: Inputs) -> Inputs:
            plain = {key: inputs[key] for key in ("u", "A", "B", "C")}
            return dict(plain, delta=_step_sizes(inputs))

        def scan(inputs: Inputs) -> Tensor:
            return kernel(*(inputs[key] for key in ("u", "delta", "A", "B", "C")))

        def finish(inputs: Inputs, y: Tensor) -> Tensor:
            return (y + inputs["D"][:, None] * inputs["u"]) * F.silu(inputs["z"])

        label = f"study: {name} (plain form)"
        return Scan(label, scan, None, ("cuda",), ("float32",), False, prepare, finish)

    return find


FINDERS: Dict[str, Callable[[], Scan]] = {
    OURS: _ours,
    "loop": _loop,
    "transformers": _transformers,
    "associative_scan": _associative_scan,
    "mamba_ssm": _mamba_ssm,
    "study_naive": _study("naive"),
    "study_warp": _study("warp"),
    "study_shared": _study("shared"),
}


def find(wanted: Sequence[str]) -> Tuple[Dict[str, Scan], Dict[str, str]]:
    """The implementations of those names ("all", "none" or a list) with ours first, and why the others are not here."""
    names = _names(wanted)
    found, missing = {}, {}
    for name in names:
        try:
            found[name] = FINDERS[name]()
        except NotHere as reason:
            missing[name] = str(reason)
    return found, missing


def _names(wanted: Sequence[str]) -> List[str]:
    if list(wanted) == ["all"]:
        return list(FINDERS)
    if list(wanted) == ["none"]:
        return [OURS]
    unknown = [name for name in wanted if name not in FINDERS]
    if unknown:
        raise CommandError(f"there is no peer {unknown[0]!r}: use all, none, or some of {', '.join(FINDERS)}")
    return list(dict.fromkeys([OURS, *wanted]))


def _import(name: str, reason: str = "") -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a broken installation raises anything
        raise NotHere(reason or f"{name.split('.')[0]} is not importable ({type(error).__name__}: {error})") from error


def _step_sizes(inputs: Inputs) -> Tensor:
    parameter = inputs["A"].dtype
    return F.softplus(inputs["delta"].to(parameter) + inputs["delta_bias"][:, None])
