"""The pictures. Markers, dashes and hatches tell the implementations apart without colour."""

import math
from typing import Any, Callable, Dict, List, Optional, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..bench.report import Report, Row
from .panels import Panel, by_length, by_size

# Colours after Okabe and Ito, told apart by readers with any colour vision. Hatches of lines: dots make an SVG large.
_STYLES: Dict[str, Dict[str, str]] = {
    "mamba_ops": dict(color="#000000", marker="o", linestyle="-", hatch=""),
    "loop": dict(color="#D55E00", marker="s", linestyle=(0, (5, 2)), hatch="///"),
    "transformers": dict(color="#CC79A7", marker="^", linestyle=(0, (3, 1, 1, 1)), hatch="\\\\\\"),
    "associative_scan": dict(color="#009E73", marker="D", linestyle=(0, (1, 1)), hatch="+++"),
    "mamba_ssm": dict(color="#0072B2", marker="v", linestyle=(0, (7, 1, 1, 1)), hatch="xxx"),
    "study_naive": dict(color="#E69F00", marker="<", linestyle=(0, (2, 2)), hatch="---"),
    "study_warp": dict(color="#56B4E9", marker=">", linestyle=(0, (4, 1, 2, 1)), hatch="|||"),
    "study_shared": dict(color="#7A5C00", marker="P", linestyle=(0, (6, 3)), hatch="-/"),
}
_OTHER = dict(color="#999999", marker="x", linestyle=":", hatch="|/")
# Inches.
_NARROW, _HEIGHT = 5.2, 3.4
_BARS_IN_A_PANEL = 24
_PLAIN = dict(facecolor="white", edgecolor="none", pad=0.5)

# The backend that needs no display; SVG with ids that do not change from run to run, and with text as text.
matplotlib.use("Agg")
matplotlib.rcParams.update({"svg.hashsalt": "mamba_ops", "svg.fonttype": "none"})
matplotlib.rcParams.update({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True})


def time(reports: Sequence[Report]) -> Optional[Figure]:
    """Time against length, both logarithmic, with the floor."""
    return _figure(by_length(reports), _draw_time, _NARROW)


def speedup(reports: Sequence[Report]) -> Optional[Figure]:
    """How many times as long as ours the others take."""
    panels = [panel.without("mamba_ops") for panel in by_size(reports, lambda row: row["times_ours"] is not None)]
    return _bar_figure([panel for panel in panels if panel.lines], _draw_speedup)


def share(reports: Sequence[Report]) -> Optional[Figure]:
    """The floor over the time."""
    return _bar_figure(by_size(reports), _draw_share)


def _bar_figure(panels: List[Panel], draw: Callable[[Axes, Panel], None]) -> Optional[Figure]:
    """Panels of many bars are as wide as two others, or the numbers on the bars would run into each other."""
    most = max((len(panel.lines) * len(panel.keys()) for panel in panels), default=0)
    return _figure(panels, draw, _NARROW if most <= _BARS_IN_A_PANEL else 2 * _NARROW)


def _figure(panels: List[Panel], draw: Callable[[Axes, Panel], None], width: float) -> Optional[Figure]:
    if not panels:
        return None
    columns = min(len(panels), 1 if width > _NARROW else 2)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(width * columns, _HEIGHT * rows + 0.6), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax, panel in zip(axes, panels):
        draw(ax, panel)
        ax.set_title(panel.title, fontsize=9)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    _legend(figure)
    return figure


def _legend(figure: Figure) -> None:
    """One for all panels, below them."""
    entries: Dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels()):
            entries.setdefault(label, handle)
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=3, frameon=False, handlelength=4)


def _draw_time(ax: Axes, panel: Panel) -> None:
    for name, points in panel.lines.items():
        lengths = sorted(points)
        rows = [points[length] for length in lengths]
        style = {key: value for key, value in _style(name).items() if key != "hatch"}
        seconds = [1e3 * row["seconds"] for row in rows]
        ax.plot(lengths, seconds, label=rows[0]["label"], markersize=5, linewidth=1.5, **style)
        ax.fill_between(
            lengths,
            [1e3 * row["seconds_low"] for row in rows],
            [1e3 * row["seconds_high"] for row in rows],
            color=style["color"],
            alpha=0.15,
            linewidth=0,
        )
    floors = {length: row["floor_seconds"] for points in panel.lines.values() for length, row in points.items()}
    lengths = sorted(floors)
    ax.plot(lengths, [1e3 * floors[x] for x in lengths], "--", color="#555555", linewidth=1, label="floor")
    ax.set(xscale="log", yscale="log", xlabel="length", ylabel="milliseconds")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xticks(lengths, [str(length) for length in lengths], rotation=45 if len(lengths) > 5 else 0)
    ax.minorticks_off()


def _draw_speedup(ax: Axes, panel: Panel) -> None:
    ax.axhline(1, color="#555555", linestyle="--", linewidth=1, label="mamba_ops")
    _draw_bars(ax, panel, lambda row: row["times_ours"], 1, lambda x: f"{x:.3g}x" if x < 1000 else f"{x:.0f}x")
    ax.set_ylabel("time / time of mamba_ops")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))


def _draw_share(ax: Axes, panel: Panel) -> None:
    least = min(100 * row["share_of_floor"] for points in panel.lines.values() for row in points.values())
    ax.axhline(100, color="#555555", linestyle="--", linewidth=1, label="floor")
    base = 10 ** math.floor(math.log10(least))
    _draw_bars(ax, panel, lambda row: 100 * row["share_of_floor"], base, lambda x: f"{x:.2g}%")
    ax.set_ylabel("floor / time")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))


def _draw_bars(
    ax: Axes, panel: Panel, value: Callable[[Row], float], base: float, text: Callable[[float], str]
) -> None:
    """Groups of bars from a base, a group for each size, on a logarithmic scale."""
    sizes = panel.keys()
    width = 0.8 / len(panel.lines)
    ax.set_yscale("log")
    for i, (name, points) in enumerate(panel.lines.items()):
        style = _style(name)
        places = [sizes.index(size) + (i - (len(panel.lines) - 1) / 2) * width for size in points]
        rows = list(points.values())
        values = [value(row) for row in rows]
        colors = dict(facecolor=style["color"] if not style["hatch"] else "white", edgecolor=style["color"])
        heights = [x - base for x in values]
        bars = ax.bar(places, heights, width, base, label=rows[0]["label"], hatch=style["hatch"], **colors)
        ax.bar_label(bars, [text(x) for x in values], padding=2, fontsize=7, rotation=90, bbox=_PLAIN)
    low, high = ax.get_ylim()
    is_below = any(value(row) < base for points in panel.lines.values() for row in points.values())
    room = (high / low) ** 0.25  # for the numbers, above the bars and below those that hang down
    ax.set_ylim(low / room if is_below else base, high * room)
    ax.set_xticks(range(len(sizes)), sizes, rotation=30, ha="right", fontsize=8)
    ax.minorticks_off()
    ax.grid(axis="x", visible=False)


def _style(name: str) -> Dict[str, Any]:
    return _STYLES.get(name, _OTHER)
