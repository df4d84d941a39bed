"""The operators through Python's functions: values against the reference, gradients, registration."""

import inspect

import mamba_ops
import pytest
import torch
from mamba_ops.reference import selective_scan_ref
from scan_inputs import CASES, floating, scan_inputs, update_inputs

FUNCTIONS = ["selective_scan", "selective_scan_with_state", "selective_state_update"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_are_those_of_the_operators(name):
    arguments = getattr(torch.ops.mamba, name).default._schema.arguments
    parameters = inspect.signature(getattr(mamba_ops, name)).parameters
    assert list(parameters) == [argument.name for argument in arguments]
    for argument in arguments:
        parameter = parameters[argument.name]
        assert (parameter.default is not parameter.empty) == argument.has_default_value()
        if argument.has_default_value():
            assert parameter.default == argument.default_value


@pytest.mark.parametrize("case", CASES)
def test_scan(case, device):
    inputs = scan_inputs(**CASES[case], device=device)
    expected, expected_state = selective_scan_ref(**inputs, return_last_state=True)
    torch.testing.assert_close(mamba_ops.selective_scan(**inputs), expected)
    out, last_state = mamba_ops.selective_scan_with_state(**inputs)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(last_state, expected_state)


@pytest.mark.parametrize("case", CASES)
def test_gradcheck(case):
    inputs = scan_inputs(**CASES[case], dim=2, length=11, dstate=2)
    names = floating(inputs)
    fixed = {name: x for name, x in inputs.items() if name not in names}

    def scan(*tensors):
        return mamba_ops.selective_scan_with_state(**dict(zip(names, tensors)), **fixed)

    assert torch.autograd.gradcheck(scan, [inputs[name].requires_grad_() for name in names])


@pytest.mark.parametrize("shape, groups", [((4,), None), ((4,), 2), ((2, 3), 2)], ids=str)
def test_a_step_is_a_scan_of_length_one(shape, groups, device):
    inputs = update_inputs(shape=shape, groups=groups, device=device)
    state = inputs.pop("state")

    def channels(name, last):
        return inputs[name].reshape(*inputs[name].shape[: -len(shape) - last], -1, *inputs[name].shape[-1:][:last])

    per_group = inputs["B"].shape[-2] if groups else 1
    expected, expected_state = mamba_ops.selective_scan_with_state(
        *(inputs[name].flatten(1)[..., None] for name in ("x", "dt")),
        inputs["A"].flatten(0, -2),
        *(inputs[name].reshape(3, per_group, -1)[..., None] for name in ("B", "C")),
        inputs["D"].flatten(),
        inputs["z"].flatten(1)[..., None],
        inputs["dt_bias"].flatten(),
        True,
        state.flatten(1, -2),
    )
    out = mamba_ops.selective_state_update(state, **inputs)
    torch.testing.assert_close(out.flatten(1), expected[..., 0])
    torch.testing.assert_close(state.flatten(1, -2), expected_state)


def test_slots_of_a_step(device):
    inputs = update_inputs(slots=5, device=device)
    before = inputs["state"].clone()
    slots = [4, -1, 0]
    out = mamba_ops.selective_state_update(**inputs, state_batch_indices=torch.tensor(slots, device=device))
    assert not out[1].any()
    for row, slot in ((0, 4), (2, 0)):
        rows = {name: x[row : row + 1] if name in ("x", "dt", "B", "C", "z") else x for name, x in inputs.items()}
        rows["state"] = before[slot : slot + 1].clone()
        torch.testing.assert_close(out[row : row + 1], mamba_ops.selective_state_update(**rows))
        torch.testing.assert_close(inputs["state"][slot : slot + 1], rows["state"])
    torch.testing.assert_close(inputs["state"][1:4], before[1:4], rtol=0, atol=0)


def test_a_step_is_not_differentiable():
    inputs = update_inputs()
    inputs["x"].requires_grad_()
    with pytest.raises(NotImplementedError, match="selective_scan_with_state"):
        mamba_ops.selective_state_update(**inputs)
    with torch.no_grad():
        mamba_ops.selective_state_update(**inputs)


def test_mamba_scan_has_the_softplus_inside(device):
    inputs = scan_inputs(D=True, z=True, delta_softplus=True, device=device)
    expected = selective_scan_ref(**inputs)
    del inputs["delta_softplus"], inputs["reverse"]
    torch.testing.assert_close(mamba_ops.mamba_scan(**inputs), expected)


def test_selective_scan_forward_asks_for_no_gradient():
    inputs = scan_inputs(D=True, delta_softplus=True)
    del inputs["delta_softplus"], inputs["reverse"]
    inputs["u"].requires_grad_()
    out = mamba_ops.selective_scan_forward(**inputs)
    assert not out.requires_grad
    torch.testing.assert_close(out, mamba_ops.mamba_scan(**inputs).detach())


def test_a_wrong_shape_is_named():
    inputs = scan_inputs()
    inputs["delta"] = inputs["delta"][..., 1:]
    with pytest.raises(ValueError, match=r"selective_scan: expected delta to have the shape of u .*\[2, 4, 10\]"):
        mamba_ops.selective_scan(**inputs)


def scripted(u: torch.Tensor, delta: torch.Tensor, A: torch.Tensor, B: torch.Tensor, state: torch.Tensor):
    out, last_state = mamba_ops.selective_scan_with_state(u, delta, A, B, B, initial_state=state, delta_softplus=True)
    same = mamba_ops.mamba_scan(u, delta, A, B, B) + mamba_ops.selective_scan(u, delta, A, B, B, delta_softplus=True)
    step = mamba_ops.selective_state_update(state.clone(), u[..., 0], delta[..., 0], A, B[..., 0], B[..., 0])
    return out, last_state, same, step, mamba_ops.selective_scan_forward(u, delta, A, B, B)


def test_the_functions_can_be_called_from_script():
    x = scan_inputs(initial_state=True)
    arguments = [x[name] for name in ("u", "delta", "A", "B", "initial_state")]
    torch.testing.assert_close(torch.jit.script(scripted)(*arguments), scripted(*arguments))


@pytest.mark.parametrize("name", FUNCTIONS[:2])
@pytest.mark.parametrize("case", ["every_option", "groups", "packed", "complex"])
def test_opcheck_scan(name, case, device):
    inputs = scan_inputs(**CASES[case], dtype=torch.float32, device=device)
    for tensor in floating(inputs):
        inputs[tensor].requires_grad_()
    torch.library.opcheck(getattr(torch.ops.mamba, name).default, (), inputs)


def test_opcheck_step(device):
    torch.library.opcheck(torch.ops.mamba.selective_state_update.default, (), update_inputs(device=device))
