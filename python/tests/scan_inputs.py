"""Inputs for the operators: every form that an argument can take, by name."""

import torch

# name: the arguments of `scan_inputs` that make it
CASES = {
    "plain": {},
    "every_option": dict(D=True, z=True, delta_bias=True, delta_softplus=True, initial_state=True),
    "reverse": dict(D=True, z=True, initial_state=True, reverse=True),
    "groups": dict(B="groups", C="groups", D=True),
    "constant_B": dict(B="constant"),
    "constant_C": dict(C="constant", delta_softplus=True),
    "complex": dict(A="complex", D=True, z=True, initial_state=True),
    "complex_constant": dict(A="complex", B="constant", C="groups"),
    "per_channel": dict(A="per_channel", D=True, initial_state=True),
    "packed": dict(cu_seqlens=(0, 4, 4, 9, 11), D=True, z=True, initial_state=True),
    "packed_with_gaps_reverse": dict(cu_seqlens=(1, 3, 8), delta_bias=True, initial_state=True, reverse=True),
}


def scan_inputs(
    A="real",
    B="shared",
    C="shared",
    D=False,
    z=False,
    delta_bias=False,
    delta_softplus=False,
    initial_state=False,
    cu_seqlens=None,
    reverse=False,
    *,
    batch=2,
    dim=4,
    length=11,
    dstate=3,
    groups=2,
    dtype=torch.float64,
    device="cpu",
):
    """Keyword arguments of selective_scan. Parameters and states are float32, or float64 when dtype is."""
    batch = batch if cu_seqlens is None else 1
    dstate = 1 if A == "per_channel" else dstate
    parameter = torch.float64 if dtype is torch.float64 else torch.float32
    state = parameter.to_complex() if A == "complex" else parameter

    def normal(*shape, dtype=dtype):
        return torch.randn(shape, dtype=dtype)

    def coefficient(form):
        if form == "constant":
            return normal(dim, dstate, dtype=state)
        kind = state if A == "complex" else dtype
        if A == "per_channel":
            return normal(batch, dim, length, dtype=kind)
        return normal(batch, *([groups] if form == "groups" else []), dstate, length, dtype=kind)

    decay = -0.2 - torch.rand(dim, *([] if A == "per_channel" else [dstate]), dtype=parameter)
    inputs = dict(
        u=normal(batch, dim, length),
        delta=normal(batch, dim, length) if delta_softplus else 0.1 + 0.4 * torch.rand(batch, dim, length).to(dtype),
        A=torch.complex(decay, torch.rand_like(decay)) if A == "complex" else decay,
        B=coefficient(B),
        C=coefficient(C),
    )
    if D:
        inputs["D"] = normal(dim, dtype=parameter)
    if z:
        inputs["z"] = normal(batch, dim, length)
    if delta_bias:
        inputs["delta_bias"] = 0.1 * torch.rand(dim, dtype=parameter)
    if initial_state:
        rows = batch if cu_seqlens is None else len(cu_seqlens) - 1
        inputs["initial_state"] = normal(rows, dim, dstate, dtype=state)
    if cu_seqlens is not None:
        inputs["cu_seqlens"] = torch.tensor(cu_seqlens)
    inputs.update(delta_softplus=delta_softplus, reverse=reverse)
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}


def update_inputs(batch=3, shape=(4,), dstate=3, groups=None, slots=None, dtype=torch.float64, device="cpu"):
    """Keyword arguments of selective_state_update, every option given; shape is (dim,) or (heads, headdim)."""
    parameter = torch.float64 if dtype is torch.float64 else torch.float32
    coefficient = (batch, dstate) if groups is None else (batch, groups, dstate)
    inputs = dict(
        state=torch.randn(slots or batch, *shape, dstate, dtype=parameter),
        x=torch.randn(batch, *shape, dtype=dtype),
        dt=torch.randn(batch, *shape, dtype=dtype),
        A=-0.2 - torch.rand(*shape, dstate, dtype=parameter),
        B=torch.randn(coefficient, dtype=dtype),
        C=torch.randn(coefficient, dtype=dtype),
        D=torch.randn(shape, dtype=parameter),
        z=torch.randn(batch, *shape, dtype=dtype),
        dt_bias=torch.randn(shape, dtype=parameter),
        dt_softplus=True,
    )
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}


def floating(inputs):
    """The names of the arguments that have gradients."""
    return [
        name for name, x in inputs.items() if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
    ]
