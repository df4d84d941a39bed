"""The selective scan as a plain Python loop: the definition to read, and the oracle of the tests."""

from typing import List, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor


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
    initial_state: Optional[Tensor] = None,
    cu_seqlens: Optional[Tensor] = None,
    reverse: bool = False,
    *,
    return_last_state: bool = False,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """Compute `mamba_ops.selective_scan` one time step after another.

    Takes the arguments of `selective_scan` and follows the same equations, in float32 (float64 if u is float64). It is
    differentiable any number of times and works on every device, without the library.

    Returns:
        out in u's dtype, or (out, last_state) if return_last_state.
    """
    real = torch.float64 if u.dtype is torch.float64 else torch.float32
    wide = real.to_complex() if A.is_complex() else real
    batch, dim, length = u.shape

    x, step, A = u.to(real), delta.to(real), A.to(wide)
    if A.dim() == 1:
        A = A[:, None]
        B, C = (coefficient[:, :, None] if coefficient.dim() == 3 else coefficient for coefficient in (B, C))
    B, C = (_per_channel(coefficient.to(wide), dim, length) for coefficient in (B, C))
    if delta_bias is not None:
        step = step + delta_bias.to(real)[:, None]
    if delta_softplus:
        step = F.softplus(step, beta=1.0, threshold=20.0)

    bounds = [0, length] if cu_seqlens is None else cu_seqlens.tolist()
    y: List[Tensor] = [x.new_zeros(batch, dim)] * length
    last_states = []
    for i, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:])):
        if initial_state is None:
            h = A.new_zeros(batch, *A.shape)
        else:
            h = (initial_state if cu_seqlens is None else initial_state[i : i + 1]).to(wide)
        times = range(start, stop)
        for t in reversed(times) if reverse else times:
            dt = step[:, :, t, None]
            h = torch.exp(dt * A) * h + dt * B[..., t] * x[:, :, t, None]
            total = (C[..., t] * h).sum(-1)
            y[t] = 2 * total.real if A.is_complex() else total
            if D is not None:
                y[t] = y[t] + D.to(real) * x[:, :, t]
            if z is not None:
                y[t] = y[t] * F.silu(z[:, :, t].to(real))
        last_states.append(h)

    out = (torch.stack(y, -1) if y else torch.zeros_like(x)).to(u.dtype)
    if not return_last_state:
        return out
    return out, torch.cat(last_states) if last_states else A.new_zeros(0, *A.shape)


def _per_channel(coefficient: Tensor, dim: int, length: int) -> Tensor:
    """Bring B or C, constant or input-dependent, to (batch or 1, dim, dstate, length)."""
    if coefficient.dim() == 2:
        return coefficient[None, :, :, None].expand(1, *coefficient.shape, length)
    if coefficient.dim() == 3:
        coefficient = coefficient[:, None]
    return coefficient.repeat_interleave(dim // max(coefficient.shape[1], 1), dim=1)
