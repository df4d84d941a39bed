import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


def _cuda_or_skip():
    return pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=_cuda_or_skip())])
def device(request):
    return request.param


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The tensors here are too small to share; threads that wait for each other only slow a busy machine down."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def source_root():
    """The folder of README.md and examples/."""
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def package_path():
    """The folder that Python imports mamba_ops from."""
    import mamba_ops

    return Path(mamba_ops.__file__).parents[1]


@pytest.fixture(scope="session")
def run_python(package_path):
    """Run Python in its own process: code, or a script with arguments; `path` is where it finds mamba_ops."""

    def run(*arguments, code=None, path=package_path, cwd=None):
        command = [sys.executable, *(["-c", code] if code is not None else map(str, arguments))]
        environment = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd)

    return run


@pytest.fixture(scope="session")
def build():
    """Build a CMake project against the mamba_ops package under test."""

    def run(*command):
        result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr

    def build(source, binary):
        import mamba_ops

        prefix = f"-DCMAKE_PREFIX_PATH={mamba_ops.cmake_prefix_path()}"
        run("cmake", "-S", source, "-B", binary, prefix, f"-DPython3_EXECUTABLE={sys.executable}")
        run("cmake", "--build", binary, "--parallel", 2)

    return build


@pytest.fixture(scope="session")
def programs(source_root, tmp_path_factory, build):
    """The folder of the built C++ examples."""
    folder = tmp_path_factory.mktemp("examples")
    build(source_root / "examples", folder)
    return folder
