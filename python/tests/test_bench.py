"""`python -m mamba_ops bench` on sizes that take no time."""

import csv

import pytest
import torch
from mamba_ops.__main__ import main
from mamba_ops.bench import command, peers, timing
from mamba_ops.bench.problems import Problem, bytes_moved, exponentials, problems, scan_inputs
from mamba_ops.bench.report import RESULT_FIELDS, _figures, milliseconds, read_report

FAST = ["--device", "cpu", "--threads", "1", "--seconds", "0.002", "--quiet"]
TINY = [*FAST, "--sizes", "1x4x8x2", "2x4x16x2"]


@pytest.fixture
def bench(tmp_path, capsys):
    """Run the command: the exit code, what it printed, and the report it wrote."""

    def run(*arguments):
        code = main(["bench", *TINY, "--out", str(tmp_path / "run"), *arguments])
        return code, capsys.readouterr().out, read_report(str(tmp_path / "run.json"))

    return run


def test_table_json_and_csv_agree(bench, tmp_path):
    code, text, report = bench("--peers", "loop", "associative_scan")
    assert code == 0
    with open(tmp_path / "run.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(report.results) and tuple(rows[0]) == RESULT_FIELDS
    for row, result in zip(rows, report.results, strict=True):
        assert row == {name: "" if x is None else str(x) for name, x in result.items()}
        line = [line for line in text.splitlines() if f"{milliseconds(result['seconds'])} ms" in line]
        assert any(result["label"] in x and f"{result['times_ours']:.4g} x ours" in x for x in line)
    for problem in report.problems():
        direction, dtype, layout, batch, dim, length, dstate = problem
        assert f"{direction} of (batch {batch}, dim {dim}, length {length}, dstate {dstate}), {dtype}, {layout}" in text


def test_every_direction_and_implementation_is_there(bench):
    _, _, report = bench("--peers", "loop", "associative_scan")
    found = {(row["direction"], row["implementation"]) for row in report.results}
    scans = {(way, name) for way in ("forward", "backward") for name in ("mamba_ops", "loop", "associative_scan")}
    assert found == scans | {("decode", "mamba_ops"), ("decode", "loop")}
    assert {row["reason"] for row in report.skipped} == {"has no decoding step"}


def test_the_figures_are_consistent(bench):
    _, _, report = bench("--peers", "loop")
    for row in report.results:
        assert 0 < row["seconds_low"] <= row["seconds"] <= row["seconds_high"] and row["samples"] >= 1
        assert row["share_of_floor"] == pytest.approx(row["floor_seconds"] / row["seconds"])
        ours = next(
            other["seconds"]
            for other in report.results
            if other["implementation"] == "mamba_ops" and all(other[x] == row[x] for x in ("direction", "batch"))
        )
        assert row["times_ours"] == pytest.approx(row["seconds"] / ours)
    assert report.is_complete and report.options["sizes"] == ["1x4x8x2", "2x4x16x2"]
    facts = report.machine
    assert (
        facts["cpus"] and facts["torch running"] == torch.__version__ and facts["CPU level"] and facts["threads"] == 1
    )


def test_dtypes_and_layouts(bench):
    code, _, report = bench(
        "--dtype", "float32", "bfloat16", "--layout", "channel-first", "channel-last", "--directions", "forward",
        "--peers", "loop",
    )  # fmt: skip
    assert code == 0 and not report.skipped
    kinds = {(row["dtype"], row["layout"]) for row in report.results}
    assert kinds == {(x, y) for x in ("float32", "bfloat16") for y in ("channel-first", "channel-last")}
    assert len(report.results) == 2 * 2 * 4


def test_layouts_are_those_they_are_called():
    problem = Problem("forward", 2, 3, 5, 4, "float32", "channel-last")
    inputs = scan_inputs(problem, "cpu")
    assert inputs["u"].shape == (2, 3, 5) and inputs["u"].stride(1) == 1 and inputs["B"].stride(1) == 1
    assert scan_inputs(Problem("forward", 2, 3, 5, 4), "cpu")["u"].is_contiguous()


def test_a_decoding_step_is_timed_once_for_each_batch_and_dim():
    found = problems(["1x8x16", "1x8x32"], ["forward", "decode"], ["float32"], ["channel-first", "channel-last"])
    assert len([problem for problem in found if problem.direction == "forward"]) == 4
    assert [problem for problem in found if problem.direction == "decode"] == [Problem("decode", 1, 8, 1, 16)]


def test_floors_by_hand():
    forward = Problem("forward", 2, 3, 5, 4, "bfloat16")
    assert bytes_moved(forward) == 2 * (4 * 30 + 2 * 40) + 4 * (12 + 3 + 3)
    backward = Problem("backward", 2, 3, 5, 4, "float32")
    assert bytes_moved(backward) == 4 * (7 * 30 + 4 * 40) + 2 * 4 * (12 + 3 + 3)
    decode = Problem("decode", 2, 3, 1, 4, "float64")
    assert bytes_moved(decode) == 8 * (4 * 6 + 2 * 8 + 2 * 24 + 12 + 3 + 3)
    assert exponentials(forward) == 30 * (4 + 2)


def test_the_exponentials_can_be_the_floor_of_a_gpu():
    class Memory:
        device = "cuda"

        def copy_seconds(self, size):
            return size / 4e12

    gpu = {"multiprocessors": 132, "clock_hz": 1980e6}
    name, seconds = command.floor_of(Problem("forward", 8, 2048, 2048, 16), Memory(), gpu)
    assert name == "exponentials" and seconds == pytest.approx(8 * 2048 * 2048 * 18 / (132 * 1980e6 * 16))
    assert command.floor_of(Problem("decode", 8, 2048, 1, 16), Memory(), gpu)[0] == "memory"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda(bench):
    # A call beyond the limit is timed once: the first of a process takes long where many start together.
    _, _, report = bench("--device", "cuda", "--peers", "loop", "--time-limit", "600")
    assert report.machine["device"] == torch.cuda.get_device_name() and report.machine["clock_hz"] > 1e8
    assert len(report.results) == 2 * 2 * 2 + 2 * 2 and all(row["samples"] >= 2 for row in report.results)


def test_quick_is_quick_by_its_options(monkeypatch):
    seen = []
    monkeypatch.setattr(command, "run", lambda options: seen.append(options) or 0)
    assert main(["bench", "--quick"]) == 0 and main(["bench"]) == 0
    quick, full = seen
    assert quick.sizes == ["1x256x256", "1x256x1024"] and len(full.sizes) > 5
    # Every call is at most warmed up, estimated and repeated, each within the limit.
    assert quick.time_limit <= 2 and quick.seconds < full.seconds and quick.time_limit < full.time_limit


def test_ctrl_c_keeps_what_was_measured(bench, monkeypatch):
    measure, calls = timing.Stopwatch.measure, []

    def interrupted(self, call):
        calls.append(call)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return measure(self, call)

    monkeypatch.setattr(timing.Stopwatch, "measure", interrupted)
    code, text, report = bench("--peers", "loop")
    assert code == 130
    assert not report.is_complete and 1 <= len(report.results) < 4
    assert "interrupted" in text and milliseconds(report.results[0]["seconds"]) in text


def test_a_slow_peer_is_skipped_and_the_reason_said(bench, monkeypatch):
    monkeypatch.setattr(timing.Forecast, "seconds", lambda self, name, problem: 30.0)
    _, text, report = bench("--peers", "loop", "--time-limit", "3", "--directions", "forward")
    assert {row["implementation"] for row in report.results} == {"mamba_ops"}
    reason = "one call would take about 30.0 s, above the --time-limit of 3 s"
    assert [row["reason"] for row in report.skipped] == [reason] * 2
    assert text.count(f"skipped: {reason}") == 2


def test_what_does_not_fit_into_memory_is_not_tried(bench, monkeypatch):
    monkeypatch.setattr(command, "memory_available", lambda: 2000)
    _, text, report = bench("--peers", "none", "--directions", "forward")
    assert [row["batch"] for row in report.results] == [1]  # 800 bytes; the other needs 2960
    assert [row["reason"] for row in report.skipped] == ["needs 0.0 GiB or more, but 0.0 GiB are there"]
    assert "mamba_ops  skipped: needs" in text


def test_the_forecast_grows_with_the_problem():
    forecast = timing.Forecast()
    assert forecast.seconds("loop", Problem("forward", 1, 4, 8, 2)) == 0
    for direction in ("forward", "backward"):
        forecast.add("loop", Problem(direction, 1, 4, 8, 2), 0.1)
    assert forecast.seconds("loop", Problem("forward", 1, 4, 16, 2)) == pytest.approx(0.2)
    assert forecast.seconds("loop", Problem("forward", 1, 2, 16, 2)) == pytest.approx(0.2)
    assert forecast.seconds("loop", Problem("forward", 4, 4, 8, 2)) == pytest.approx(0.4)
    assert forecast.seconds("loop", Problem("backward", 1, 4, 16, 2)) == pytest.approx(0.4)
    forecast.add("loop", Problem("backward", 1, 4, 16, 2), 0.2)  # it grows with the length alone
    assert forecast.seconds("loop", Problem("backward", 1, 4, 64, 2)) == pytest.approx(0.8)
    assert forecast.seconds("other", Problem("forward", 1, 4, 16, 2)) == 0


def test_a_peer_that_takes_longer_than_the_limit_is_called_once(monkeypatch):
    watch = timing.Stopwatch("cpu", 1, 0.001)
    monkeypatch.setattr(watch, "first", lambda call: (call(), 9.0))
    problem = Problem("forward", 1, 4, 8, 2)
    result, _, difference = command._measure(peers.FINDERS["loop"](), problem, None, watch, 0.0, 5.0)
    assert result == timing.Timing(9.0, 9.0, 9.0, 1) and difference == 0


@pytest.mark.parametrize(
    "scan, reason",
    [
        (lambda inputs: inputs["u"], "its results differ from ours by"),
        (lambda inputs: inputs["u"] / 0, "its results differ from ours by inf"),
        (lambda inputs: inputs["nothing"].x, "KeyError"),
        (lambda inputs: inputs["u"].view(7, 7), "RuntimeError: shape '[7, 7]' is invalid"),
    ],
)
def test_a_wrong_peer_gets_no_figure(bench, monkeypatch, scan, reason):
    monkeypatch.setitem(peers.FINDERS, "loop", lambda: peers.Scan("broken", scan))
    _, text, report = bench("--peers", "loop", "--directions", "forward")
    assert {row["implementation"] for row in report.results} == {"mamba_ops"}
    assert all(reason in row["reason"] for row in report.skipped) and len(report.skipped) == 2
    assert text.count(reason) == 2


def test_every_gradient_is_compared(bench, monkeypatch):
    """Here all but one are right: that of delta_bias, the last."""
    scan = peers.FINDERS["loop"]().scan

    def doubled(inputs):
        bias = inputs["delta_bias"]
        return scan({**inputs, "delta_bias": 2 * bias - bias.detach()})

    monkeypatch.setitem(peers.FINDERS, "loop", lambda: peers.Scan("doubled", doubled))
    _, _, report = bench("--peers", "loop", "--directions", "forward", "backward")
    assert {(row["direction"], row["label"]) for row in report.results} == {
        ("forward", "mamba_ops"), ("backward", "mamba_ops"), ("forward", "doubled"),
    }  # fmt: skip
    assert all("its results differ from ours by" in row["reason"] for row in report.skipped)


def test_what_is_not_installed_is_named(bench, monkeypatch):
    def missing():
        raise peers.NotHere("mamba_ssm is not installed")

    monkeypatch.setitem(peers.FINDERS, "mamba_ssm", missing)
    code, text, report = bench("--peers", "mamba_ssm", "--directions", "forward")
    assert code == 0 and report.missing == {"mamba_ssm": "mamba_ssm is not installed"}
    assert "not here: mamba_ssm: mamba_ssm is not installed" in text


def test_the_spread_of_one_call_is_not_said_to_be_0():
    row = dict(seconds=1.0, seconds_low=1.0, seconds_high=1.0, samples=1, times_ours=None, share_of_floor=0.5)
    assert _figures(row) == "      1000 ms  one call         50% of the floor"
    assert "+- 0.0%" in _figures(dict(row, samples=2))


@pytest.mark.parametrize(
    "seconds, text", [(1.2345, "1234"), (0.0123456, "12.35"), (4.5e-4, "0.4500"), (7e-6, "0.00700")]
)
def test_milliseconds(seconds, text):
    assert milliseconds(seconds) == text
