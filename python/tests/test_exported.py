"""AOTInductor packages of the operators, run from Python and from C++."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

pytestmark = [
    pytest.mark.skipif(shutil.which("c++") is None, reason="AOTInductor needs a C++ compiler"),
    pytest.mark.skipif(
        not Path(sysconfig.get_path("include"), "Python.h").is_file(), reason="AOTInductor needs Python.h"
    ),
]


CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))


class Exported:
    """The folder of the packages that examples/export_lm.py makes: the scan with its options, and the step."""

    def __init__(self, folder, device):
        self.folder, self.device = folder, device

    def load(self, name):
        return torch._inductor.aoti_load_package(str(self.folder / f"{name}.pt2"))


@pytest.fixture(autouse=True)
def default_device():
    yield
    torch.set_default_device(None)


@pytest.fixture(scope="module", params=["cpu", CUDA])
def exported(request, source_root, tmp_path_factory, run_python):
    folder = tmp_path_factory.mktemp("exported")
    result = run_python(source_root / "examples" / "export_lm.py", "--out", folder, "--device", request.param)
    assert result.returncode == 0, result.stderr
    return Exported(folder, request.param)


def test_packages_run_in_python_and_advance_the_cache_in_place(exported):
    torch.set_default_device(exported.device)
    reference = torch.load(exported.folder / "reference.pt", exported.device)
    prefill, step = exported.load("prefill"), exported.load("step")
    for batch in (1, 3):
        ids, lengths = reference["ids"].expand(batch, -1).contiguous(), torch.full((batch,), reference["ids"].shape[1])
        empty = (torch.zeros(batch, *reference[name].shape[1:]) for name in ("conv", "ssm"))
        logits, *cache = prefill(ids, lengths, *empty)
        for expected in reference["logits"].unbind(1):
            torch.testing.assert_close(logits, expected.expand(batch, -1), rtol=1e-4, atol=1e-4)
            logits = step(logits.argmax(-1), torch.arange(batch), *cache)
        for name, x in zip(("conv", "ssm"), cache):
            assert not torch.equal(x, reference[name].expand_as(x))  # one step further


def test_packages_serve_padded_prompts_from_a_pool(exported):
    """Prompts of two lengths, read in two parts, step in the slots of a pool that others live in, with padding rows."""
    torch.set_default_device(exported.device)
    model, prefill, step = torch.jit.load(exported.folder / "model.pt"), exported.load("prefill"), exported.load("step")
    model.to(exported.device)
    texts = [torch.randint(256, (length,)) for length in (5, 9)]
    ids = torch.stack([F.pad(text, [0, 9 - len(text)]) for text in texts])
    _, *cache = prefill(ids[:, :4].contiguous(), torch.tensor([4, 4]), *model.new_cache(2))
    logits, *cache = prefill(ids[:, 4:].contiguous(), torch.tensor([1, 5]), *cache)
    pool = [torch.randn(4, *x.shape[1:]) for x in cache]
    idle = [x[[0, 2]].clone() for x in pool]
    for x, rows in zip(pool, cache):
        x[[3, 1]] = rows
    for _ in range(4):
        for row, text in zip(logits, texts):
            torch.testing.assert_close(row, model.prefill(text[None])[0][0], rtol=1e-4, atol=1e-5)
        tokens = logits.argmax(-1)
        texts = [torch.cat([text, token[None]]) for text, token in zip(texts, tokens)]
        logits = step(torch.stack([tokens[1], tokens.new_zeros([]), tokens[0]]), torch.tensor([1, -1, 3]), *pool)[
            [2, 0]
        ]
    assert all(torch.equal(x[[0, 2]], before) for x, before in zip(pool, idle))


def test_packages_run_in_cpp(exported, programs):
    command = [programs / "run_exported", exported.folder, "--device"]
    result = subprocess.run([*command, exported.device], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "largest difference from Python's logits and cache: " in result.stdout
    other = "cpu" if exported.device == "cuda" else "meta"
    result = subprocess.run([*command, other], capture_output=True, text=True)
    assert result.returncode == 2 and f"to be made for {other}, but got one for {exported.device}" in result.stderr


class Scan(torch.nn.Module):
    """The operator with only what it must be given."""

    def forward(self, u, delta, A, B, C):
        return torch.ops.mamba.selective_scan(u, delta, A, B, C)


def test_a_package_without_optional_inputs(tmp_path):
    def inputs(batch, length):
        u = torch.randn(batch, 4, length)
        B = torch.randn(batch, 3, length)
        return u, torch.rand_like(u), -torch.rand(4, 3), B, B.clone()

    batch, length = torch.export.Dim("batch", max=64), torch.export.Dim("length", max=1024)
    along = {0: batch, 2: length}
    program = torch.export.export(Scan(), inputs(2, 6), dynamic_shapes=(along, along, {}, along, along))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "scan.pt2"))
    loaded = torch._inductor.aoti_load_package(path)
    for size in ((2, 6), (1, 40), (5, 3)):
        args = inputs(*size)
        torch.testing.assert_close(loaded(*args), Scan()(*args))
