"""ONNX: translations of the operators for `torch.onnx.export(..., dynamo=True)`.

    torch.onnx.export(model, args, dynamo=True, custom_translation_table=mamba_ops.onnx.translation_table())

The scan becomes an ONNX `Scan` over time in float32 (float64 for float64 inputs), the convolution a `Conv`, so dynamic
batch and length work and any runtime with the standard operators can run them. Needs the packages onnx and onnxscript
when it is called.

Covered: real A of either form; B and C constant, shared or grouped; every optional argument but cu_seqlens; reverse.
Packed sequences raise NotImplementedError. Complex A (ONNX has no complex numbers) and the in-place steps,
selective_state_update and causal_conv1d_update, have no translation: the exporter says so.
"""

from typing import Callable, Dict

import torch


def translation_table() -> Dict[Callable, Callable]:
    """The operators and their translations, for `custom_translation_table` of `torch.onnx.export`."""
    from . import _onnx_conv, _onnx_scan

    return {
        torch.ops.mamba.causal_conv1d.default: _onnx_conv.causal_conv1d,
        torch.ops.mamba.selective_scan.default: _onnx_scan.selective_scan,
        torch.ops.mamba.selective_scan_with_state.default: _onnx_scan.selective_scan_with_state,
    }
