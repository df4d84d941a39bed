"""Find and load libmamba_ops.so, with errors that say what is wrong and what to do about it."""

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import torch

_PACKAGE = Path(__file__).absolute().parent
_OPERATOR = "mamba::selective_scan"
_BUILD = "build it from the source folder with `cmake --workflow --preset test`"


def library_path() -> Path:
    """The shared library with the operators, for `torch.ops.load_library`, `dlopen` or a linker."""
    return _PACKAGE / "lib" / "libmamba_ops.so"


def cmake_prefix_path() -> Path:
    """The folder to put in CMAKE_PREFIX_PATH so that `find_package(mamba_ops)` finds this package."""
    return _PACKAGE


def build_info() -> Dict[str, Any]:
    """What the build wrote down about itself: version, torch, cuda, cuda_architectures, build_type."""
    path = _PACKAGE / "build_info.json"
    if not path.is_file():
        return {}
    return json.loads(path.read_text(encoding="utf-8"))


def load_or_end_command() -> None:
    """`load`, but `python -m mamba_ops` ends with the message alone and exit code 2: Python imports the package, and so
    the library, before __main__ could do that. Until then sys.argv[0] is "-m"."""
    try:
        load()
    except ImportError as error:
        if sys.argv[0] != "-m" or "mamba_ops" not in sys.orig_argv:
            raise
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def load() -> None:
    """Load the library into the process once.

    Raises ImportError if the library is missing, was built for another minor version of torch, cannot be loaded, or
    if another copy has already registered the operators (loading a second one would abort the process).
    """
    path = library_path()
    if not path.is_file():
        raise ImportError(f"mamba_ops: the library {path} is missing; {_BUILD} and use the package it stages")
    _refuse_another_torch(path)
    if _is_registered() and not _is_loaded(path):
        raise ImportError(
            f"mamba_ops: the operators mamba::* are already registered by {_who_registered()}, so {path} cannot be "
            "loaded too; keep one copy of libmamba_ops.so in a process"
        )
    error = _dlopen(path)
    if error is not None:
        raise ImportError(
            f"mamba_ops: {path} (built for torch {_built_for() or 'unknown'}) does not load into torch "
            f"{torch.__version__}; rebuild it against this torch: {_BUILD}{_because(error)}"
        )
    torch.ops.load_library(str(path))


def _refuse_another_torch(path: Path) -> None:
    """libtorch keeps no binary compatibility across minor versions, even where every symbol happens to resolve."""
    built_for, running = _built_for(), torch.__version__
    if built_for is None or _minor(built_for) == _minor(running):
        return
    error = None if _is_registered() else _dlopen(path)
    raise ImportError(
        f"mamba_ops: {path} was built for torch {built_for}, but torch {running} is running; "
        f"install torch {_minor(built_for)}, or {_BUILD} with torch {running}{_because(error)}"
    )


def _because(error: Optional[str]) -> str:
    return "" if error is None else f"\n  mamba_ops could not be loaded because: {error}"


def _built_for() -> Optional[str]:
    return build_info().get("torch")


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _dlopen(path: Path, mode: int = 0) -> Optional[str]:
    """The dynamic loader's own message, or None if it loads. `torch.ops.load_library` hides that message."""
    try:
        ctypes.CDLL(str(path), mode=os.RTLD_NOW | mode)
    except OSError as error:
        return str(error)
    return None


def _is_loaded(path: Path) -> bool:
    return _dlopen(path, os.RTLD_NOLOAD) is None


def _is_registered() -> bool:
    return bool(torch._C._jit_get_schemas_for_operator(_OPERATOR))


def _who_registered() -> str:
    files = [path for path in _mapped_files() if "mamba_ops" in Path(path).name]
    return " and ".join(files) or "another library or module"


def _mapped_files() -> List[str]:
    """The files mapped into this process, most likely libraries, each once."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return sorted(torch.ops.loaded_libraries)
    fields = (line.split(maxsplit=5) for line in lines)
    return sorted({field[5] for field in fields if len(field) == 6 and field[5].startswith("/")})
