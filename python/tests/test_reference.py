"""The reference loop against the closed form of the recurrence, which has no loop over time."""

import pytest
import torch
import torch.nn.functional as F
from mamba_ops.reference import selective_scan_ref
from scan_inputs import CASES, floating, scan_inputs


def closed_form(
    u,
    delta,
    A,
    B,
    C,
    D=None,
    z=None,
    delta_bias=None,
    delta_softplus=False,
    initial_state=None,
    cu_seqlens=None,
    reverse=False,
):
    """out and last_state of one sequence or a packed batch: h[t] = sum over s <= t of exp(A (S[t] - S[s])) b[s].

    S is the running sum of the step sizes and b[s] = delta[s] B[s] u[s].
    """
    if cu_seqlens is not None:
        bounds = cu_seqlens.tolist()
        out, states = torch.zeros_like(u), []
        for i, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:])):
            part = [x[..., start:stop] if x is not None and x.dim() >= 3 else x for x in (u, delta, A, B, C, D, z)]
            state = None if initial_state is None else initial_state[i : i + 1]
            y, last = closed_form(*part, delta_bias, delta_softplus, state, None, reverse)
            out = torch.cat([out[..., :start], y, out[..., stop:]], -1)
            states.append(last)
        return out, torch.cat(states)
    if reverse:
        flipped = [x.flip(-1) if x is not None and x.dim() >= 3 else x for x in (u, delta, A, B, C, D, z)]
        out, last = closed_form(*flipped, delta_bias, delta_softplus, initial_state)
        return out.flip(-1), last

    dim, length = u.shape[1:]
    if A.dim() == 1:
        A, B, C = A[:, None], B[:, :, None], C[:, :, None]
    if delta_bias is not None:
        delta = delta + delta_bias[:, None]
    if delta_softplus:
        delta = F.softplus(delta)

    def spread(x):  # to (batch or 1, dim, dstate, length or 1)
        if x.dim() == 2:
            return x[None, :, :, None]
        x = x[:, None] if x.dim() == 3 else x
        return x.repeat_interleave(dim // x.shape[1], 1)

    b = (delta * u)[:, :, None] * spread(B)
    total = delta.cumsum(-1)
    gap = total[..., :, None] - total[..., None, :]
    decay = torch.exp(gap[:, :, None] * A[:, :, None, None])
    past = torch.ones(length, length, dtype=torch.bool).tril()
    h = (torch.where(past, decay, 0) @ b.unsqueeze(-1)).squeeze(-1)
    if initial_state is not None:
        h = h + torch.exp(total[:, :, None] * A[:, :, None]) * initial_state[..., None]
    y = (spread(C) * h).sum(2)
    y = 2 * y.real if A.is_complex() else y
    if D is not None:
        y = y + D[:, None] * u
    if z is not None:
        y = y * F.silu(z)
    if length == 0:
        return y, h.new_zeros(u.shape[0], *A.shape) if initial_state is None else initial_state
    return y, h[..., -1]


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case):
    inputs = scan_inputs(**CASES[case])
    names = floating(inputs)
    for name in names:
        inputs[name].requires_grad_()
    results = {}
    for function in (lambda **x: selective_scan_ref(**x, return_last_state=True), closed_form):
        out, last_state = function(**inputs)
        torch.manual_seed(1)
        loss = sum((y * torch.randn_like(y)).sum().real for y in (out, last_state))
        grads = torch.autograd.grad(loss, [inputs[name] for name in names])
        results[function] = (out, last_state, *grads)
    torch.testing.assert_close(*results.values())


def test_last_state_is_returned_when_asked():
    inputs = scan_inputs()
    assert isinstance(selective_scan_ref(**inputs), torch.Tensor)
    out, last_state = selective_scan_ref(**inputs, return_last_state=True)
    torch.testing.assert_close(out, selective_scan_ref(**inputs))
    assert last_state.shape == (2, 4, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_it_computes_in_float32_and_returns_the_dtype_of_u(dtype):
    inputs = scan_inputs(**CASES["every_option"], dtype=dtype)
    out, last_state = selective_scan_ref(**inputs, return_last_state=True)
    wide = {name: x.float() if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
    assert out.dtype is dtype
    assert last_state.dtype is torch.float32
    torch.testing.assert_close(out, selective_scan_ref(**wide).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("sizes", [dict(length=0), dict(dstate=0), dict(batch=0), dict(dim=0)], ids=str)
def test_empty_sizes(sizes):
    inputs = scan_inputs(**CASES["every_option"], **sizes, dtype=torch.float32)
    out, last_state = selective_scan_ref(**inputs, return_last_state=True)
    assert out.shape == inputs["u"].shape
    assert last_state.shape == inputs["initial_state"].shape
    if "length" in sizes:
        torch.testing.assert_close(last_state, inputs["initial_state"])
    if "dstate" in sizes:
        expected = inputs["D"][:, None] * inputs["u"] * F.silu(inputs["z"])
        torch.testing.assert_close(out, expected)
