"""What a run found: a table to read, JSON with everything, CSV with the figures."""

import csv
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Tuple

from .._errors import CommandError
from .._files import outputs

Row = Dict[str, Any]

FORMAT = "mamba_ops bench 1"
PROBLEM_FIELDS = ("direction", "dtype", "layout", "batch", "dim", "length", "dstate")
RESULT_FIELDS = (
    "implementation",
    "label",
    *PROBLEM_FIELDS,
    "seconds",
    "seconds_low",
    "seconds_high",
    "samples",
    "times_ours",
    "difference",
    "floor",
    "floor_seconds",
    "share_of_floor",
)


@dataclass
class Report:
    """machine, options: facts and arguments of the run. results: a row of RESULT_FIELDS for each measurement, seconds
    being medians between quartiles. skipped: rows of PROBLEM_FIELDS, label and the reason. missing: implementations
    that are not here, and why. is_complete: false after an interruption."""

    machine: Row
    options: Row
    results: List[Row] = field(default_factory=list)
    skipped: List[Row] = field(default_factory=list)
    missing: Dict[str, str] = field(default_factory=dict)
    is_complete: bool = True

    def write(self, prefix: str) -> List[Path]:
        """Write <prefix>.json and <prefix>.csv."""
        json_path, csv_path = output_paths(prefix)
        json_path.write_text(json.dumps({"format": FORMAT, **vars(self)}, indent=1) + "\n", encoding="utf-8")
        with open(csv_path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, RESULT_FIELDS)
            writer.writeheader()
            writer.writerows(self.results)
        return [json_path, csv_path]

    def table(self) -> str:
        lines = []
        for problem, rows in self.problems().items():
            lines += [_heading(problem, rows), *_lines(rows), ""]
        lines += [f"not here: {name}: {reason}" for name, reason in self.missing.items()]
        if not self.is_complete:
            lines.append("interrupted: the rest was not measured")
        return "\n".join(lines).rstrip()

    def problems(self) -> Dict[Tuple[Any, ...], List[Row]]:
        """Results and skipped rows of each problem, in the order of the run; last, problems without any result."""
        found: Dict[Tuple[Any, ...], List[Row]] = {}
        for row in (*self.results, *self.skipped):
            found.setdefault(tuple(row[name] for name in PROBLEM_FIELDS), []).append(row)
        return found


def output_paths(prefix: str) -> List[Path]:
    """<prefix>.json and <prefix>.csv, which can be written: to be asked before anything is measured."""
    return outputs(prefix.removesuffix(".json"), (".json", ".csv"))


def read_report(path: str) -> Report:
    """A report from its JSON; raises CommandError for anything else."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror}): name a JSON file that bench wrote") from error
    except ValueError as error:
        raise CommandError(f"{path} is not JSON ({error}): name a JSON file that bench wrote") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise CommandError(f"{path} is no {FORMAT!r}: make it by `python -m mamba_ops bench --out PREFIX`")
    try:
        report = Report(**content)
        is_whole = _has_facts(report) and all(map(_has_figures, report.results))
    except (TypeError, AttributeError) as error:
        raise CommandError(f"{path} is damaged ({error}): run the benchmark again") from error
    if not is_whole:
        raise CommandError(f"{path} is damaged (fields are missing or no figures): run the benchmark again")
    return report


def _has_facts(report: Report) -> bool:
    return isinstance(report.options, dict) and isinstance(report.machine, dict) and "device" in report.machine


def _has_figures(row: Row) -> bool:
    """Whether everything that is drawn, on logarithmic scales, is there and above 0."""
    if not set(RESULT_FIELDS) <= row.keys():
        return False
    drawn = [row[name] for name in ("seconds", "seconds_low", "seconds_high", "floor_seconds", "share_of_floor")]
    if row["times_ours"] is not None:
        drawn.append(row["times_ours"])
    return all(isinstance(x, (int, float)) and 0 < x < math.inf for x in drawn)


def milliseconds(seconds: float) -> str:
    """Four significant digits, without an exponent."""
    value = 1e3 * seconds
    digits = next((digits for digits, least in ((0, 1000), (1, 100), (2, 10), (3, 1), (4, 0.1)) if value >= least), 5)
    return f"{value:.{digits}f}"


def _heading(problem: Tuple[Any, ...], rows: List[Row]) -> str:
    direction, dtype, layout, batch, dim, length, dstate = problem
    floor = next(
        (f"; floor {milliseconds(row['floor_seconds'])} ms ({row['floor']})" for row in rows if "floor" in row), ""
    )
    return f"{direction} of (batch {batch}, dim {dim}, length {length}, dstate {dstate}), {dtype}, {layout}{floor}"


def _lines(rows: List[Row]) -> List[str]:
    width = max(len(row["label"]) for row in rows)
    return [
        f"  {row['label']:<{width}}  {_figures(row) if 'seconds' in row else 'skipped: ' + row['reason']}"
        for row in rows
    ]


def _figures(row: Row) -> str:
    spread = f"+-{50 * (row['seconds_high'] - row['seconds_low']) / row['seconds']:>4.1f}%"
    time = f"{milliseconds(row['seconds']):>10} ms  {spread if row['samples'] > 1 else 'one call'}"
    ratio = "" if row["times_ours"] is None else f"{row['times_ours']:>11.4g} x ours"
    return f"{time}  {100 * row['share_of_floor']:>9.3g}% of the floor{ratio}"
