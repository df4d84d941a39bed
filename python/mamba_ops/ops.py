"""The operators as typed Python functions.

Each calls `torch.ops.mamba.<name>` with the same arguments in the same order. All of them can be called from code that
`torch.jit.script` compiles. Sizes: batch, dim (channels), length (time), dstate (states per channel), groups, and
sequences (packed ones). The maths is that of Gu & Dao, "Mamba: Linear-Time Sequence Modeling with Selective State
Spaces" (arXiv 2312.00752), sections 3.2-3.3, with the simplified (Euler) B of the published models.

A wrong shape or value raises ValueError, a wrong dtype TypeError, what is not supported NotImplementedError, and
tensors on different devices RuntimeError; the message names the argument, the rule and what came.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Optional[Tensor] = None,
    z: Optional[Tensor] = None,
    delta_bias: Optional[Tensor] = None,
    delta_softplus: bool = False,
    initial_state: Optional[Tensor] = None,
    cu_seqlens: Optional[Tensor] = None,
    reverse: bool = False,
) -> Tensor:
    """Run the selective scan over time and return its output; differentiable in every floating-point argument.

        d[t]   = delta[t] + delta_bias, through softplus if delta_softplus
        h[t]   = exp(d[t] A) h[t-1] + d[t] B[t] u[t]           h before the first step: initial_state or 0
        out[t] = (sum over dstate of C[t] h[t] + D u[t]) * silu(z[t])      (complex A: twice the real part of the sum)

    Args:
        u: input, (batch, dim, length); float32, float16, bfloat16 or float64: the activation dtype.
        delta: step size, like u.
        A: (dim, dstate), real, or complex; or (dim,), one state per channel with B and C of (batch, dim, length).
        B: input-dependent (batch, dstate, length) or (batch, groups, dstate, length) in the activation dtype (or A's,
            if A is complex), or constant (dim, dstate) in a parameter dtype. Channel d uses group d // (dim / groups).
        C: like B, independently of it.
        D: skip connection, (dim,).
        z: gate, like u.
        delta_bias: (dim,).
        delta_softplus: whether the step sizes go through softplus (beta 1, threshold 20).
        initial_state: (batch, dim, dstate), or (sequences, dim, dstate) with cu_seqlens; complex exactly when A is.
        cu_seqlens: boundaries of packed sequences, (sequences + 1,), int32 or int64, non-decreasing; batch must be 1.
        reverse: whether time runs from the last step to the first.

    Returns:
        out, (batch, dim, length) in the activation dtype.
    """
    return torch.ops.mamba.selective_scan(
        u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state, cu_seqlens, reverse
    )


def selective_scan_with_state(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Optional[Tensor] = None,
    z: Optional[Tensor] = None,
    delta_bias: Optional[Tensor] = None,
    delta_softplus: bool = False,
    initial_state: Optional[Tensor] = None,
    cu_seqlens: Optional[Tensor] = None,
    reverse: bool = False,
) -> Tuple[Tensor, Tensor]:
    """`selective_scan`, returning the state after the last step too; differentiable through both.

    Takes the arguments of `selective_scan`.

    Returns:
        out, (batch, dim, length), and last_state, (batch, dim, dstate) or (sequences, dim, dstate) with cu_seqlens, in
        float32 (float64 if u is float64; the complex dtype of the same precision if A is complex). With reverse=True
        the last step is t = 0. Passed as initial_state of a later call, last_state continues the sequence.
    """
    return torch.ops.mamba.selective_scan_with_state(
        u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state, cu_seqlens, reverse
    )


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Optional[Tensor] = None,
    z: Optional[Tensor] = None,
    dt_bias: Optional[Tensor] = None,
    dt_softplus: bool = False,
    state_batch_indices: Optional[Tensor] = None,
) -> Tensor:
    """One decoding step: advance `state` in place by one token and return the output. Not differentiable.

    It equals `selective_scan_with_state` at length 1, up to rounding. Under grad mode, an input that requires grad
    raises NotImplementedError.

    Args:
        state: (slots, dim, dstate), or (slots, heads, headdim, dstate); float32, float16, bfloat16 or float64, whatever
            dtype x has. Updated in place.
        x: input of the step, (batch, dim) or (batch, heads, headdim), in the activation dtype.
        dt: step size, like x.
        A: (dim, dstate) or (heads, headdim, dstate), real; expanded (stride 0) is fine.
        B: (batch, dstate) or (batch, groups, dstate), in the activation dtype or float32.
        C: like B.
        D: (dim,) or (heads, headdim).
        z: gate, like x.
        dt_bias: like D.
        dt_softplus: whether the step size goes through softplus.
        state_batch_indices: the slot of each row, (batch,), int32 or int64; negative: padding, whose output is 0 and
            whose state is nobody's. Without it slots equals batch.

    Returns:
        out, like x.
    """
    return torch.ops.mamba.selective_state_update(
        state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, state_batch_indices
    )


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    initial_state: Optional[Tensor] = None,
    cu_seqlens: Optional[Tensor] = None,
    silu: bool = False,
) -> Tuple[Tensor, Tensor]:
    """Depthwise causal convolution over time, as in a Mamba block; differentiable.

        out[t] = bias + sum over k of weight[k] x[t - width + 1 + k]          then silu, if asked for

    Args:
        x: (batch, dim, length), any floating dtype, any strides.
        weight: (dim, width), width >= 1; a parameter dtype, as bias.
        bias: (dim,).
        initial_state: what came before x, (batch, dim, width - 1), or (sequences, dim, width - 1) with cu_seqlens,
            oldest first, in x's dtype. Without it zeros.
        cu_seqlens: boundaries of packed sequences, as in `selective_scan`. Tokens outside every sequence give 0.
        silu: whether silu follows.

    Returns:
        out, like x, and last_state: the last width - 1 inputs, shaped as initial_state.
    """
    return torch.ops.mamba.causal_conv1d(x, weight, bias, initial_state, cu_seqlens, silu)


def causal_conv1d_update(
    conv_state: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    silu: bool = False,
    state_batch_indices: Optional[Tensor] = None,
) -> Tensor:
    """One step of `causal_conv1d`: shift x into `conv_state` in place and return the output. Not differentiable.

    Args:
        conv_state: (slots, dim, width - 1), oldest first, updated in place.
        x: (batch, dim), in conv_state's dtype.
        weight, bias, silu: as in `causal_conv1d`.
        state_batch_indices: the slot of each row, as in `selective_state_update`.

    Returns:
        out, like x.
    """
    return torch.ops.mamba.causal_conv1d_update(conv_state, x, weight, bias, silu, state_batch_indices)


def mamba_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Optional[Tensor] = None,
    z: Optional[Tensor] = None,
) -> Tensor:
    """`selective_scan` with the softplus on delta inside: the scan of a Mamba block."""
    return selective_scan(u, delta, A, B, C, D, z, delta_softplus=True)


def selective_scan_forward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Optional[Tensor] = None,
) -> Tensor:
    """`mamba_scan` without a gate and without autograd: its output never requires grad."""
    with torch.no_grad():
        return selective_scan(u, delta, A, B, C, D, delta_softplus=True)
