"""What is installed: one dictionary to read, or to paste into a bug report."""

from typing import Any, Dict

import torch

from ._library import build_info, library_path

__version__: str = build_info().get("version", "unknown")


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
        "CPU level of torch": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
