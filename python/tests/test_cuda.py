"""What only a CUDA device shows: the current stream and device, CUDA graphs, no synchronisation."""

import mamba_ops  # noqa: F401  registers the operators
import pytest
import torch
from scan_inputs import CASES, floating, scan_inputs, update_inputs

mamba = torch.ops.mamba
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
EVERY = pytest.mark.parametrize("name", CASES)


def forward_and_backward(inputs, names):
    outputs = mamba.selective_scan_with_state(**inputs)
    weights = [torch.ones_like(x) for x in outputs]
    return [*outputs, *torch.autograd.grad(outputs, [inputs[key] for key in names], weights)]


def differentiable(name, device="cuda"):
    inputs = scan_inputs(**CASES[name], dim=32, dtype=torch.float32, device=device)
    names = floating(inputs)
    return {key: x.requires_grad_() if key in names else x for key, x in inputs.items()}, names


def capture(function):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function()
    return graph, results


@EVERY
def test_a_graph_follows_its_inputs(name):
    inputs, names = differentiable(name)
    graph, results = capture(lambda: forward_and_backward(inputs, names))
    with torch.no_grad():
        inputs["u"].mul_(2)
    graph.replay()
    torch.testing.assert_close(results, forward_and_backward(inputs, names), rtol=0, atol=0)


def test_a_graph_of_decoding_advances_the_state():
    inputs = update_inputs(dtype=torch.float32, device="cuda")
    start = inputs["state"].clone()
    graph, out = capture(lambda: mamba.selective_state_update(**inputs))
    inputs["state"].copy_(start)
    graph.replay()
    expected_state = start.clone()
    expected = mamba.selective_state_update(**{**inputs, "state": expected_state})
    torch.testing.assert_close((out, inputs["state"]), (expected, expected_state), rtol=0, atol=0)


@EVERY
def test_nothing_synchronises(name):
    inputs, names = differentiable(name)
    step = update_inputs(slots=5, dtype=torch.float32, device="cuda")
    step["state_batch_indices"] = torch.tensor([3, -1, 0], device="cuda")
    for mode in ("default", "error"):
        torch.cuda.set_sync_debug_mode(mode)
        try:
            forward_and_backward(inputs, names)
            mamba.selective_state_update(**step)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_work_goes_to_the_current_stream():
    inputs = scan_inputs(dim=32, dtype=torch.float32, device="cuda")
    expected = mamba.selective_scan(**inputs)
    late = {**inputs, "u": torch.zeros_like(inputs["u"])}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late["u"].copy_(inputs["u"])
        out = mamba.selective_scan(**late)
    stream.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device only")
@EVERY
def test_a_device_that_is_not_the_current_one(name):
    torch.manual_seed(0)
    here, names = differentiable(name)
    there = {
        key: x.detach().to("cuda:1").requires_grad_(key in names) if isinstance(x, torch.Tensor) else x
        for key, x in here.items()
    }
    expected, actual = forward_and_backward(here, names), forward_and_backward(there, names)
    assert torch.cuda.current_device() == 0 and all(x.device.index == 1 for x in actual)
    for got, want in zip(actual, expected):
        assert torch.equal(got.cpu(), want.cpu())
