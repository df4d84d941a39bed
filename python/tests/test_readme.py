"""The code in README.md, run as it stands there."""

import json
import re
import subprocess

import mamba_ops
import pytest
import torch
from test_checkpoint import HF_CONFIG, hf_weights, write_checkpoint

BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def files(source_root):
    """File name to content, for every code block but the shell's."""
    blocks = BLOCK.findall((source_root / "README.md").read_text(encoding="utf-8"))
    assert all(name for language, name, _ in blocks if language != "sh"), "a code block without a file name is not run"
    return {name: code for _, name, code in blocks if name}


@pytest.fixture(scope="module")
def folder(files, tmp_path_factory):
    """A folder with those files, as a reader would make it, and a small checkpoint under the name used there."""
    folder = tmp_path_factory.mktemp("readme")
    for name, code in files.items():
        folder.joinpath(name).write_text(code, encoding="utf-8")
    checkpoint = folder / "mamba-130m-hf"
    checkpoint.mkdir()
    torch.manual_seed(0)
    write_checkpoint(checkpoint, HF_CONFIG, hf_weights())
    return folder


def test_every_language_has_its_quick_start(files):
    assert {"scan.py", "export.py", "script.py", "lm.py", "serve.py", "main.cpp", "CMakeLists.txt"} == set(files)


@pytest.mark.parametrize("name", ["scan.py", "export.py", "script.py", "lm.py", "serve.py"])
def test_python(folder, run_python, name):
    result = run_python(folder / name, cwd=folder)
    assert result.returncode == 0, result.stderr


def test_cpp(folder, run_python, build):
    run_python(folder / "script.py", cwd=folder)
    build(folder, folder / "build")
    result = subprocess.run([folder / "build" / "quick_start"], capture_output=True, text=True, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "out [2, 64, 100], gradient [2, 64, 100]\nblock [2, 100, 32]\n"


def test_the_commands_are_presets(source_root):
    readme = (source_root / "README.md").read_text(encoding="utf-8")
    presets = json.loads((source_root / "CMakePresets.json").read_text(encoding="utf-8"))
    workflows = {preset["name"] for preset in presets["workflowPresets"]}
    named = re.findall(r"^cmake --workflow --preset (\w+)$", readme, re.MULTILINE)
    assert named == ["demo", "test"] and workflows.issuperset(named)


def test_the_error_shown_is_the_real_one(source_root):
    readme = (source_root / "README.md").read_text(encoding="utf-8")
    u, A, B = torch.ones(2, 64, 128), -torch.ones(64, 4), torch.ones(2, 4, 128)
    with pytest.raises(ValueError) as error:
        mamba_ops.selective_scan(u, u[..., :100], A, B, B)
    assert f"ValueError: {error.value}\n" in readme
