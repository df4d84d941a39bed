"""What is installed: one dictionary to read, or to paste into a bug report."""

import ctypes
import re
from typing import Any, Dict, List

import torch

from ._advice import Device
from ._library import build_info, library_path

__version__: str = build_info().get("version", "unknown")

_KEYS = ("CPU", "CUDA", "Meta", "Autograd", "AutocastCPU", "AutocastCUDA", "FuncTorchBatched")


def info() -> Dict[str, Any]:
    """Versions and build options of the package and of the torch it runs on. Starts no CUDA context."""
    build = build_info()
    return {
        "mamba_ops": __version__,
        "torch running": torch.__version__,
        "torch built for": build.get("torch", "unknown"),
        "library": str(library_path()),
        "build type": build.get("build_type", "unknown"),
        "CUDA": build.get("cuda") or "not built in",
        "CUDA architectures": " ".join(build.get("cuda_architectures") or ["none"]),
        "CUDA of torch": torch.version.cuda or "none",
        "CPU level": cpu_level(),
        "CPU level of torch": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def cpu_level() -> str:
    """The instruction set that the CPU kernels use in this process: baseline (SSE2), v3 (AVX2) or v4 (AVX-512)."""
    version = ctypes.CDLL(str(library_path())).mamba_version
    version.restype = ctypes.c_char_p
    found = re.search(r"CPU level (\S+)", version().decode())
    return found.group(1) if found else "unknown"


def operators() -> Dict[str, List[str]]:
    """The operators of the library, each with the dispatch keys that have a kernel."""
    names = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("mamba::"))
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return {name: [key for key in _KEYS if has_kernel(name, key)] for name in names}


def cuda_devices() -> List[Device]:
    """The CUDA devices that torch sees."""
    properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [Device(device.name, device.major, device.minor) for device in properties]
