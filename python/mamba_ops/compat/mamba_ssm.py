"""The functions of mamba_ssm 2.x, with its signatures and return conventions, over `torch.ops.mamba`.

    from mamba_ops.compat.mamba_ssm import selective_scan_fn

Two conventions are mamba_ssm's own: a scan returns (out, last_state) only when asked, and with a complex A an
input-dependent B or C is real and twice as long, (batch, dstate, 2 * length) or (batch, groups, dstate, 2 * length),
the real and imaginary part of each step side by side. Unlike there, gradients flow through last_state, and everything
runs on the CPU too.
"""

from typing import Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops, reference

__all__ = ["mamba_inner_fn", "selective_scan_fn", "selective_scan_ref", "selective_state_update"]


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Optional[Tensor] = None,
    z: Optional[Tensor] = None,
    delta_bias: Optional[Tensor] = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """`mamba_ops.selective_scan` in mamba_ssm's form: out, or (out, last_state) if return_last_state."""
    B, C = (_complex_coefficient(x, A, u.shape[2]) for x in (B, C))
    if not return_last_state:
        return ops.selective_scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    return ops.selective_scan_with_state(u, delta, A, B, C, D, z, delta_bias, delta_softplus)


def selective_scan_ref(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Optional[Tensor] = None,
    z: Optional[Tensor] = None,
    delta_bias: Optional[Tensor] = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """`mamba_ops.reference.selective_scan_ref`, a plain Python loop, in mamba_ssm's form."""
    B, C = (_complex_coefficient(x, A, u.shape[2]) for x in (B, C))
    return reference.selective_scan_ref(
        u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state=return_last_state
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
    """`mamba_ops.selective_state_update`, for x, dt and z of different dtypes too. The output has x's dtype."""
    dtype = torch.promote_types(x.dtype, dt.dtype)
    if z is not None:
        dtype = torch.promote_types(dtype, z.dtype)
        z = z.to(dtype)
    B, C = (coefficient if coefficient.dtype is torch.float32 else coefficient.to(dtype) for coefficient in (B, C))
    out = ops.selective_state_update(
        state, x.to(dtype), dt.to(dtype), A, B, C, D, z, dt_bias, dt_softplus, state_batch_indices
    )
    return out.to(x.dtype)


def mamba_inner_fn(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Optional[Tensor],
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Optional[Tensor],
    A: Tensor,
    B: Optional[Tensor] = None,
    C: Optional[Tensor] = None,
    D: Optional[Tensor] = None,
    delta_bias: Optional[Tensor] = None,
    B_proj_bias: Optional[Tensor] = None,
    C_proj_bias: Optional[Tensor] = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
    b_rms_weight: Optional[Tensor] = None,
    c_rms_weight: Optional[Tensor] = None,
    dt_rms_weight: Optional[Tensor] = None,
    b_c_dt_rms_eps: float = 1e-6,
) -> Tensor:
    """The inside of a Mamba block, from the output of its in_proj to that of its out_proj.

    Args:
        xz: (batch, 2 * dim, length): the branch of the scan, then the gate.
        conv1d_weight, conv1d_bias: the depthwise causal convolution, (dim, 1, width) and (dim,).
        x_proj_weight: (rank + the rows of B and C where these are None, dim). Each has dstate rows; with a complex A
            2 * dstate, the real and imaginary part of each state side by side.
        delta_proj_weight: (dim, rank).
        out_proj_weight, out_proj_bias: (model, dim) and (model,).
        A, D, delta_bias, delta_softplus: as in `selective_scan_fn`.
        B, C: constant (dim, dstate), or None: computed from the input by x_proj.
        B_proj_bias, C_proj_bias: added to the rows of B and C.
        checkpoint_lvl: accepted for compatibility; it changes no result.
        b_rms_weight, c_rms_weight, dt_rms_weight: if given, an RMSNorm over the states of an input-dependent B or C, or
            over the channels of delta, with the epsilon b_c_dt_rms_eps.

    Returns:
        (batch, length, model).
    """
    length, rank = xz.shape[-1], delta_proj_weight.shape[1]
    x, z = xz.chunk(2, dim=1)
    dim, width = x.shape[1], conv1d_weight.shape[-1]
    x = F.silu(F.conv1d(x, conv1d_weight, conv1d_bias, padding=width - 1, groups=dim)[..., :length])

    rows = A.shape[1] * (2 if A.is_complex() else 1)
    projected = F.linear(x.transpose(1, 2), x_proj_weight)
    delta = F.linear(projected[..., :rank], delta_proj_weight)
    if dt_rms_weight is not None:
        delta = F.rms_norm(delta, delta.shape[-1:], dt_rms_weight, b_c_dt_rms_eps)
    if B is None:
        B = _input_dependent(projected[..., rank : rank + rows], B_proj_bias, b_rms_weight, b_c_dt_rms_eps, A)
    if C is None:
        C = _input_dependent(projected[..., -rows:], C_proj_bias, c_rms_weight, b_c_dt_rms_eps, A)

    y = ops.selective_scan(x, delta.transpose(1, 2), A, B, C, D, z, delta_bias, delta_softplus)
    return F.linear(y.transpose(1, 2), out_proj_weight, out_proj_bias)


def _input_dependent(
    rows: Tensor, bias: Optional[Tensor], rms_weight: Optional[Tensor], eps: float, A: Tensor
) -> Tensor:
    """Turn the projected rows (batch, length, dstate), or twice as many if A is complex, into a B or C."""
    if bias is not None:
        rows = rows + bias.to(rows.dtype)
    if rms_weight is not None:
        rows = F.rms_norm(rows, rows.shape[-1:], rms_weight, eps)
    if A.is_complex():
        rows = _pairs_to_complex(rows, A)
    return rows.transpose(1, 2)


def _complex_coefficient(coefficient: Tensor, A: Tensor, length: int) -> Tensor:
    """Decode mamba_ssm's real form of a complex, input-dependent B or C; anything else is returned as it is."""
    interleaved = (
        A.is_complex()
        and coefficient.dim() >= 3
        and not coefficient.is_complex()
        and coefficient.shape[-1] == 2 * length
    )
    return _pairs_to_complex(coefficient, A) if interleaved else coefficient


def _pairs_to_complex(pairs: Tensor, A: Tensor) -> Tensor:
    """(..., 2 * size) real, parts side by side, to (..., size) in A's dtype."""
    return torch.view_as_complex(pairs.to(A.dtype.to_real()).unflatten(-1, (-1, 2)).contiguous())
