"""From the rows of reports to what one panel shows. Knows nothing of drawing."""

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ..bench.report import Report, Row

Points = Dict[Any, Row]


@dataclass
class Panel:
    """title; lines: for each implementation its rows, by length or by size."""

    title: str
    lines: Dict[str, Points] = field(default_factory=dict)

    def add(self, row: Row, key: Any) -> None:
        self.lines.setdefault(row["implementation"], {})[key] = row

    def without(self, name: str) -> "Panel":
        return Panel(self.title, {key: points for key, points in self.lines.items() if key != name})

    def keys(self) -> List[Any]:
        """Of all lines, in the order of the runs."""
        return list(dict.fromkeys(key for points in self.lines.values() for key in points))


def by_length(reports: Sequence[Report]) -> List[Panel]:
    """A panel for each kind of problem that was measured at two lengths or more."""

    def title(row: Row) -> str:
        return f"{_kind(row)}\nbatch {row['batch']}, dim {row['dim']}, dstate {row['dstate']}"

    found = _panels(reports, title, lambda row: row["length"])
    return [panel for panel in found if len(panel.keys()) > 1]


def by_size(reports: Sequence[Report], condition: Callable[[Row], bool] = lambda row: True) -> List[Panel]:
    """A panel for each kind of problem, over batch x dim x length; of the rows that meet the condition."""
    return _panels([replace(x, results=list(filter(condition, x.results))) for x in reports], _kind, size)


def select(report: Report, sizes: Optional[Sequence[str]], directions: Optional[Sequence[str]]) -> Report:
    """Only the rows of those sizes and directions; all where None is given."""
    rows = [row for row in report.results if sizes is None or size(row) in sizes]
    return replace(report, results=[row for row in rows if directions is None or row["direction"] in directions])


def size(row: Row) -> str:
    """batch x dim x length; a decoding step has no length."""
    length = "" if row["direction"] == "decode" else f"x{row['length']}"
    return f"{row['batch']}x{row['dim']}{length}"


def _panels(reports: Sequence[Report], title: Callable[[Row], str], key: Callable[[Row], Any]) -> List[Panel]:
    found: Dict[Tuple[str, str], Panel] = {}
    for report in reports:
        machine = _machine(report)
        for row in report.results:
            panel = found.setdefault((machine, title(row)), Panel(f"{machine}\n{title(row)}"))
            panel.add(row, key(row))
    return list(found.values())


def _kind(row: Row) -> str:
    layout = "" if row["layout"] == "channel-first" else f", {row['layout']}"
    return f"{row['direction']}, {row['dtype']}{layout}"


def _machine(report: Report) -> str:
    if report.options.get("device") == "cuda":
        return report.machine["device"]
    model, threads = report.machine.get("cpu_model"), report.machine.get("threads")
    name = report.machine["device"] + (f" ({model})" if model else "")
    return f"{name}, {threads} thread{'s' if threads != 1 else ''}"
