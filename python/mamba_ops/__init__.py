"""mamba_ops: the selective scan of Mamba as a PyTorch operator for C++, TorchScript and Python.

Importing the package loads the library, which registers `torch.ops.mamba.*`.
"""

from . import _flops, _library

_library.load_or_end_command()
_flops.register()

from . import compat, nn, onnx, reference  # noqa: E402  they use the operators
from ._info import __version__, info  # noqa: E402
from ._library import cmake_prefix_path, library_path  # noqa: E402
from .ops import (  # noqa: E402
    causal_conv1d,
    causal_conv1d_update,
    mamba_scan,
    selective_scan,
    selective_scan_forward,
    selective_scan_with_state,
    selective_state_update,
)

__all__ = [
    "__version__",
    "causal_conv1d",
    "causal_conv1d_update",
    "cmake_prefix_path",
    "compat",
    "info",
    "library_path",
    "mamba_scan",
    "nn",
    "onnx",
    "reference",
    "selective_scan",
    "selective_scan_forward",
    "selective_scan_with_state",
    "selective_state_update",
]
