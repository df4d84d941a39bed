"""The Mamba block: the operator with the projections, convolution and gate around it."""

import math
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cache import MambaCache


class RMSNorm(nn.Module):
    """Divide by the root mean square over the last dimension, then scale: computed in float32 at least.

    The output has the weight's dtype.
    """

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        x = _at_least_float32(x)
        return F.rms_norm(x, [x.size(-1)], self.weight.to(x.dtype), self.eps).to(self.weight.dtype)


class MambaBlock(nn.Module):
    """One Mamba block, (batch, length, d_model) to the same shape; scriptable.

        x, z     = in_proj(input)
        x        = silu(causal depthwise conv1d(x))
        dt, B, C = x_proj(x)
        y        = selective_scan(x, dt_proj(dt), -exp(A_log), B, C, D, z)      with the softplus on the step size
        output   = out_proj(y)

    `forward` is for whole sequences; `prefill` continues and returns a cache, which `step` advances token by token.
    The convolution and the scan are the operators mamba::causal_conv1d and mamba::selective_scan_with_state.

    Args:
        d_model: channels of the input and output.
        d_state: states per channel.
        d_conv: width of the convolution.
        d_inner: channels of the scan; 0: 2 * d_model.
        dt_rank: rank of the projection to the step sizes; 0: d_model / 16, rounded up.
        bias, conv_bias: whether in_proj and out_proj, and the convolution, have a bias.
        dt_min, dt_max, dt_floor: the initial step sizes are log-uniform in [dt_min, dt_max], at least dt_floor.
        dt_scale: factor on the initial weight of dt_proj.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        d_inner: int = 0,
        dt_rank: int = 0,
        bias: bool = False,
        conv_bias: bool = True,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        dt_floor: float = 1e-4,
        dt_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.d_state, self.d_conv = d_state, d_conv
        self.d_inner = d_inner or 2 * d_model
        self.dt_rank = dt_rank or math.ceil(d_model / 16)
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=bias)
        self.conv1d = nn.Conv1d(self.d_inner, self.d_inner, d_conv, groups=self.d_inner, bias=conv_bias)
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner)
        self.A_log = nn.Parameter(torch.empty(self.d_inner, d_state))
        self.D = nn.Parameter(torch.ones(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias)
        self._init_scan(dt_min, dt_max, dt_floor, dt_scale)

    @torch.no_grad()
    def _init_scan(self, dt_min: float, dt_max: float, dt_floor: float, dt_scale: float) -> None:
        """A starts at -1, -2, ..., -d_state (S4D-real); the step size at softplus(bias), log-uniform over channels."""
        self.A_log.copy_(torch.arange(1, self.d_state + 1).log().expand_as(self.A_log))
        bound = dt_scale * self.dt_rank**-0.5
        self.dt_proj.weight.uniform_(-bound, bound)
        dt = torch.empty(self.d_inner).uniform_(math.log(dt_min), math.log(dt_max)).exp().clamp(min=dt_floor)
        self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus

    def forward(self, x: Tensor) -> Tensor:
        return self.prefill(x, None)[0]

    def prefill(
        self, x: Tensor, cache: Optional[MambaCache] = None, cu_seqlens: Optional[Tensor] = None
    ) -> Tuple[Tensor, MambaCache]:
        """Run (batch, length, d_model), after what `cache` has seen if given; return the output and the new cache.

        With cu_seqlens, (sequences + 1,), the batch is one row of packed sequences, and the caches have a slot for
        each. Leaves `cache` alone. Differentiable, through the caches too.
        """
        x, z = self.in_proj(x).transpose(1, 2).chunk(2, dim=1)
        x, conv = torch.ops.mamba.causal_conv1d(
            x, self._conv_weight(), self.conv1d.bias, None if cache is None else cache.conv, cu_seqlens, True
        )
        delta, B, C = self._scan_inputs(x.transpose(1, 2))
        y, ssm = torch.ops.mamba.selective_scan_with_state(
            x,
            delta.transpose(1, 2),
            self._A(),
            B.transpose(1, 2),
            C.transpose(1, 2),
            self.D,
            z,
            self.dt_proj.bias,
            True,
            None if cache is None else cache.ssm,
            cu_seqlens,
        )
        return self.out_proj(y.transpose(1, 2)), MambaCache(conv, ssm)

    def step(self, x: Tensor, cache: MambaCache, state_batch_indices: Optional[Tensor] = None) -> Tensor:
        """Run one token, (batch, d_model) to the same shape, and advance `cache` in place.

        state_batch_indices, (batch,), names the slot of each row; a negative one is padding and touches no slot. Not
        differentiable: call it under torch.no_grad().
        """
        x, z = self.in_proj(x).chunk(2, dim=-1)
        x = torch.ops.mamba.causal_conv1d_update(
            cache.conv, x, self._conv_weight(), self.conv1d.bias, True, state_batch_indices
        )
        delta, B, C = self._scan_inputs(x)
        y = torch.ops.mamba.selective_state_update(
            cache.ssm, x, delta, self._A(), B, C, self.D, z, self.dt_proj.bias, True, state_batch_indices
        )
        return self.out_proj(y)

    def new_cache(self, slots: int) -> MambaCache:
        """The cache before the first token: zeros."""
        weight = self.in_proj.weight
        ssm_dtype = weight.dtype if weight.dtype == torch.float64 else torch.float32
        conv = weight.new_zeros([slots, self.d_inner, self.d_conv - 1])
        return MambaCache(conv, weight.new_zeros([slots, self.d_inner, self.d_state], dtype=ssm_dtype))

    def _conv_weight(self) -> Tensor:
        return self.conv1d.weight.squeeze(1)

    def _scan_inputs(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """delta before its bias, B and C, each with its size last."""
        delta, B, C = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        return F.linear(delta, self.dt_proj.weight), B, C

    def _A(self) -> Tensor:
        return -torch.exp(_at_least_float32(self.A_log))


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.to(torch.float32)
