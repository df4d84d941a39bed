"""`python -m mamba_ops plot`: the pictures show what the reports hold, and can be read."""

import json
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from mamba_ops.__main__ import main
from mamba_ops.bench.report import FORMAT, Report
from mamba_ops.plot.panels import by_length, by_size

NAMES = {"mamba_ops": 1.0, "loop": 500.0, "mamba_ssm": 1.5}
LENGTHS = (64, 128, 256)
SVG = "{http://www.w3.org/2000/svg}"


def row(name, direction, length, seconds, batch=1):
    return dict(
        implementation=name, label=f"the {name}", direction=direction, dtype="float32", layout="channel-first",
        batch=batch, dim=8, length=length, dstate=2, seconds=seconds, seconds_low=0.9 * seconds,
        seconds_high=1.1 * seconds, samples=5, times_ours=NAMES[name], difference=0.0, floor="memory",
        floor_seconds=1e-7 * length, share_of_floor=1e-7 * length / seconds,
    )  # fmt: skip


def report(device="NVIDIA H200", kind="cuda"):
    results = [
        row(name, direction, length, 1e-6 * length * factor)
        for direction in ("forward", "backward")
        for length in LENGTHS
        for name, factor in NAMES.items()
    ]
    results.append(row("mamba_ops", "decode", 1, 1e-5))
    return Report({"device": device, "threads": 1}, {"device": kind}, results)


@pytest.fixture
def figures():
    return pytest.importorskip("mamba_ops.plot.figures", exc_type=ImportError)


@pytest.fixture
def file(tmp_path, figures):
    report().write(str(tmp_path / "run"))
    return tmp_path / "run.json"


def test_all_pictures_are_written_and_not_blank(file, capsys):
    from matplotlib import image

    assert main(["plot", str(file)]) == 0
    assert capsys.readouterr().out.startswith("written: ")
    for name in ("time", "speedup", "share"):
        pixels = image.imread(file.with_name(f"run-{name}.png"))[..., :3]
        assert pixels.shape[0] > 300 and pixels.shape[1] > 600
        ink = pixels.min(-1) < 0.5
        assert 0.005 < ink.mean() < 0.5  # marks on a light ground
        assert ink.any(1).mean() > 0.5 and ink.any(0).mean() > 0.5  # all over the picture
        root = ElementTree.parse(file.with_name(f"run-{name}.svg")).getroot()
        assert root.tag == f"{SVG}svg"
        assert len(list(root.iter(f"{SVG}path"))) > 20
        text = " ".join("".join(element.itertext()) for element in root.iter(f"{SVG}text"))
        assert "NVIDIA H200" in text and "the loop" in text and "forward, float32" in text


def test_every_implementation_is_a_line_and_the_floor_is_dashed(figures):
    forward, backward = figures.time([report()]).axes
    for ax in (forward, backward):
        lines = {line.get_label(): line for line in ax.lines}
        assert set(lines) == {"the mamba_ops", "the loop", "the mamba_ssm", "floor"}
        assert lines["floor"].get_linestyle() == "--"
        assert list(lines["the loop"].get_xdata()) == list(LENGTHS)
        assert list(lines["the loop"].get_ydata()) == pytest.approx([0.5 * length for length in LENGTHS])
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


def test_bars_stand_for_the_figures(figures):
    ax = figures.speedup([report()]).axes[0]
    tops = {c.get_label(): [bar.get_y() + bar.get_height() for bar in c] for c in ax.containers}
    assert tops == {"the loop": [500.0] * 3, "the mamba_ssm": [1.5] * 3}
    assert {text.get_text() for text in ax.texts} == {"500x", "1.5x"}
    ax = figures.share([report()]).axes[0]
    tops = {c.get_label(): [bar.get_y() + bar.get_height() for bar in c] for c in ax.containers}
    assert tops["the mamba_ops"] == pytest.approx([10.0] * 3)


def test_without_colour_every_implementation_still_looks_its_own(figures):
    from mamba_ops.bench.peers import FINDERS

    assert set(figures._STYLES) == set(FINDERS)
    styles = list(figures._STYLES.values())
    for key in ("marker", "linestyle", "hatch", "color"):
        assert len({str(style[key]) for style in styles}) == len(styles)


def test_panels_of_several_machines():
    reports = [report(), report("A CPU", "cpu")]
    titles = [panel.title for panel in by_length(reports)]
    assert titles[0] == "NVIDIA H200\nforward, float32\nbatch 1, dim 8, dstate 2"
    assert titles[2] == "A CPU, 1 thread\nforward, float32\nbatch 1, dim 8, dstate 2"
    assert len(titles) == 4 and len(by_size(reports)) == 6
    assert by_size(reports)[2].keys() == ["1x8"]  # a decoding step has no length


def test_a_choice_of_pictures_directions_and_sizes(file, figures, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "speedup", lambda reports: drawn.extend(reports[0].results))
    choice = ["--pictures", "speedup", "share", "--directions", "forward", "--sizes", "1x8x128"]
    assert main(["plot", str(file), "--formats", "png", *choice]) == 0
    assert [path.name for path in file.parent.glob("*.png")] == ["run-share.png"]
    assert {(row["direction"], row["length"]) for row in drawn} == {("forward", 128)}


def test_the_same_figures_give_the_same_svg(file):
    def pictures(prefix):
        assert main(["plot", str(file), "--formats", "svg", "--out", str(file.with_name(prefix))]) == 0
        return [file.with_name(f"{prefix}-{name}.svg").read_bytes() for name in ("time", "speedup", "share")]

    assert pictures("one") == pictures("two")


def test_a_picture_without_figures_is_left_out(tmp_path, capsys, figures):
    short = report()
    short.results = short.results[:1]
    short.write(str(tmp_path / "short"))
    assert main(["plot", str(tmp_path / "short.json"), "--formats", "png"]) == 0
    text = capsys.readouterr().out
    assert "no time picture" in text and "no speedup picture" in text
    assert [path.name for path in tmp_path.glob("*.png")] == ["short-share.png"]


@pytest.mark.parametrize(
    "changed",
    [
        {"machine": ["device"]}, {"options": None}, {"results": [7]}, {"seconds": "abc"}, {"seconds": None},
        {"seconds_low": 0}, {"share_of_floor": -1}, {"floor_seconds": float("nan")}, {"times_ours": float("inf")},
    ],
)  # fmt: skip
def test_damaged_figures(file, capsys, changed):
    content = json.loads(file.read_text(encoding="utf-8"))
    for name, value in changed.items():
        (content if name in content else content["results"][0])[name] = value
    file.write_text(json.dumps(content), encoding="utf-8")
    assert main(["plot", str(file)]) == 2
    assert f"{file} is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "cannot be read (No such file or directory)"),
        ("not json", "is not JSON"),
        ("[]", "is no 'mamba_ops bench 1'"),
        ('{"format": "something else"}', "is no 'mamba_ops bench 1'"),
        (json.dumps({"format": FORMAT}), "is damaged"),
        (json.dumps({"format": FORMAT, "machine": {}, "options": {}, "results": [{"seconds": 1}]}), "is damaged"),
        (json.dumps({"format": FORMAT, "machine": {"device": "x"}, "options": {}}), "nothing to draw"),
    ],
)
def test_bad_files(tmp_path, capsys, figures, content, message):
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert main(["plot", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and message in captured.err


def test_a_folder_that_is_not_there(file, capsys):
    assert main(["plot", str(file), "--out", str(file.parent / "none" / "x")]) == 2
    assert "is not there: make it first" in capsys.readouterr().err


def test_an_out_that_cannot_be_written(file, capsys):
    (file.parent / "x-time.png").mkdir()
    assert main(["plot", str(file), "--out", str(file.parent / "x")]) == 2
    assert "x-time.png of --out cannot be written (Is a directory)" in capsys.readouterr().err
    assert main(["plot", str(file), "--out", f"{file.parent}/"]) == 2
    assert "names no file" in capsys.readouterr().err


def test_without_matplotlib(file, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "mamba_ops.plot.figures", raising=False)
    monkeypatch.delattr("mamba_ops.plot.figures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", str(file)]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
