"""The command: its options, and the run over problems and implementations."""

import argparse
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Tuple

import torch
from torch import Tensor
from torch.hub import tqdm  # tqdm's, or torch's stand-in where that is not installed

from .._errors import CommandError
from .._machine import machine, memory_available
from .peers import OURS, NotHere, Scan, find
from .problems import Problem, bytes_moved, exponentials, problems
from .report import Report, output_paths
from .timing import Forecast, Stopwatch, Timing

# Results of an exponential per multiprocessor and clock, on every NVIDIA GPU since Maxwell: the throughput table of
# the CUDA C++ Programming Guide. 2.03 cycles a warp were measured on an H200.
_EXPONENTIALS_PER_CLOCK = 16
# Largest difference from ours, relative to the largest value, up to which an output counts as the same.
_CLOSE = {"float64": 1e-8, "float32": 1e-4, "float16": 1e-2, "bfloat16": 3e-2}


def run(options: argparse.Namespace) -> int:
    """Measure, print and write; the exit code is 0, or 130 after Ctrl-C."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise CommandError("torch sees no CUDA device: use --device cpu, or see `python -m mamba_ops info`")
    if options.out is not None:
        output_paths(options.out)
    todo = problems(options.sizes, options.directions, options.dtypes, options.layouts)
    torch.set_num_threads(options.threads)
    facts = dict(machine(options.device, options.threads), note=options.note)
    found, missing = find(options.peers)
    report = Report(facts, _recorded(options), missing=missing)
    try:
        _measure_all(report, todo, found, options)
    except KeyboardInterrupt:
        report.is_complete = False
    written: List[Path] = []
    try:
        if options.out is not None:
            written = report.write(options.out)
    finally:  # figures that could not be written are shown at least
        print(f"{facts['device']}, CPU threads: {options.threads}, torch {facts['torch running']}\n\n{report.table()}")
    if written:
        print("written:", *written)
    return 0 if report.is_complete else 130


def _recorded(options: argparse.Namespace) -> Dict[str, Any]:
    names = ("device", "directions", "dtypes", "layouts", "sizes", "peers", "threads", "seconds", "time_limit")
    return {name: getattr(options, name) for name in names}


def _measure_all(report: Report, todo: List[Problem], found: Dict[str, Scan], options: argparse.Namespace) -> None:
    watch, forecast = Stopwatch(options.device, options.threads, options.seconds), Forecast()
    with tqdm(total=len(todo) * len(found), unit="", disable=options.quiet or None) as bar, torch.no_grad():
        for problem in todo:
            floor = floor_of(problem, watch, report.machine)
            ours = None
            for name, scan in found.items():
                bar.set_description(f"{problem}: {scan.label}")
                row = {"implementation": name, "label": scan.label, **asdict(problem)}
                try:
                    reference = None if ours is None else ours[1]
                    expected = 0.0 if name == OURS else forecast.seconds(name, problem)
                    timing, result, difference = _measure(scan, problem, reference, watch, expected, options.time_limit)
                except NotHere as reason:
                    report.skipped.append({**row, "reason": str(reason)})
                else:
                    forecast.add(name, problem, timing.median)
                    ours = (timing.median, result) if name == OURS else ours
                    report.results.append({**row, **_figures(timing, ours, difference, floor)})
                bar.update(1)


def _measure(
    scan: Scan, problem: Problem, reference: Any, watch: Stopwatch, expected: float, limit: float
) -> Tuple[Timing, List[Tensor], float]:
    """The time, the results and their difference from the reference; NotHere says why there is none."""
    if expected > limit:
        raise NotHere(f"one call would take about {expected:.1f} s, above the --time-limit of {limit:g} s")
    _refuse_too_large(problem, watch.device)
    try:
        call, comparable = scan.call(problem, watch.device)
        result, first = watch.first(call)
        result = comparable(result)
        difference = 0.0 if reference is None else max(map(relative_difference, result, reference))
        if difference > _CLOSE[problem.dtype]:
            raise NotHere(f"its results differ from ours by {difference:.1e} of the largest value")
        # One call that takes longer than the limit is a figure too, but enough.
        timing = watch.measure(call) if first < limit else Timing(first, first, first, 1)
    except NotHere:
        raise
    except Exception as error:  # out of memory, or what a third party raises
        raise NotHere(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
    return timing, result, difference


def _refuse_too_large(problem: Problem, device: str) -> None:
    """Linux promises memory that is not there and ends a process that takes it, with all that was measured."""
    needed, available = bytes_moved(problem), memory_available()
    if device == "cpu" and available is not None and needed > available:
        raise NotHere(f"needs {needed / 2**30:.1f} GiB or more, but {available / 2**30:.1f} GiB are there")


def relative_difference(x: Tensor, y: Tensor) -> float:
    """The largest difference over the largest value; infinite where only one of them is NaN."""
    x, y = x.reshape(-1).double(), y.reshape(-1).double()
    return torch.nan_to_num((x - y).abs().max() / y.abs().max(), nan=math.inf, posinf=math.inf).item()


def floor_of(problem: Problem, watch: Stopwatch, machine: Dict[str, Any]) -> Tuple[str, float]:
    """The limit that binds, and its seconds: moving the bytes, or on CUDA computing the exponentials."""
    memory = watch.copy_seconds(bytes_moved(problem))
    if watch.device != "cuda":
        return "memory", memory
    rate = machine["multiprocessors"] * machine["clock_hz"] * _EXPONENTIALS_PER_CLOCK
    return max(("memory", memory), ("exponentials", exponentials(problem) / rate), key=lambda floor: floor[1])


def _figures(timing: Timing, ours: Any, difference: float, floor: Tuple[str, float]) -> Dict[str, Any]:
    return {
        "seconds": timing.median,
        "seconds_low": timing.low,
        "seconds_high": timing.high,
        "samples": timing.samples,
        "times_ours": None if ours is None else timing.median / ours[0],
        "difference": difference,
        "floor": floor[0],
        "floor_seconds": floor[1],
        "share_of_floor": floor[1] / timing.median,
    }
