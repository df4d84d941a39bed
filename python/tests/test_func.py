"""torch.func and higher derivatives against the readable loop, whose derivatives are PyTorch's own."""

import pytest
import torch
from mamba_ops.reference import selective_scan_ref
from scan_inputs import CASES, floating, scan_inputs, update_inputs
from torch.autograd import gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

scan = torch.ops.mamba.selective_scan_with_state
step = torch.ops.mamba.selective_state_update
EVERY = pytest.mark.parametrize("name", CASES)


def reference(**inputs):
    return selective_scan_ref(**inputs, return_last_state=True)


def split(name, device, **sizes):
    """Names of the differentiable inputs of a case, their tensors, and the operator as a function of them."""
    inputs = scan_inputs(**CASES[name], device=device, **sizes)
    names = floating(inputs)

    def call(operator):
        return lambda *tensors: operator(**{**inputs, **dict(zip(names, tensors))})

    return names, tuple(inputs[key] for key in names), call


@EVERY
def test_vjp(name, device):
    _, tensors, call = split(name, device)
    outputs, pull = vjp(call(scan), *tensors)
    expected_outputs, expected_pull = vjp(call(reference), *tensors)
    torch.testing.assert_close(outputs, expected_outputs)
    weights = tuple(torch.randn_like(x) for x in outputs)
    torch.testing.assert_close(pull(weights), expected_pull(weights))


@EVERY
def test_jvp(name, device):
    _, tensors, call = split(name, device)
    tangents = tuple(torch.randn_like(x) for x in tensors)
    torch.testing.assert_close(jvp(call(scan), tensors, tangents), jvp(call(reference), tensors, tangents))


@pytest.mark.parametrize("transform", [jacrev, jacfwd, hessian])
def test_jacobians(transform, device):
    inputs = scan_inputs(**CASES["every_option"], batch=1, dim=2, length=3, dstate=2, device=device)

    def of_A(operator):
        return lambda A: operator(**{**inputs, "A": A})[0]

    torch.testing.assert_close(transform(of_A(scan))(inputs["A"]), transform(of_A(reference))(inputs["A"]))


@EVERY
def test_second_derivatives(name, device):
    sizes = {} if "cu_seqlens" in CASES[name] else dict(batch=1, length=3)
    _, tensors, call = split(name, device, dim=2, dstate=2, **sizes)
    assert gradgradcheck(call(scan), [x.requires_grad_() for x in tensors])


def elements(name, names, device, in_dim=0, count=3):
    """A call, its named tensors with a mapped dimension, and the calls that the mapped one stands for."""
    calls = []
    for i in range(count):
        torch.manual_seed(i)
        calls.append(scan_inputs(**CASES[name], device=device))
    for call in calls:
        call.update({key: x for key, x in calls[0].items() if key not in names})
    return calls[0], {key: torch.stack([call[key] for call in calls], in_dim) for key in names}, calls


def stacked(results):
    return tuple(map(torch.stack, zip(*results)))


def subsets(name):
    names = floating(scan_inputs(**CASES[name]))
    return [*([key] for key in names), names]


@pytest.mark.parametrize(
    "name, names",
    [(name, names) for name in CASES for names in subsets(name)],
    ids=lambda x: x if isinstance(x, str) else "+".join(x),
)
def test_vmap(name, names, device):
    base, mapped, calls = elements(name, names, device)
    rest = {key: x for key, x in base.items() if key not in names}
    torch.testing.assert_close(vmap(lambda kw: scan(**kw, **rest))(mapped), stacked(scan(**call) for call in calls))


@pytest.mark.parametrize("in_dim", [1, -1])
def test_vmap_over_another_dimension(in_dim, device):
    names = ["u", "A", "B", "initial_state"]
    base, mapped, calls = elements("every_option", names, device, in_dim)
    rest = {key: x for key, x in base.items() if key not in names}
    actual = vmap(lambda kw: scan(**kw, **rest), in_dims=(in_dim,))(mapped)
    torch.testing.assert_close(actual, stacked(scan(**call) for call in calls))


def test_vmap_over_packings_with_gradients(device):
    inputs = scan_inputs(**CASES["packed"], device=device)
    packings = torch.tensor([[0, 4, 4, 9, 11], [1, 1, 2, 3, 3], [0, 0, 0, 0, 11]], device=device)
    del inputs["cu_seqlens"]

    def loss(u, packing):
        out, state = scan(**{**inputs, "u": u}, cu_seqlens=packing)
        return out.square().sum() + state.sum()

    actual = vmap(grad(loss), in_dims=(None, 0))(inputs["u"], packings)
    torch.testing.assert_close(actual, torch.stack([grad(loss)(inputs["u"], row) for row in packings]))


@EVERY
def test_per_sample_gradients_of_everything(name, device):
    names = floating(scan_inputs(**CASES[name]))
    base, mapped, calls = elements(name, names, device)
    rest = {key: x for key, x in base.items() if key not in names}

    def loss(kw):
        out, state = scan(**kw, **rest)
        return out.square().sum() + (state * state.conj()).real.sum()

    actual = vmap(grad(loss))(mapped)
    expected = [grad(loss)({key: call[key] for key in names}) for call in calls]
    torch.testing.assert_close(actual, {key: torch.stack([x[key] for x in expected]) for key in names})


def test_gradient_of_a_vmapped_call_and_vmap_of_a_tangent(device):
    base, mapped, calls = elements("every_option", ["u"], device)

    def loss(A):
        return vmap(lambda u: scan(**{**base, "u": u, "A": A})[0])(mapped["u"]).square().sum()

    def loss_one_by_one(A):
        return sum(scan(**{**call, "A": A})[0].square().sum() for call in calls)

    torch.testing.assert_close(grad(loss)(base["A"]), grad(loss_one_by_one)(base["A"]))

    def push(u):
        return jvp(lambda u: scan(**{**base, "u": u})[0], (u,), (torch.ones_like(u),))[1]

    torch.testing.assert_close(vmap(push)(mapped["u"]), torch.stack([push(call["u"]) for call in calls]))


def test_vmap_of_vmap(device):
    inputs = scan_inputs(**CASES["every_option"], device=device)
    u = torch.randn(2, 3, *inputs["u"].shape, dtype=torch.float64, device=device)
    A = -torch.rand(3, *inputs["A"].shape, dtype=torch.float64, device=device)
    actual = vmap(vmap(lambda u, A: scan(**{**inputs, "u": u, "A": A})), in_dims=(0, None))(u, A)
    expected = [stacked(scan(**{**inputs, "u": u[i, j], "A": A[j]}) for j in range(3)) for i in range(2)]
    torch.testing.assert_close(actual, stacked(expected))


def test_a_bad_shape_under_vmap_is_named_as_without(device):
    inputs = scan_inputs(device=device)
    u = torch.stack([inputs["u"]] * 2)
    inputs["delta"] = inputs["delta"][..., :-1]
    with pytest.raises(ValueError, match=r"selective_scan_with_state: expected delta .*but got \[2, 4, 10\]"):
        vmap(lambda u: scan(**{**inputs, "u": u}))(u)


def steps(names, device, count=3, **kwargs):
    calls = []
    for i in range(count):
        torch.manual_seed(i)
        calls.append(update_inputs(device=device, **kwargs))
    for call in calls:
        call.update({key: x for key, x in calls[0].items() if key not in names})
    return calls


ALONG_ROWS = ["state", "x", "dt", "B", "C", "z"]


@pytest.mark.parametrize("names", [["state"], ALONG_ROWS, [*ALONG_ROWS, "A", "D", "dt_bias"]], ids="+".join)
@pytest.mark.parametrize("in_dim", [0, 1])
@pytest.mark.parametrize("shape", [(4,), (2, 3)], ids=str)
def test_vmap_of_a_decoding_step(names, in_dim, shape, device):
    calls = steps(names, device, shape=shape)
    mapped = {key: torch.stack([call[key] for call in calls], in_dim) for key in names}
    rest = {key: x for key, x in calls[0].items() if key not in names}
    out = vmap(lambda kw: step(**kw, **rest), in_dims=(in_dim,))(mapped)
    torch.testing.assert_close(out, torch.stack([step(**call) for call in calls]))
    torch.testing.assert_close(mapped["state"], torch.stack([call["state"] for call in calls], in_dim))


def test_vmap_of_a_decoding_step_with_slots(device):
    calls = steps(ALONG_ROWS, device, slots=5)
    rows = torch.tensor([[0, 4, -1], [2, 1, 0], [-1, -1, 3]], device=device)
    mapped = {key: torch.stack([call[key] for call in calls]) for key in ALONG_ROWS}
    rest = {key: x for key, x in calls[0].items() if key not in ALONG_ROWS}
    out = vmap(lambda kw, rows: step(**kw, **rest, state_batch_indices=rows))(mapped, rows)
    expected = torch.stack([step(**call, state_batch_indices=row) for call, row in zip(calls, rows)])
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(mapped["state"], torch.stack([call["state"] for call in calls]))


def test_vmap_never_reaches_the_slots_of_another_element():
    calls = steps(ALONG_ROWS, "cpu", slots=5)
    mapped = {key: torch.stack([call[key] for call in calls]) for key in ALONG_ROWS}
    rest = {key: x for key, x in calls[0].items() if key not in ALONG_ROWS}
    rows, before = torch.tensor([[0, 5, 1]] * 3), mapped["state"].clone()
    with pytest.raises(ValueError, match="expected state_batch_indices to be below the number of slots"):
        vmap(lambda kw, rows: step(**kw, **rest, state_batch_indices=rows))(mapped, rows)
    torch.testing.assert_close(mapped["state"], before, rtol=0, atol=0)


def test_vmap_of_a_decoding_step_needs_a_state_for_each_element(device):
    inputs = update_inputs(device=device)
    x = torch.stack([inputs["x"]] * 2)
    with pytest.raises(ValueError, match="selective_state_update: expected state to be mapped by vmap"):
        vmap(lambda x: step(**{**inputs, "x": x}))(x)


def test_a_transformed_gradient_runs_the_kernel_and_not_the_formula(device):
    inputs = scan_inputs(**CASES["every_option"], device=device)
    with torch.profiler.profile() as profile:
        grad(lambda A: scan(**{**inputs, "A": A})[0].sum())(inputs["A"])
    names = {event.key for event in profile.key_averages()}
    assert "mamba::_selective_scan_bwd" in names and "aten::constant_pad_nd" not in names


@pytest.mark.parametrize("name", ["every_option", "groups", "packed", "complex"])
def test_third_derivatives(name, device):
    names, tensors, call = split(name, device)

    def third(operator):
        xs = [x.clone().requires_grad_() for x in tensors]
        out, _ = call(operator)(*xs)
        value = out.square().sum()
        for _ in range(3):
            found = torch.autograd.grad(value, xs, create_graph=True, allow_unused=True)
            value = sum((x * x.conj()).real.sum() for x in found if x is not None)
        return value

    torch.testing.assert_close(third(scan), third(reference), rtol=1e-8, atol=1e-8)
