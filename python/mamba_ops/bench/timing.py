"""Timing: medians and quartiles of repeated calls on the CPU or a CUDA device, within a limit of seconds."""

import math
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch.utils.benchmark import Timer

from .problems import Problem

Call = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median, the quartiles, and how many samples they come from."""

    median: float
    low: float
    high: float
    samples: int


class Stopwatch:
    """Times calls on one device. `seconds` is how long it goes on with one of them."""

    def __init__(self, device: str, threads: int, seconds: float):
        self.device, self.threads, self.seconds = device, threads, seconds
        self._flush = _buffer_to_flush() if device == "cuda" else None
        self._copies: Dict[int, float] = {}

    def first(self, call: Call) -> Tuple[Any, float]:
        """Call it once, to warm up: its result, and the seconds it took."""
        start = time.perf_counter()
        result = call()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return result, time.perf_counter() - start

    def measure(self, call: Call) -> Timing:
        """Call it for about `seconds`, at least twice."""
        return _timing(self._on_cuda(call) if self.device == "cuda" else self._on_cpu(call))

    def _on_cpu(self, call: Call) -> List[float]:
        return (
            Timer("call()", globals={"call": call}, num_threads=self.threads)
            .blocked_autorange(min_run_time=self.seconds)
            .times
        )

    def _on_cuda(self, call: Call) -> List[float]:
        """By events around single calls. A buffer is written before each: it empties the caches, and while that takes
        its time the host is ahead, so that the kernels of the call are queued without gaps."""
        once = self.first(call)[1]
        runs = max(2, min(100, int(self.seconds / max(once, 1e-5))))
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
        for start, end in events:
            self._flush.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [1e-3 * start.elapsed_time(end) for start, end in events]

    def copy_seconds(self, size: int) -> float:
        """The time of a copy that moves `size` bytes, half of them read and half written: what the memory allows.

        On CUDA at the rate of a large copy; on the CPU at the rate of a copy of this size, which may fit in a cache.
        """
        moved = 2**30 if self.device == "cuda" else 2 ** max(12, min(29, size.bit_length()))
        if moved not in self._copies:
            source = torch.zeros(moved // 2, dtype=torch.uint8, device=self.device)
            target = torch.empty_like(source)
            self._copies[moved] = self.measure(lambda: target.copy_(source)).median
        return self._copies[moved] * size / moved


class Forecast:
    """Guesses from an implementation's earlier problems how long the next one takes, before it is too late.

    A loop's time grows with the length, or with the work; its backward by autograd with up to their square, since the
    gradient of each step's slice is as large as the whole input. The last two problems tell the exponent.
    """

    def __init__(self) -> None:
        self._known: Dict[Tuple[str, str, str], List[Tuple[Problem, float]]] = {}

    def add(self, name: str, problem: Problem, seconds: float) -> None:
        self._known.setdefault((name, problem.direction, problem.dtype), []).append((problem, seconds))

    def seconds(self, name: str, problem: Problem) -> float:
        """0 when nothing is known."""
        known = self._known.get((name, problem.direction, problem.dtype), [])
        if not known:
            return 0.0
        exponent = 2.0 if problem.direction == "backward" else 1.0
        (last, seconds), before = known[-1], known[-2:-1]
        if before and _growth(before[0][0], last) > 1:
            seen = math.log(seconds / before[0][1]) / math.log(_growth(before[0][0], last))
            exponent = max(1.0, min(exponent, seen))
        return seconds * _growth(last, problem) ** exponent


def _growth(earlier: Problem, later: Problem) -> float:
    return max(later.length / earlier.length, later.work / earlier.work)


def _timing(seconds: List[float]) -> Timing:
    quartiles = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    low, median, high = torch.tensor(seconds, dtype=torch.float64).quantile(quartiles).tolist()
    return Timing(median, low, high, len(seconds))


def _buffer_to_flush() -> torch.Tensor:
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return torch.empty(min(2**30, total // 16), dtype=torch.uint8, device="cuda")
