"""The kernels of examples/kernel_study, where they were built; on a CUDA device their values too."""

import shutil
import subprocess

import mamba_ops
import pytest
import torch
from mamba_ops.reference import selective_scan_ref

LIBRARY = mamba_ops.library_path().with_name("libmamba_study.so")
SCHEMES = ["naive", "warp", "shared"]

needs_library = pytest.mark.skipif(not LIBRARY.is_file(), reason="built without CUDA: no libmamba_study.so")
needs_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def operator(scheme):
    torch.ops.load_library(str(LIBRARY))
    return getattr(torch.ops.mamba_study, f"scan_{scheme}")


def inputs(batch, dim, seqlen, dstate=None, device="cpu"):
    """Those of the contract's accuracy clause; dstate None: one state for each channel, with its own B and C."""
    A = -torch.randn(dim, *([] if dstate is None else [dstate])).exp()
    u, delta = torch.randn(2, batch, dim, seqlen)
    B, C = torch.randn(2, batch, dim if dstate is None else dstate, seqlen)
    tensors = (u, delta.abs() / 10, A, B, C / (dstate or 1) ** 0.5)
    return [x.to(device) for x in tensors]


def channels_last(x):
    """The same values, laid out [seqlen, batch, dim]."""
    return x.permute(2, 0, 1).contiguous().permute(1, 2, 0)


def largest_difference(y, arguments):
    exact = selective_scan_ref(*(x.double().cpu() for x in arguments))
    return (y.double().cpu() - exact).abs().max().item()


# The GPU's power of two is off by up to 2^-22. Over hundreds of steps with decays near 1 that adds up to several times
# the error of a loop that calls exp.
SIZES = {
    (2, 4, 8): 1e-5,
    (1, 32, 256): 1e-5,
    (8, 128, 64): 1e-5,
    (1, 1, 1): 1e-5,
    (3, 1, 65): 1e-5,
    (2, 9, 1): 1e-5,
    (1, 37, 531): 2e-5,
}


@needs_library
@needs_device
@every_scheme
@pytest.mark.parametrize("dstate", [None, 1, 3, 4, 16, 17, 32])
@pytest.mark.parametrize("size", SIZES)
def test_values(scheme, dstate, size):
    arguments = inputs(*size, dstate, "cuda")
    u, delta, A, B, C = arguments
    layouts = [
        arguments,
        [channels_last(u), channels_last(delta), A, channels_last(B), channels_last(C)],
        [u, channels_last(delta), A, channels_last(B), C],
        [torch.cat([x, x], -1)[..., : x.shape[-1]] if x.dim() == 3 else x for x in arguments],
        [torch.cat([x, x], -1)[..., ::2] if x.dim() == 3 else x for x in arguments],
    ]
    for laid_out in layouts:
        y = operator(scheme)(*laid_out)
        assert y.stride() == torch.empty_like(laid_out[0]).stride()
        assert largest_difference(y, laid_out) < SIZES[size]


@needs_library
@needs_device
@pytest.mark.parametrize("lane_steps", [1, 4, 8])
def test_steps_of_a_lane_of_the_warp(lane_steps):
    for seqlen in (1, 31, 129, 700):
        arguments = inputs(2, 5, seqlen, 16, "cuda")
        assert largest_difference(operator("warp")(*arguments, lane_steps), arguments) < 1e-5


@needs_library
@needs_device
@every_scheme
@pytest.mark.parametrize("size", [(0, 4, 8), (2, 0, 8), (2, 4, 0)])
def test_nothing_to_do(scheme, size):
    assert operator(scheme)(*inputs(*size, 16, "cuda")).shape == size


@needs_library
@needs_device
@every_scheme
def test_the_current_stream_is_used(scheme):
    arguments = inputs(2, 64, 300, 16, "cuda")
    expected = operator(scheme)(*arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = operator(scheme)(*arguments)
    y.zero_()
    graph.replay()
    torch.testing.assert_close(y, expected, rtol=0, atol=0)


WRONG = {
    "delta's shape": (
        lambda u, delta, A, B, C: (u, delta[..., 1:], A, B, C),
        ValueError,
        "expected delta to have the shape of u (batch, dim, seqlen) = [2, 4, 8], but got [2, 4, 7]",
    ),
    "u without batch": (
        lambda u, delta, A, B, C: (u[0], delta[0], A, B, C),
        ValueError,
        "expected u to have the shape (batch, dim, seqlen), but got [4, 8]",
    ),
    "channels of A": (
        lambda u, delta, A, B, C: (u, delta, A[:3], B, C),
        ValueError,
        "expected A to have the shape (dim) or (dim, dstate) with dim = 4, but got [3, 3]",
    ),
    "states": (
        lambda u, delta, A, B, C: (u, delta, torch.zeros(4, 33), B, C),
        ValueError,
        "expected A to have 1 to 32 states, but got 33; mamba::selective_scan takes any number",
    ),
    "states of C": (
        lambda u, delta, A, B, C: (u, delta, A, B, C[:, :2]),
        ValueError,
        "expected C to have the shape (batch, dstate, seqlen) = [2, 3, 8], but got [2, 2, 8]",
    ),
    "B of one state": (
        lambda u, delta, A, B, C: (u, delta, A[:, 0], B, C),
        ValueError,
        "expected B to have the shape of u (batch, dim, seqlen) = [2, 4, 8], but got [2, 3, 8]",
    ),
    "dtype": (
        lambda u, delta, A, B, C: (u, delta.double(), A, B, C),
        TypeError,
        "expected delta to be float32, but got float64",
    ),
    "device": (
        lambda u, delta, A, B, C: (u, delta, A, B.to("meta"), C),
        RuntimeError,
        "expected B to be on the device of u (cpu), but got meta; move all tensors of a call to one device",
    ),
    "gradient": (
        lambda u, delta, A, B, C: (u, delta, A.requires_grad_(), B, C),
        NotImplementedError,
        "expected A not to require grad, but got one that does; the study has no backward, use mamba::selective_scan "
        "or torch.no_grad()",
    ),
    "the CPU": (
        lambda *arguments: arguments,
        RuntimeError,
        "expected the tensors to be on a CUDA device, but got cpu; the programs study_*_simulated run the schemes on "
        "the CPU",
    ),
}


@needs_library
@every_scheme
@pytest.mark.parametrize("what", WRONG)
def test_errors(scheme, what):
    change, kind, message = WRONG[what]
    with pytest.raises(kind) as error:
        operator(scheme)(*change(*inputs(2, 4, 8, 3)))
    assert str(error.value).splitlines()[0] == f"scan_{scheme}: {message}"


@needs_library
def test_steps_of_a_lane_are_checked():
    with pytest.raises(ValueError, match="scan_warp: expected lane_steps to be 1, 4 or 8, but got 2"):
        operator("warp")(*inputs(2, 4, 8, 3), 2)


def test_it_builds_on_its_own_and_the_simulations_pass(source_root, tmp_path):
    source = source_root / "examples" / "kernel_study"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    for command in (
        ["cmake", "-S", source, "-B", tmp_path, "-DMAMBA_OPS_CUDA=OFF", *generator],
        ["cmake", "--build", tmp_path],
        ["ctest", "--test-dir", tmp_path, "--no-tests=error"],
    ):
        result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
    assert "tests passed, 0 tests failed out of 3" in result.stdout
