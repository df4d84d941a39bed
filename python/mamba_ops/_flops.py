"""FLOPs of the operators for torch.utils.flop_counter: arithmetic operations as the recurrence writes them, an
exponential counted as one."""

from typing import Any, Optional, Sequence

import torch
from torch.utils.flop_counter import register_flop_formula

# For each state and step: exp(delta A) h + delta u B is 2 + 2 + 1, C h and its sum 2 (delta u is shared by the states).
_FORWARD_OF_A_STATE = 7
# The forward again but for the sum, and for each of the adjoint's sums g += C dy, du += g B, ddelta += w A,
# dA += delta w, dB += (delta u) g, dC += dy h two; w and the decay of g one each.
_BACKWARD_OF_A_STATE = 6 + 12 + 2


def _states(u: Sequence[int], A: Sequence[int]) -> int:
    batch, dim, length = u
    return batch * dim * length * (A[1] if len(A) == 2 else 1)


def _elementwise(
    u: Sequence[int], D: Optional[Any], z: Optional[Any], delta_bias: Optional[Any], softplus: bool
) -> int:
    """For each channel and step: delta u, D u and its sum, the gate, the bias, the softplus."""
    batch, dim, length = u
    of_a_step = 1 + 2 * (D is not None) + 4 * (z is not None) + (delta_bias is not None) + 3 * softplus
    return batch * dim * length * of_a_step


def _forward(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, *args, **kwargs) -> int:
    return _FORWARD_OF_A_STATE * _states(u, A) + _elementwise(u, D, z, delta_bias, delta_softplus)


def _backward(dout, dlast_state, u, delta, A, B, C, D, z, delta_bias, delta_softplus, *args, **kwargs) -> int:
    return _BACKWARD_OF_A_STATE * _states(u, A) + 2 * _elementwise(u, D, z, delta_bias, delta_softplus)


def _update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, *args, **kwargs) -> int:
    rows, states = x[0], 1
    for size in state[1:]:
        states *= size
    step = [rows, states // max(state[-1], 1), 1]
    return _FORWARD_OF_A_STATE * rows * states + _elementwise(step, D, z, dt_bias, dt_softplus)


def _conv(x, weight, *args, **kwargs) -> int:
    """A product and a sum for each tap."""
    batch, dim, length = x
    return 2 * batch * dim * length * weight[1]


def _conv_backward(dout, dlast_state, x, weight, *args, **kwargs) -> int:
    """The adjoints of x and of weight, as many operations each as the convolution."""
    return 2 * _conv(x, weight)


def _conv_update(conv_state, x, weight, *args, **kwargs) -> int:
    return _conv([*x, 1], weight)


def register() -> None:
    """Make torch.utils.flop_counter.FlopCounterMode count the operators."""
    mamba = torch.ops.mamba
    register_flop_formula([mamba.selective_scan, mamba.selective_scan_with_state, mamba._selective_scan_fwd])(_forward)
    register_flop_formula(mamba._selective_scan_bwd)(_backward)
    register_flop_formula(mamba.selective_state_update)(_update)
    register_flop_formula(mamba.causal_conv1d)(_conv)
    register_flop_formula(mamba._causal_conv1d_bwd)(_conv_backward)
    register_flop_formula(mamba.causal_conv1d_update)(_conv_update)
