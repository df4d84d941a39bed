"""The examples, built on their own against the installed package and run in a row, as their users would."""

import subprocess

import pytest
import torch


@pytest.fixture(scope="module")
def trained(source_root, tmp_path_factory, run_python):
    """The folder where train_lm.py left its files, and what it printed."""
    folder = tmp_path_factory.mktemp("trained")
    text = folder / "text.txt"
    text.write_text("the cat sat on the mat. " * 400)
    script = source_root / "examples" / "train_lm.py"
    options = ["--steps", "150", "--d-model", "16", "--layers", "1", "--batch", "2", "--length", "32"]
    result = run_python(script, "--text", text, "--out", folder, *options)
    assert result.returncode == 0, result.stderr
    return folder, result.stdout


def run(program, *arguments):
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)


def test_the_language_model_learns(trained):
    _, printed = trained
    before, after = (float(word) for word in printed.split("held-out text: ")[1].split() if word[0].isdigit())
    assert before > 7 and after < before - 1
    assert "[##############################] 100%" in printed


def test_cpp_repeats_pythons_logits(trained, programs):
    folder, _ = trained
    arguments = [folder / "model.pt", "--prompt", "the c", "--tokens", "20", "--temperature", "0"]
    result = run(programs / "generate", *arguments, "--reference", folder / "reference.pt")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "largest difference from Python's logits: " in result.stdout
    assert "\nthe c" in result.stdout and " tokens/s" in result.stdout


def test_cpp_refuses_other_logits(trained, programs, tmp_path):
    folder, _ = trained
    for name in ("prompt_logits", "decoded_logits"):
        for wrong in (2e-4, float("nan")):
            reference = torch.load(folder / "reference.pt")
            reference[name][0, -1, 7] += wrong
            torch.save(reference, tmp_path / "wrong.pt")
            result = run(
                programs / "generate", folder / "model.pt", "--reference", tmp_path / "wrong.pt", "--tokens", 0
            )
            assert result.returncode == 1, result.stdout + result.stderr


def test_cpp_trains(programs):
    result = run(programs / "train")
    assert result.returncode == 0, result.stdout + result.stderr
    losses = [float(line.split()[-1]) for line in result.stdout.splitlines() if line.startswith("step ")]
    assert len(losses) == 11 and losses[-1] < losses[0] / 10


def test_programs_say_what_is_wrong(programs, tmp_path):
    result = run(programs / "generate", tmp_path / "missing.pt")
    assert result.returncode == 2 and "missing.pt" in result.stderr
    result = run(programs / "generate", "model.pt", "--steps", "3")
    assert result.returncode == 2 and "unknown option --steps" in result.stderr
