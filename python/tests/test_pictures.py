"""The pictures of the README and the figures behind them."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from mamba_ops.bench.report import read_report

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def figures(source_root):
    return lambda name: read_report(str(source_root / "benchmarks" / "results" / f"bench-{name}.json"))


def test_the_pictures_are_there_and_name_their_machines(source_root, figures):
    paths = re.findall(
        r"^!\[[^\]]+\]\(([^)]+)\)$", (source_root / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(paths) == len(set(paths)) == 5
    devices = [figures(name).machine["device"] for name in ("cuda", "cpu")]
    for path in paths:
        root = ElementTree.parse(source_root / path).getroot()
        text = " ".join("".join(element.itertext()) for element in root.iter(f"{SVG}text"))
        assert len(list(root.iter(f"{SVG}path"))) > 20 and any(device in text for device in devices)


@pytest.mark.parametrize("name, least", [("cuda", 1000), ("cpu", 40)])
def test_the_figures_bear_out_what_the_readme_says(figures, name, least):
    report = figures(name)
    loops = {
        row["length"]: row["times_ours"]
        for row in report.results
        if row["implementation"] == "loop" and row["direction"] == "forward" and (row["batch"], row["dim"]) == (1, 256)
    }
    assert loops[1024] > least and loops[2048] > least
    assert name == "cuda" or report.machine["threads"] == 1


def test_the_figures_are_whole_and_name_no_paths(figures):
    for name in ("cuda", "cuda-models", "cpu"):
        report = figures(name)
        assert report.is_complete and report.machine["note"].startswith("commit ")
        assert not any(str(value).startswith("/") for value in report.machine.values())
        close = {"float32": 1e-4, "bfloat16": 3e-2}
        assert all(row["difference"] <= close[row["dtype"]] for row in report.results)
