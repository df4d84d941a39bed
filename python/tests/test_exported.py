"""AOTInductor packages of the operators, run from Python and from C++."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(shutil.which("c++") is None, reason="AOTInductor needs a C++ compiler"),
    pytest.mark.skipif(
        not Path(sysconfig.get_path("include"), "Python.h").is_file(), reason="AOTInductor needs Python.h"
    ),
]


@pytest.fixture(scope="module")
def exported(source_root, tmp_path_factory, run_python):
    """The folder of the packages that examples/export_lm.py makes: the scan with its options, and the step."""
    folder = tmp_path_factory.mktemp("exported")
    result = run_python(source_root / "examples" / "export_lm.py", "--out", folder)
    assert result.returncode == 0, result.stderr
    return folder


def test_packages_run_in_python_and_advance_the_caches_in_place(exported):
    reference = torch.load(exported / "reference.pt")
    prefill, step = (torch._inductor.aoti_load_package(str(exported / f"{name}.pt2")) for name in ("prefill", "step"))
    for batch in (1, 3):
        logits, *caches = prefill(reference["ids"].expand(batch, -1).contiguous())
        before = [x.clone() for x in caches]
        for expected in reference["logits"].unbind(1):
            torch.testing.assert_close(logits, expected.expand(batch, -1), rtol=1e-4, atol=1e-4)
            logits = step(logits.argmax(-1), caches)
        assert all((x != y).any() for x, y in zip(caches, before))


def test_packages_run_in_cpp(exported, programs):
    result = subprocess.run([programs / "run_exported", exported], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "largest difference from Python's logits: " in result.stdout


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
