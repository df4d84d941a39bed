"""The command line: what it refuses, where it writes, and how it ends."""

import json
import os
import subprocess
import sys

import pytest
import torch
from mamba_ops.__main__ import main
from mamba_ops.bench import command
from mamba_ops.bench.report import Report

FAST = ["--device", "cpu", "--threads", "1", "--seconds", "0.002", "--quiet"]
TINY = [*FAST, "--sizes", "1x4x8x2", "2x4x16x2"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--sizes", "1x2"], "'1x2' is no size: write BATCHxDIMxLENGTH"),
        (["--sizes", "1x0x4"], "'1x0x4' is no size"),
        (["--peers", "nobody"], "there is no peer 'nobody': use all, none, or some of mamba_ops, loop"),
        (["--out", "no/such/folder/run"], "the folder no/such/folder of --out is not there: make it first"),
        (["--out", "no/such/"], "--out 'no/such/' names no file: give the beginning of a file name"),
        (["--out", ""], "--out '' names no file"),
        (["--threads", "0"], "must be above 0"),
        (["--threads", "1000000"], f"must be above 0 and at most {os.cpu_count()}, not 1000000"),
        (["--seconds", "nan"], "must be above 0 and finite, not nan"),
        (["--time-limit", "inf"], "must be above 0 and finite, not inf"),
        (["--dtype", "int8"], "invalid choice: 'int8'"),
        pytest.param(
            ["--device", "cuda"],
            "torch sees no CUDA device: use --device cpu",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device"),
        ),
    ],
)
def test_errors_name_the_remedy(capsys, arguments, message):
    try:
        code = main(["bench", *FAST, *arguments])
    except SystemExit as error:  # argparse's own
        code = error.code
    captured = capsys.readouterr()
    assert code == 2 and captured.out == ""
    assert message in captured.err and "Traceback" not in captured.err


def test_an_out_that_cannot_be_written_ends_it_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "find", lambda wanted: pytest.fail("it began to work"))
    (tmp_path / "run.csv").mkdir()
    assert main(["bench", *TINY, "--out", str(tmp_path / "run")]) == 2
    assert f"{tmp_path / 'run.csv'} of --out cannot be written (Is a directory)" in capsys.readouterr().err
    assert not (tmp_path / "run.json").exists()


def test_figures_that_could_not_be_written_are_shown(tmp_path, capsys, monkeypatch):
    def full(self, prefix):
        raise OSError("No space left on device")

    monkeypatch.setattr(Report, "write", full)
    with pytest.raises(OSError, match="No space left"):
        main(["bench", *TINY, "--peers", "none", "--out", str(tmp_path / "run")])
    assert "forward of (batch 1, dim 4, length 8, dstate 2)" in capsys.readouterr().out


def test_ctrl_c_before_the_first_measurement(capsys, monkeypatch):
    def interrupted(wanted):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "find", interrupted)
    assert main(["bench", *TINY]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_reader_that_has_seen_enough(package_path):
    arguments = [sys.executable, "-m", "mamba_ops", "info"]
    environment = dict(os.environ, PYTHONPATH=str(package_path))
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_from_the_shell(run_python, tmp_path):
    result = run_python("-m", "mamba_ops", "bench", *TINY, "--peers", "none", "--out", "run", cwd=tmp_path)
    assert result.returncode == 0 and "CUDA_HOME" not in result.stderr, result.stderr
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["results"]
    assert (tmp_path / "run.csv").is_file()
    result = run_python("-m", "mamba_ops", "bench", *FAST, "--sizes", "wrong", cwd=tmp_path)
    assert result.returncode == 2 and result.stderr.splitlines()[-1].startswith("error: 'wrong' is no size")
    result = run_python("-m", "mamba_ops", "--help")
    assert result.returncode == 0 and all(name in result.stdout for name in ("bench", "plot", "info"))
