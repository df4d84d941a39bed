"""From the rows of reports to what one panel shows. Knows nothing of drawing."""

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Sequence, Tuple

from ..bench.report import Report, Row

Points = Dict[Any, Row]


@dataclass
class Panel:
    """title; lines: for each implementation its rows, by length or by size."""

    title: str
    lines: Dict[str, Points] = field(default_factory=dict)

    def add(self, row: Row, key: Any) -> None:
        self.lines.setdefault(row["implementation"], {})[key] = row

    def keys(self) -> List[Any]:
        """Of all lines, in the order of the runs."""
        return list(dict.fromkeys(key for points in self.lines.values() for key in points))


def by_length(reports: Sequence[Report]) -> List[Panel]:
    """A panel for each kind of problem that was measured at two lengths or more."""

    def title(row: Row) -> str:
        return f"{_kind(row)}\nbatch {row['batch']}, dim {row['dim']}, dstate {row['dstate']}"

    found = _panels(reports, title, lambda row: row["length"])
    return [panel for panel in found if len(panel.keys()) > 1]


def by_size(reports: Sequence[Report]) -> List[Panel]:
    """A panel for each kind of problem, over batch x dim x length."""
    return _panels(reports, _kind, size)


def size(row: Row) -> str:
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
    threads = report.machine.get("threads")
    return f"{report.machine['device']}, {threads} thread{'s' if threads != 1 else ''}"
