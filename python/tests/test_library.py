"""Loading: the paths, `info`, and the errors that say what is wrong with an installation."""

import json
import shutil
import subprocess
from pathlib import Path

import mamba_ops
import pytest
import torch

IMPORT = "import mamba_ops"


@pytest.fixture
def package(tmp_path):
    """A copy of the package to break: real sources, the library as a link to the real one."""
    source = Path(mamba_ops.__file__).parent
    copy = tmp_path / "mamba_ops"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("lib", "include", "__pycache__"))
    (copy / "lib").mkdir()
    (copy / "lib" / "libmamba_ops.so").symlink_to(mamba_ops.library_path())
    return copy


def last_line(result):
    assert result.returncode == 1, f"exit code {result.returncode}: {result.stderr}"
    return result.stderr.splitlines()[-1]


def test_paths():
    assert mamba_ops.library_path().is_file()
    assert list(mamba_ops.cmake_prefix_path().rglob("mamba_opsConfig.cmake"))


def test_info(run_python):
    rows = mamba_ops.info()
    assert rows["mamba_ops"] == mamba_ops.__version__
    assert rows["torch running"] == torch.__version__
    result = run_python("-m", "mamba_ops", "info")
    assert result.returncode == 0, result.stderr
    for name, value in rows.items():
        assert name in result.stdout and str(value) in result.stdout


def test_a_copy_of_the_package_works(package, run_python):
    result = run_python(code=IMPORT + "; print(mamba_ops.__file__)", path=package.parent)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(str(package))


def test_a_missing_library(package, run_python):
    (package / "lib" / "libmamba_ops.so").unlink()
    message = last_line(run_python(code=IMPORT, path=package.parent))
    assert message.startswith("ImportError: mamba_ops: the library ")
    assert "is missing" in message and "cmake --workflow" in message


def test_a_build_for_another_torch(package, run_python):
    info = package / "build_info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "torch": "2.4.1"}))
    result = run_python(code=IMPORT, path=package.parent)
    assert last_line(result).startswith("ImportError: mamba_ops: ")
    assert f"was built for torch 2.4.1, but torch {torch.__version__} is running" in result.stderr
    assert "install torch 2.4" in result.stderr


@pytest.mark.parametrize("command", ["info", "bench"])
def test_the_command_line_of_a_build_for_another_torch(package, run_python, command):
    info = package / "build_info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "torch": "2.4.1"}))
    result = run_python("-m", "mamba_ops", command, path=package.parent)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("error: mamba_ops: ") and "Traceback" not in result.stderr
    assert "was built for torch 2.4.1" in result.stderr and "install torch 2.4" in result.stderr


def broken_library(path):
    """A library with an undefined symbol, as one that was built against another torch has."""
    source = path.with_suffix(".c")
    source.write_text("void missing_from_this_torch(void); void (*table[])(void) = {missing_from_this_torch};")
    path.unlink()
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", path], check=True)


@pytest.mark.parametrize("built_for", [None, "2.4.1"])
def test_an_undefined_symbol(package, run_python, built_for):
    broken_library(package / "lib" / "libmamba_ops.so")
    info = package / "build_info.json"
    built = json.loads(info.read_text())
    built_for = built_for or built["torch"]
    info.write_text(json.dumps({**built, "torch": built_for}))
    result = run_python(code=IMPORT, path=package.parent)
    assert "undefined symbol: missing_from_this_torch" in last_line(result)
    assert f"built for torch {built_for}" in result.stderr and torch.__version__ in result.stderr
    assert "cmake --workflow" in result.stderr


def test_a_second_copy(tmp_path, run_python):
    copy = shutil.copy(mamba_ops.library_path(), tmp_path)
    message = last_line(run_python(code=f"import torch; torch.ops.load_library({str(copy)!r}); {IMPORT}"))
    assert message.startswith("ImportError: mamba_ops: ")
    assert f"already registered by {copy}" in message and str(mamba_ops.library_path()) in message


def test_operators_registered_by_a_module(run_python):
    code = "import torch; torch.library.define('mamba::selective_scan', '(Tensor u) -> Tensor');" + IMPORT
    assert "already registered by another library or module" in last_line(run_python(code=code))


def test_loading_the_same_file_first_is_fine(run_python):
    path = str(mamba_ops.library_path())
    result = run_python(code=f"import torch; torch.ops.load_library({path!r}); {IMPORT}; mamba_ops.selective_scan")
    assert result.returncode == 0, result.stderr
