"""What PyTorch's own machinery makes of the operators: opcheck, compile, export, forward mode, flops, the profiler."""

import io
from pathlib import Path

import mamba_ops  # noqa: F401  registers the operators
import pytest
import torch
from scan_inputs import CASES, floating, scan_inputs, update_inputs
from torch.autograd import forward_ad, gradcheck
from torch.utils.flop_counter import FlopCounterMode

mamba = torch.ops.mamba


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def requiring_grad(inputs, names):
    return {name: x.detach().requires_grad_() if name in names else x for name, x in inputs.items()}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_opcheck_of_the_private_forward(name, requires_grad, device):
    inputs = scan_inputs(**CASES[name], device=device)
    names = floating(inputs) if requires_grad else []
    torch.library.opcheck(mamba._selective_scan_fwd.default, (), requiring_grad(inputs, names))


@pytest.mark.parametrize("name", CASES)
def test_opcheck_of_the_private_backward(name, device):
    inputs = scan_inputs(**CASES[name], device=device)
    out, last_state, checkpoints = mamba._selective_scan_fwd(**inputs)
    every = [argument.name for argument in mamba._selective_scan_bwd.default._schema.arguments]
    optional = {key: inputs.get(key) for key in every if key in ("D", "z", "delta_bias", "initial_state", "cu_seqlens")}
    mask = [
        inputs.get(key) is not None for key in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")
    ]
    call = dict(
        inputs,
        **optional,
        dout=torch.randn_like(out),
        dlast_state=torch.randn_like(last_state),
        checkpoints=checkpoints,
        output_mask=mask,
    )
    torch.library.opcheck(mamba._selective_scan_bwd.default, (), call)
    torch.library.opcheck(mamba._selective_scan_bwd.default, (), {**call, "dlast_state": None})


def test_every_operator_says_that_it_is_pt2_compliant():
    for name in (
        "selective_scan",
        "selective_scan_with_state",
        "selective_state_update",
        "_selective_scan_fwd",
        "_selective_scan_bwd",
    ):
        assert torch.Tag.pt2_compliant_tag in getattr(mamba, name).default.tags


@pytest.mark.parametrize("name", CASES)
def test_forward_mode_derivatives(name, device):
    inputs = (
        scan_inputs(**CASES[name], batch=1, dim=2, length=4, dstate=2, groups=2, device=device)
        if ("cu_seqlens" not in CASES[name])
        else scan_inputs(**CASES[name], dim=2, dstate=2, device=device)
    )
    names = floating(inputs)

    def function(*tensors):
        return mamba.selective_scan_with_state(**{**inputs, **dict(zip(names, tensors))})

    tensors = [inputs[key].requires_grad_() for key in names]
    assert gradcheck(function, tensors, check_forward_ad=True, check_backward_ad=False)


def test_a_tangent_of_one_input_in_float32(device):
    inputs = scan_inputs(**CASES["every_option"], dtype=torch.float32, device=device)
    tangent, small = torch.randn_like(inputs["delta"]), 1e-3
    with forward_ad.dual_level():
        dual = {**inputs, "delta": forward_ad.make_dual(inputs["delta"], tangent)}
        actual = forward_ad.unpack_dual(mamba.selective_scan(**dual)).tangent
    after, before = (
        mamba.selective_scan(**{**inputs, "delta": inputs["delta"] + sign * small * tangent}) for sign in (1, -1)
    )
    torch.testing.assert_close(actual, (after - before) / (2 * small), rtol=1e-2, atol=1e-2)


def layer(u, delta, A, B, C, D, z, delta_bias, initial_state):
    out, state = mamba.selective_scan_with_state(u.sin(), delta, -A.abs(), B, C, D, z, delta_bias, True, initial_state)
    return out * 2, state


def layer_inputs(batch, length, device, **kwargs):
    inputs = scan_inputs(**CASES["every_option"], batch=batch, length=length, dtype=torch.float32, device=device)
    return {name: x.requires_grad_() for name, x in inputs.items() if isinstance(x, torch.Tensor)}


def gradients(function, inputs):
    out, state = function(**inputs)
    return (out, state), torch.autograd.grad(out.square().sum() + state.sum(), list(inputs.values()))


def test_one_compiled_graph_serves_many_sizes(device):
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    for batch, length in ((2, 11), (3, 40), (5, 17), (2, 64)):
        inputs = layer_inputs(batch, length, device)
        torch.testing.assert_close(gradients(compiled, inputs), gradients(layer, inputs))
    assert counter.frame_count == 1


def test_explain_finds_no_graph_break():
    explained = torch._dynamo.explain(layer)(**layer_inputs(2, 11, "cpu"))
    assert explained.graph_break_count == 0 and explained.graph_count == 1


def test_compiled_autograd(device):
    inputs = layer_inputs(2, 11, device)
    _, expected = gradients(layer, inputs)
    out, state = layer(**inputs)
    loss = out.square().sum() + state.sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        loss.backward()
    torch.testing.assert_close([x.grad for x in inputs.values()], list(expected))


def test_a_compiled_decoding_loop_changes_the_state_in_place(device):
    inputs = update_inputs(dtype=torch.float32, device=device)
    state = inputs.pop("state")
    tensors = {name: x for name, x in inputs.items() if name != "dt_softplus"}

    def decode(state, x, **rest):
        for _ in range(3):
            x = mamba.selective_state_update(state, x, **rest, dt_softplus=True)
        return x

    expected_state = state.clone()
    expected = decode(expected_state, **tensors)
    compiled = torch.compile(decode, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(state, **tensors), expected)
    torch.testing.assert_close(state, expected_state)


class Scan(torch.nn.Module):
    def __init__(self, dim=4, dstate=3):
        super().__init__()
        self.A = torch.nn.Parameter(-torch.rand(dim, dstate))
        self.D = torch.nn.Parameter(torch.randn(dim))

    def forward(self, u, delta, B, C, initial_state=None):
        return mamba.selective_scan_with_state(
            u, delta, self.A, B, C, self.D, delta_softplus=True, initial_state=initial_state
        )


def exportable(batch, length, device, with_state):
    inputs = scan_inputs(initial_state=True, batch=batch, length=length, dtype=torch.float32, device=device)
    return tuple(inputs[name] for name in ("u", "delta", "B", "C", "initial_state")[: 5 if with_state else 4])


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_export_saves_loads_and_takes_other_sizes(strict, with_state, device):
    module = Scan().to(device)
    batch, length = torch.export.Dim("batch", max=1024), torch.export.Dim("length", max=4096)
    shapes = ({0: batch, 2: length},) * 4 + ({0: batch},) * with_state
    program = torch.export.export(module, exportable(2, 6, device, with_state), dynamic_shapes=shapes, strict=strict)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    for size in ((2, 6), (1, 33), (7, 19)):
        args = exportable(*size, device, with_state)
        torch.testing.assert_close(loaded(*args), module(*args))


def test_vmap_folds_into_one_call():
    inputs = scan_inputs(**CASES["every_option"])
    u, A = torch.stack([inputs["u"]] * 3), torch.stack([inputs["A"]] * 3)
    rest = {name: x for name, x in inputs.items() if name not in ("u", "A")}
    with torch.profiler.profile() as profile:
        torch.vmap(lambda u, A: mamba.selective_scan(u, A=A, **rest))(u, A)
    calls = {event.key: event.count for event in profile.key_averages()}
    assert calls["mamba::selective_scan"] <= 2  # the mapped call, and the one that it folds into


def test_the_profiler_shows_the_operators_by_name(device):
    inputs = scan_inputs(**CASES["plain"], device=device)
    with torch.profiler.profile() as profile:
        mamba.selective_scan_with_state(**requiring_grad(inputs, ["u"]))[0].sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert {"mamba::selective_scan_with_state", "mamba::_selective_scan_fwd", "mamba::_selective_scan_bwd"} <= names


@pytest.mark.parametrize("requires_grad", [False, True])
def test_flops_are_counted(requires_grad):
    inputs = scan_inputs(batch=2, dim=4, length=11, dstate=3)
    inputs = requiring_grad(inputs, ["u"] if requires_grad else [])
    with FlopCounterMode(display=False) as counter:
        out = mamba.selective_scan(**inputs)
        forward = counter.get_total_flops()
        if requires_grad:
            out.sum().backward()
    steps = 2 * 4 * 11
    assert forward == 7 * 3 * steps + steps
    if requires_grad:
        assert counter.get_total_flops() == forward + 20 * 3 * steps + 2 * steps


def test_flops_of_a_decoding_step():
    with FlopCounterMode(display=False) as counter:
        mamba.selective_state_update(**update_inputs(batch=3, shape=(2, 5), dstate=4))
    assert counter.get_total_flops() == 3 * 2 * 5 * (7 * 4 + 1 + 2 + 4 + 1 + 3)


def test_flops_of_the_convolution():
    x, weight = torch.randn(2, 3, 11, requires_grad=True), torch.randn(3, 4)
    with FlopCounterMode(display=False) as counter:
        out, state = mamba.causal_conv1d(x, weight)
        forward = counter.get_total_flops()
        out.sum().backward()
        both = counter.get_total_flops()
        mamba.causal_conv1d_update(state.detach(), x.detach()[..., 0], weight)
    assert forward == 2 * 4 * 2 * 3 * 11 and both == 3 * forward
    assert counter.get_total_flops() - both == 2 * 4 * 2 * 3


FIXTURE = Path(__file__).parent / "data" / "scan_v1.pt"


def test_a_module_saved_by_the_first_version_still_loads():
    module = torch.jit.load(FIXTURE)
    args, expected = module.example()
    torch.testing.assert_close(module(*args), expected, rtol=1e-5, atol=1e-6)
    assert "mamba::selective_scan_with_state" in str(module.inlined_graph)
