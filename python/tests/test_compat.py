"""compat.mamba_ssm: its signatures and conventions over our operators."""

import mamba_ops
import pytest
import torch
import torch.nn.functional as F
from mamba_ops.compat import mamba_ssm
from mamba_ops.reference import selective_scan_ref
from scan_inputs import floating, scan_inputs, update_inputs

SCANS = pytest.mark.parametrize("scan", [mamba_ssm.selective_scan_fn, mamba_ssm.selective_scan_ref])


def in_its_form(inputs):
    """The arguments that it has, complex input-dependent coefficients as pairs of reals."""
    inputs = {name: x for name, x in inputs.items() if name not in ("initial_state", "reverse")}
    for name in ("B", "C"):
        x = inputs[name]
        if x.is_complex() and x.dim() > 2:
            inputs[name] = torch.view_as_real(x).flatten(-2)
    return inputs


@SCANS
@pytest.mark.parametrize("A", ["real", "complex"])
@pytest.mark.parametrize("B, C", [("shared", "groups"), ("constant", "shared"), ("groups", "constant")])
def test_scan(scan, A, B, C, device):
    inputs = scan_inputs(A=A, B=B, C=C, D=True, z=True, delta_bias=True, delta_softplus=True, device=device)
    expected, expected_state = selective_scan_ref(**inputs, return_last_state=True)
    inputs = in_its_form(inputs)
    torch.testing.assert_close(scan(**inputs), expected)
    out, last_state = scan(**inputs, return_last_state=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(last_state, expected_state)


@SCANS
def test_complex_coefficients_in_half_precision(scan, device):
    inputs = scan_inputs(A="complex", dtype=torch.float32, device=device)
    inputs = {name: x.half() if name in ("u", "delta") else x for name, x in in_its_form(inputs).items()}
    inputs.update(B=inputs["B"].half(), C=inputs["C"].half())
    wide = {name: x.float() if name in ("u", "delta", "B", "C") else x for name, x in inputs.items()}
    out = scan(**inputs)
    assert out.dtype is torch.float16
    torch.testing.assert_close(out.float(), mamba_ssm.selective_scan_ref(**wide), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("A", ["real", "complex"])
def test_scan_is_differentiable(A):
    inputs = in_its_form(scan_inputs(A=A, dim=2, length=5, dstate=2, D=True))
    names = floating(inputs)
    fixed = {name: x for name, x in inputs.items() if name not in names}

    def scan(*tensors):
        return mamba_ssm.selective_scan_fn(**dict(zip(names, tensors)), **fixed, return_last_state=True)

    assert torch.autograd.gradcheck(scan, [inputs[name].requires_grad_() for name in names])


def test_state_update_takes_mixed_dtypes(device):
    inputs = update_inputs(dtype=torch.float32, device=device)
    mixed = {name: x.bfloat16() if name in ("x", "z") else x for name, x in inputs.items()}
    mixed["state"] = inputs["state"].clone()
    expected = mamba_ops.selective_state_update(**{**inputs, "x": mixed["x"].float(), "z": mixed["z"].float()})
    out = mamba_ssm.selective_state_update(**mixed)
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out, expected.bfloat16())
    torch.testing.assert_close(mixed["state"], inputs["state"])


def inner_inputs(A, constant=(), batch=2, dim=4, length=7, dstate=3, rank=2, width=4, model=5):
    """Arguments of mamba_inner_fn with everything optional given, but constant B or C only where named."""

    def new(*shape):
        return torch.randn(shape, dtype=torch.float64) / 2

    decay = -new(dim, dstate).abs()
    rows = dstate * (2 if A == "complex" else 1)
    inputs = dict(
        xz=new(batch, 2 * dim, length),
        conv1d_weight=new(dim, 1, width),
        conv1d_bias=new(dim),
        x_proj_weight=new(rank + rows * (2 - len(constant)), dim),
        delta_proj_weight=new(dim, rank),
        out_proj_weight=new(model, dim),
        out_proj_bias=new(model),
        A=torch.complex(decay, new(dim, dstate)) if A == "complex" else decay,
        D=new(dim),
        delta_bias=new(dim),
    )
    for name in ("B", "C"):
        if name in constant:
            inputs[name] = torch.randn_like(inputs["A"])
        else:
            inputs[f"{name}_proj_bias"] = new(rows)
    return inputs


def inner_step_by_step(p, norm=lambda x, name: x):
    """The block written out one time step after another; norm(x, name) is applied to the rows of dt, b and c."""
    rank, dstate = p["delta_proj_weight"].shape[1], p["A"].shape[1]
    rows = dstate * (2 if p["A"].is_complex() else 1)
    x, z = p["xz"].chunk(2, dim=1)
    width, length = p["conv1d_weight"].shape[-1], x.shape[-1]
    padded = torch.cat([x.new_zeros(*x.shape[:2], width - 1), x], -1)
    h, outs = 0, []
    for t in range(length):
        xt = F.silu((padded[..., t : t + width] * p["conv1d_weight"][:, 0]).sum(-1) + p["conv1d_bias"])
        projected = xt @ p["x_proj_weight"].T
        dt = norm(projected[:, :rank] @ p["delta_proj_weight"].T, "dt")
        dt = F.softplus(dt + p["delta_bias"])[..., None]

        def coefficient(name, part):
            if name in p:
                return p[name]
            part = norm(part + p[f"{name}_proj_bias"], name.lower())
            if p["A"].is_complex():
                part = torch.complex(part[:, ::2], part[:, 1::2])
            return part[:, None]

        B, C = coefficient("B", projected[:, rank : rank + rows]), coefficient("C", projected[:, -rows:])
        h = torch.exp(dt * p["A"]) * h + dt * B * xt[..., None]
        y = (h * C).sum(-1)
        y = (2 * y.real if p["A"].is_complex() else y) + p["D"] * xt
        outs.append((y * F.silu(z[..., t])) @ p["out_proj_weight"].T + p["out_proj_bias"])
    return torch.stack(outs, 1)


@pytest.mark.parametrize("A", ["real", "complex"])
@pytest.mark.parametrize("constant", ["", "B", "C", "BC"])
def test_inner_function(A, constant):
    inputs = {name: x.requires_grad_() for name, x in inner_inputs(A, constant).items()}
    expected, actual = inner_step_by_step(inputs), mamba_ssm.mamba_inner_fn(**inputs)
    torch.testing.assert_close(actual, expected)
    given = list(inputs.values())
    torch.testing.assert_close(
        torch.autograd.grad(actual.square().sum(), given), torch.autograd.grad(expected.square().sum(), given)
    )


def test_inner_function_with_norms():
    inputs = inner_inputs("real")
    weights = {"dt": torch.rand(4).double(), "b": torch.rand(3).double(), "c": torch.rand(3).double()}
    eps = 1e-3

    def norm(x, name):
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weights[name]

    expected = inner_step_by_step(inputs, norm)
    named = {f"{name}_rms_weight": weight for name, weight in weights.items()}
    torch.testing.assert_close(mamba_ssm.mamba_inner_fn(**inputs, **named, b_c_dt_rms_eps=eps), expected)
