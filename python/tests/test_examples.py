"""The examples, built on their own against the installed package and run in a row, as their users would."""

import subprocess
from typing import Optional, Tuple

import pytest
import torch
from mamba_ops.nn import MambaCache, MambaConfig, MambaLM
from torch import Tensor


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


@pytest.mark.parametrize("batch", [1, 3, 5])
def test_cpp_serves_prompts_together_as_each_alone(trained, programs, tmp_path, batch, device):
    folder, _ = trained
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the c\nt\non the mat. the cat\n")
    options = ["--prompts", prompts, "--requests", 7, "--batch", batch, "--tokens", 24, "--device", device, "--verify"]
    result = run(programs / "serve", folder / "model.pt", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("--- request ") == 7 and "\non the mat. the cat|" in result.stdout
    # 1 + 23 i / 4 tokens for i = 1, 2, 3, 4, 1, 2, 3
    assert "7 requests, 96 tokens in " in result.stdout and f" steps of {batch} rows" in result.stdout
    assert "tokens/s, the same tokens\n" in result.stdout


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("batch", [1, 5])
def test_cpp_serves_by_a_graph_as_without(trained, programs, batch):
    folder, _ = trained
    options = ["--device", "cuda", "--graph", "--requests", 7, "--batch", batch, "--tokens", 24, "--verify"]
    result = run(programs / "serve", folder / "model.pt", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "without the graph: " in result.stdout and result.stdout.count("tokens/s, the same tokens\n") == 2


class Mixed(torch.nn.Module):
    """A language model that gives each row the logits of the row before it, once several are real."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    @torch.jit.export
    def prefill(self, ids: Tensor, cu_seqlens: Optional[Tensor] = None) -> Tuple[Tensor, MambaCache]:
        return self.model.prefill(ids, None, None, False, cu_seqlens)

    @torch.jit.export
    def step(self, token: Tensor, cache: MambaCache, slots: Optional[Tensor] = None) -> Tensor:
        logits = self.model.step(token, cache, slots)
        if slots is not None and int((slots >= 0).sum()) > 1:
            logits = logits.roll(1, 0)
        return logits

    @torch.jit.export
    def new_cache(self, slots: int) -> MambaCache:
        return self.model.new_cache(slots)


def test_serving_fails_when_a_row_disturbs_another(programs, tmp_path):
    model = MambaLM(MambaConfig(vocab_size=256, d_model=16, n_layer=1)).eval()
    torch.nn.init.normal_(model.lm_head.weight)
    for name, module in (("right", model), ("mixed", Mixed(model))):
        torch.jit.script(module).save(tmp_path / f"{name}.pt")
        result = run(programs / "serve", tmp_path / f"{name}.pt", "--device", "cpu", "--requests", 4, "--verify")
        assert result.returncode == (name == "mixed"), result.stdout + result.stderr
        assert ("differs from the same prompt decoded alone" in result.stdout) == (name == "mixed")


def test_cpp_trains(programs):
    result = run(programs / "train")
    assert result.returncode == 0, result.stdout + result.stderr
    losses = [float(line.split()[-1]) for line in result.stdout.splitlines() if line.startswith("step ")]
    assert len(losses) == 11 and losses[-1] < losses[0] / 10


def test_programs_say_what_is_wrong(programs, tmp_path):
    result = run(programs / "generate", tmp_path / "missing.pt")
    assert result.returncode == 2 and "missing.pt" in result.stderr and "frame #" not in result.stderr
    for name in ("generate", "serve"):
        result = run(programs / name, "model.pt", "--steps", "3")
        assert result.returncode == 2 and "unknown option --steps" in result.stderr
    result = run(programs / "serve", "model.pt", "--prompts", tmp_path / "missing.txt")
    assert result.returncode == 2 and "cannot read" in result.stderr and "missing.txt" in result.stderr
    wrong = dict(
        serve=(["--batch", "-1"], ["--requests", "2x"], ["--threads", "0"], ["other.pt"], ["--device"]),
        generate=(
            ["--tokens", "-1"],
            ["--temperature", "warm"],
            ["--temperature", "nan"],
            ["--seed", ""],
            ["other.pt"],
        ),
        run_exported=(["other"], ["--steps"]),
    )
    for name, cases in wrong.items():
        for words in cases:
            result = run(programs / name, "model.pt", *words)
            assert result.returncode == 2 and words[-1] in result.stderr and "frame #" not in result.stderr
            assert run(programs / name).returncode == 2
    model = MambaLM(MambaConfig(vocab_size=256, d_model=16, n_layer=1)).eval()
    torch.jit.script(model).save(tmp_path / "model.pt")
    result = run(programs / "serve", tmp_path / "model.pt", "--graph", "--device", "cpu")
    assert result.returncode == 2 and "for a graph of the step" in result.stderr and "frame #" not in result.stderr
    result = run(programs / "serve", tmp_path / "missing.pt")
    assert result.returncode == 2 and "missing.pt" in result.stderr and "frame #" not in result.stderr
