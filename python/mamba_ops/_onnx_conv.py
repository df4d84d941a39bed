"""The causal convolution in ONNX operators. Imports onnxscript: only mamba_ops.onnx imports this module."""

from onnxscript import opset18 as op

from ._onnx_scan import _ints, _refuse_packed, _wide_type


def causal_conv1d(x, weight, bias=None, initial_state=None, cu_seqlens=None, silu: bool = False):
    """Return (out, last_state) as the operator does, computed in float32 or float64."""
    _refuse_packed(cu_seqlens)
    dim, width = weight.shape
    wide_type = _wide_type(x)
    if initial_state is None:
        shape = op.Concat(op.Shape(x, start=0, end=2), _ints(width - 1), axis=0)
        initial_state = op.Expand(op.CastLike(op.Constant(value_float=0.0), x), shape)
    seen = op.Concat(initial_state, x, axis=2)
    inputs = [op.Cast(seen, to=wide_type), op.Unsqueeze(op.Cast(weight, to=wide_type), _ints(1))]
    if bias is not None:
        inputs.append(op.Cast(bias, to=wide_type))
    out = op.Conv(*inputs, group=int(dim))
    if silu:
        out = op.Mul(out, op.Sigmoid(out))
    last_state = op.Slice(seen, op.Shape(x, start=2, end=3), op.Shape(seen, start=2, end=3), _ints(2))
    return op.CastLike(out, x), last_state
