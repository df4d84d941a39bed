"""The ONNX translation against the operator, in onnxruntime."""

import mamba_ops
import mamba_ops.onnx
import pytest
import torch
from scan_inputs import CASES, scan_inputs

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

REAL = [name for name, case in CASES.items() if case.get("A") != "complex" and "cu_seqlens" not in case]


class Scan(torch.nn.Module):
    """The operator with what does not depend on the input as buffers."""

    def __init__(self, inputs, with_state):
        super().__init__()
        self.names = [name for name, x in inputs.items() if isinstance(x, torch.Tensor)]
        self.options = {name: x for name, x in inputs.items() if name not in self.names}
        self.operator = torch.ops.mamba.selective_scan_with_state if with_state else torch.ops.mamba.selective_scan

    def forward(self, *tensors):
        return self.operator(**dict(zip(self.names, tensors)), **self.options)


def export(module, args, path, **options):
    table = mamba_ops.onnx.translation_table()
    program = torch.onnx.export(module, args, dynamo=True, verbose=False, custom_translation_table=table, **options)
    program.save(path)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def run(session, args):
    feeds = {x.name: arg.detach().numpy() for x, arg in zip(session.get_inputs(), args)}
    return [torch.from_numpy(x) for x in session.run(None, feeds)]


@pytest.mark.parametrize("name", REAL)
def test_every_form_equals_the_operator(name, tmp_path):
    inputs = scan_inputs(**CASES[name], dtype=torch.float32)
    module = Scan(inputs, with_state=True).eval()
    args = tuple(inputs[name] for name in module.names)
    actual = run(export(module, args, tmp_path / "scan.onnx"), args)
    torch.testing.assert_close(tuple(actual), module(*args), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("names", [[], ["bias"], ["initial_state"], ["bias", "initial_state"]], ids=str)
@pytest.mark.parametrize("width", [1, 4])
def test_the_convolution_equals_the_operator(width, names, silu, tmp_path):
    optional = {"bias": torch.randn(3), "initial_state": torch.randn(2, 3, width - 1)}
    tensors = {"x": torch.randn(2, 3, 7), "weight": torch.randn(3, width), **{name: optional[name] for name in names}}

    class Conv(torch.nn.Module):
        def forward(self, *args):
            return torch.ops.mamba.causal_conv1d(**dict(zip(tensors, args)), silu=silu)

    args = tuple(tensors.values())
    used = tuple(x for x in args if x.numel())
    session = export(Conv().eval(), args, tmp_path / "conv.onnx")
    actual = run(session, used if len(session.get_inputs()) == len(used) else args)
    torch.testing.assert_close(tuple(actual), Conv()(*args), rtol=1e-5, atol=1e-5)


def test_dynamic_batch_and_length_of_a_whole_block(tmp_path):
    block = mamba_ops.nn.MambaBlock(16).eval()
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", min=2)
    session = export(block, (torch.randn(2, 10, 16),), tmp_path / "block.onnx", dynamic_shapes=({0: batch, 1: length},))
    for shape in ((2, 10, 16), (1, 3, 16), (5, 70, 16)):
        x = torch.randn(shape)
        torch.testing.assert_close(run(session, (x,))[0], block(x).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name, text", [("packed", "mamba_ops.onnx: expected no cu_seqlens"), ("complex", "complex")])
def test_what_has_no_translation_is_refused(name, text, tmp_path):
    inputs = scan_inputs(**CASES[name], dtype=torch.float32)
    module = Scan(inputs, with_state=False).eval()
    args = tuple(inputs[name] for name in module.names)
    with pytest.raises(Exception) as info:
        export(module, args, tmp_path / "scan.onnx")
    causes = []
    error = info.value
    while error is not None:
        causes.append(str(error))
        error = error.__cause__
    assert any(text in cause for cause in causes), causes
