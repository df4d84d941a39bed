"""Decoding steps on a CUDA device: streams, graphs whose inputs change, slots, and what a step launches."""

import functools

import mamba_ops  # noqa: F401  registers the operators
import pytest
import torch
from scan_inputs import update_inputs
from torch.profiler import ProfilerActivity, profile

mamba = torch.ops.mamba
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
EVERY_FORM = pytest.mark.parametrize("dim, state", [((40,), 16), ((40,), 5), ((4, 8), 64)], ids=str)


def scan_step(dim, state, slots=7, indices=(4, -1, 2), index_dtype=torch.int32, seed=0):
    torch.manual_seed(seed)
    call = update_inputs(shape=dim, dstate=state, slots=slots, dtype=torch.float32, device="cuda")
    call["state_batch_indices"] = torch.tensor(indices, dtype=index_dtype, device="cuda")
    return call


def conv_step(seed=0):
    torch.manual_seed(seed)
    made = dict(conv_state=(7, 40, 3), x=(3, 40), weight=(40, 4), bias=(40,))
    call = {name: torch.randn(shape, device="cuda") for name, shape in made.items()}
    return dict(call, silu=True, state_batch_indices=torch.tensor([4, -1, 2], device="cuda"))


def captured(step):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    return graph, out


def run_replays(operator, state_name, call, others):
    """Replays with the values of other calls copied in, beside eager calls."""
    eager_state = call[state_name].clone()
    graph, out = captured(lambda: operator(**call))
    call[state_name].copy_(eager_state)
    for other in others:
        for name, x in other.items():
            if isinstance(x, torch.Tensor) and name != state_name:
                call[name].copy_(x)
        graph.replay()
        expected = operator(**{**call, state_name: eager_state})
        torch.testing.assert_close((out, call[state_name]), (expected, eager_state), rtol=0, atol=0)


@EVERY_FORM
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_a_graph_follows_its_inputs_and_slots(dim, state, index_dtype):
    rows = [(4, -1, 2), (-1, 6, 0), (1, 2, 3), (6, 5, -3)]
    others = [scan_step(dim, state, indices=r, index_dtype=index_dtype, seed=i) for i, r in enumerate(rows)]
    call = scan_step(dim, state, index_dtype=index_dtype, seed=9)
    run_replays(mamba.selective_state_update, "state", call, others)


def test_a_graph_of_the_convolution_follows_its_inputs():
    run_replays(mamba.causal_conv1d_update, "conv_state", conv_step(9), [conv_step(seed) for seed in range(4)])


STEPS = {
    "scan": (mamba.selective_state_update, "state", functools.partial(scan_step, (40,), 16)),
    "scan_5": (mamba.selective_state_update, "state", functools.partial(scan_step, (40,), 5)),
    "scan_heads": (mamba.selective_state_update, "state", functools.partial(scan_step, (4, 8), 64)),
    "conv": (mamba.causal_conv1d_update, "conv_state", conv_step),
}


@pytest.mark.parametrize("operator, state, make", STEPS.values(), ids=STEPS)
def test_two_streams_do_not_disturb_each_other(operator, state, make):
    calls = [make(seed=seed) for seed in (1, 2)]
    expected = []
    for call in calls:
        alone = call[state].clone()
        outs = [operator(**{**call, state: alone}) for _ in range(20)]
        expected.append((outs[-1], alone))
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in calls]
    outs = [None, None]
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                outs[i] = operator(**calls[i])
    torch.cuda.synchronize()
    for i, call in enumerate(calls):
        torch.testing.assert_close((outs[i], call[state]), expected[i], rtol=0, atol=0)


@pytest.mark.parametrize("operator, state, make", STEPS.values(), ids=STEPS)
def test_padding_and_other_slots_keep_their_bits(operator, state, make):
    call = make()
    call["state_batch_indices"] = torch.tensor([5, -1, 7], device="cuda")
    for name in ("x", "dt", "z", "B", "C"):
        if name in call:
            call[name][1:] = float("nan")
    before = call[state].clone()
    out = operator(**call)
    assert out[0].isfinite().all() and not out[1:].any()
    others = [slot for slot in range(7) if slot != 5]
    assert torch.equal(call[state][others].view(torch.int32), before[others].view(torch.int32))


@pytest.mark.parametrize("operator, state, make", STEPS.values(), ids=STEPS)
def test_slots_of_a_pool_of_more_than_2_to_the_31_elements(operator, state, make):
    call = make()
    few = call[state][:3].clone()
    slots = 2**31 // few[0].numel() + 3
    if torch.cuda.mem_get_info()[0] < 1.2 * slots * few[0].nbytes:
        pytest.skip("the device's memory is too small")
    pool = torch.full((slots, *few.shape[1:]), 0.5, device="cuda")
    rows = torch.tensor([slots - 1, 0, slots - 3], device="cuda")
    pool[rows] = few
    out = operator(**{**call, state: pool, "state_batch_indices": rows})
    expected = operator(**{**call, state: few, "state_batch_indices": torch.arange(3, device="cuda")})
    torch.testing.assert_close((out, pool[rows]), (expected, few), rtol=0, atol=0)
    assert all((pool[slot] == 0.5).all() for slot in (1, 2, slots // 2, slots - 2))


def kernels_of(call):
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    return [event.name for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]


@EVERY_FORM
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_step_is_one_kernel(dtype, dim, state):
    call = scan_step(dim, state)
    call.update({name: call[name].to(dtype) for name in ("x", "dt", "z", "B", "C")})
    assert len(kernels_of(lambda: mamba.selective_state_update(**call))) == 1
    conv = conv_step()
    conv.update({name: conv[name].to(dtype) for name in ("conv_state", "x")})
    assert len(kernels_of(lambda: mamba.causal_conv1d_update(**conv))) == 1
