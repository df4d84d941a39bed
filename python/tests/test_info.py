"""`python -m mamba_ops info`: what it shows, and the advice it gives."""

import json

import mamba_ops
import pytest
from mamba_ops import _info
from mamba_ops.__main__ import main
from mamba_ops._advice import Device, advice, runs_on

H200 = Device("NVIDIA H200", 9, 0)
GOOD = {
    "torch built for": "2.11.0",
    "torch running": "2.11.0+cu130",
    "CUDA": "13.0.88",
    "CUDA architectures": "80-real 90",
    "CUDA of torch": "13.0",
    "CPU level": "v4",
}
AVX512 = ["avx2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]


def test_the_cpu_level_is_that_of_the_library(run_python):
    assert mamba_ops.info()["CPU level"] in ("baseline", "v3", "v4")
    code = "import os; os.environ['MAMBA_OPS_CPU'] = 'baseline'; import mamba_ops; print(mamba_ops.info()['CPU level'])"
    result = run_python(code=code)
    assert result.stdout == "baseline\n", result.stderr


def test_operators_and_their_keys():
    operators = _info.operators()
    assert {"mamba::selective_scan", "mamba::selective_state_update", "mamba::causal_conv1d"} <= operators.keys()
    for name, keys in operators.items():
        assert {"CPU", "CUDA", "Meta", "Autograd"} <= set(keys), name


def test_the_command_shows_everything(capsys):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert str(mamba_ops.library_path()) in text
    for name, keys in _info.operators().items():
        assert any(line.startswith(name) and line.endswith(" ".join(keys)) for line in text.splitlines())
    assert "\nadvice\n* " in text


def test_json(capsys):
    assert main(["info", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert mamba_ops.info().items() <= shown.items()
    assert shown["operators"] == _info.operators() and isinstance(shown["advice"], list)


def test_nothing_to_say_when_all_fits():
    assert advice(GOOD, [H200], AVX512, "") == []
    assert advice({**GOOD, "CUDA": "not built in", "CUDA of torch": "none"}, [], AVX512, "") == []


@pytest.mark.parametrize(
    "changes, devices, level, problem, remedy",
    [
        ({"torch running": "2.11.1+cu130"}, [H200], "", "built for torch 2.11.0, running on torch 2.11.1", "cmake"),
        ({"CUDA": "not built in"}, [H200], "", "no CUDA kernels inside", "install nvcc"),
        ({"CUDA of torch": "none"}, [], "", "torch is built for the CPU alone", "install torch with CUDA"),
        ({}, [], "", "torch sees no CUDA device", "nvidia-smi"),
        ({"CUDA of torch": "12.8"}, [H200], "", "built with CUDA 13.0.88, torch with CUDA 12.8", "torch's CUDA"),
        ({}, [Device("NVIDIA T4", 7, 5)], "", "no kernel inside runs on the NVIDIA T4", "ARCHITECTURES=75"),
        ({"CPU level": "v3"}, [H200], "v3", "holds the CPU kernels at level v3", "without it"),
        ({"CPU level": "v3"}, [H200], "v4", "asks for more than this CPU has", "v3 is used"),
        ({}, [H200], "avx512", "MAMBA_OPS_CPU=avx512 is no level", "baseline, v3, v4"),
        ({"CPU level": "baseline"}, [H200], "", "slowest level", "no AVX2"),
    ],
)
def test_advice(changes, devices, level, problem, remedy):
    sentences = advice({**GOOD, **changes}, devices, AVX512, level)
    assert len(sentences) == 1
    assert problem in sentences[0] and remedy in sentences[0]


@pytest.mark.parametrize(
    "architecture, major, minor, runs",
    [
        ("90", 9, 0, True),
        ("90", 12, 0, True),  # its PTX
        ("90", 8, 9, False),
        ("90-real", 9, 0, True),
        ("90-real", 10, 0, False),
        ("80-real", 8, 6, True),
        ("86-real", 8, 0, False),
        ("80-virtual", 9, 0, True),
        ("90a", 9, 0, True),
        ("90a", 10, 0, False),
        ("100f", 10, 3, True),
        ("100f", 12, 0, False),
        ("120-virtual", 12, 1, True),
        ("native", 9, 0, False),
    ],
)
def test_which_code_runs_where(architecture, major, minor, runs):
    assert runs_on(architecture, Device("", major, minor)) is runs
