"""The selective scan in ONNX operators. Imports onnxscript: only mamba_ops.onnx imports this module."""

from typing import Optional, Tuple

from onnxscript import FLOAT, graph, script
from onnxscript import opset18 as op

_LOWEST = -(2**63) + 1  # as the end of a slice with a negative step: to the very beginning


@script(default_opset=op)
def _recurrence(state: FLOAT, step: FLOAT, x: FLOAT, A: FLOAT, B: FLOAT, C: FLOAT) -> Tuple[FLOAT, FLOAT]:
    """The recurrence over the first dimension of step and x (length, batch, dim, 1) and of B and C, broadcastable to
    (length, batch, dim, dstate). state is (batch, dim, dstate), A (dim, dstate). Returns (last_state, y)."""

    @graph()
    def one_step(h, step_t, x_t, B_t, C_t):
        h_next = op.Add(op.Mul(op.Exp(op.Mul(step_t, A)), h), op.Mul(op.Mul(step_t, x_t), B_t))
        y_t = op.ReduceSum(op.Mul(h_next, C_t), op.Constant(value_ints=[-1]), keepdims=0)
        h_out = op.Identity(h_next)
        return h_out, y_t

    last_state, y = op.Scan(state, step, x, B, C, body=one_step, num_scan_inputs=4)
    return last_state, y


def _ints(*values: int):
    return op.Constant(value_ints=list(values))


def _flip(x):
    """Reversed along the first dimension."""
    return op.Slice(x, _ints(-1), _ints(_LOWEST), _ints(0), _ints(-1))


def _coefficient(x, rank: int, u, is_per_channel: bool):
    """B or C of any form as (length, batch, dim, dstate), or broadcastable to it."""
    if rank == 2:  # constant: the same at every step
        length = op.Shape(u, start=2, end=3)
        return op.Expand(op.Unsqueeze(x, _ints(0, 1)), op.Concat(length, _ints(1, 1, 1), axis=0))
    if rank == 3 and is_per_channel:
        return op.Unsqueeze(op.Transpose(x, perm=[2, 0, 1]), _ints(3))
    if rank == 3:
        return op.Unsqueeze(op.Transpose(x, perm=[2, 0, 1]), _ints(2))
    by_group = op.Transpose(x, perm=[3, 0, 1, 2])
    groups, dstate = op.Shape(by_group, start=2, end=3), op.Shape(by_group, start=3, end=4)
    channels = op.Div(op.Shape(u, start=1, end=2), groups)
    repeated = op.Expand(op.Unsqueeze(by_group, _ints(3)), op.Concat(_ints(1, 1, 1), channels, _ints(1), axis=0))
    leading = op.Shape(by_group, start=0, end=2)
    return op.Reshape(repeated, op.Concat(leading, op.Mul(groups, channels), dstate, axis=0), allowzero=1)


def _refuse_packed(cu_seqlens) -> None:
    if cu_seqlens is not None:
        raise NotImplementedError(
            "mamba_ops.onnx: expected no cu_seqlens, but got packed sequences; export one sequence for each batch row"
        )


def _wide_type(x) -> int:
    """The type to compute in: onnx.TensorProto.DOUBLE or FLOAT."""
    return 11 if x.dtype is not None and x.dtype.name == "DOUBLE" else 1


def selective_scan_with_state(
    u,
    delta,
    A,
    B,
    C,
    D=None,
    z=None,
    delta_bias=None,
    delta_softplus: bool = False,
    initial_state=None,
    cu_seqlens=None,
    reverse: bool = False,
):
    """Return (out, last_state) as the operator does; parameters and states are computed with in float32 or float64."""
    _refuse_packed(cu_seqlens)
    wide_type = _wide_type(u)

    def wide(x: Optional[object]):
        return None if x is None else op.Cast(x, to=wide_type)

    original = u
    u, delta, z, D, delta_bias, initial_state = (wide(x) for x in (u, delta, z, D, delta_bias, initial_state))
    is_per_channel = len(A.shape) == 1
    B, C = (_coefficient(wide(x), len(x.shape), u, is_per_channel) for x in (B, C))
    A = op.Unsqueeze(wide(A), _ints(1)) if is_per_channel else wide(A)

    if delta_bias is not None:
        delta = op.Add(delta, op.Unsqueeze(delta_bias, _ints(1)))
    if delta_softplus:
        delta = op.Softplus(delta)
    if initial_state is None:
        shape = op.Concat(op.Shape(u, start=0, end=2), op.Shape(A, start=1, end=2), axis=0)
        initial_state = op.Expand(op.CastLike(op.Constant(value_float=0.0), u), shape)

    over_time = [op.Unsqueeze(op.Transpose(x, perm=[2, 0, 1]), _ints(3)) for x in (delta, u)] + [B, C]
    step, x, B, C = (_flip(x) for x in over_time) if reverse else over_time
    last_state, y = _recurrence(initial_state, step, x, A, B, C)
    out = op.Transpose(_flip(y) if reverse else y, perm=[1, 2, 0])
    if D is not None:
        out = op.Add(out, op.Mul(op.Unsqueeze(D, _ints(1)), u))
    if z is not None:
        out = op.Mul(out, op.Mul(z, op.Sigmoid(z)))
    return op.CastLike(out, original), last_state


def selective_scan(
    u,
    delta,
    A,
    B,
    C,
    D=None,
    z=None,
    delta_bias=None,
    delta_softplus: bool = False,
    initial_state=None,
    cu_seqlens=None,
    reverse: bool = False,
):
    """Return out alone."""
    return selective_scan_with_state(
        u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state, cu_seqlens, reverse
    )[0]
