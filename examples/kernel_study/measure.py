"""Times the three study kernels on a CUDA device beside mamba::selective_scan.

    PYTHONPATH=build/dev/python python examples/kernel_study/measure.py [OUT.json]
    ncu ... python examples/kernel_study/measure.py --once    # every kernel once a size, for a profiler

Medians over replays of a CUDA graph of ten calls, so that launching costs next to nothing; inputs as in the accuracy
clause of the tests. The caches are warm: the tensors of these sizes fit into an H200's L2.
"""

import argparse
import json
import statistics
from typing import Callable, Dict, List, Optional

import mamba_ops
import torch
from torch import Tensor

SIZES = [(8, 128, 2048), (1, 256, 2048), (1, 16, 16384), (8, 2048, 2048)]
LAYOUTS = ["bdl", "lbd"]  # [batch, dim, seqlen], [seqlen, batch, dim]
CALLS, REPLAYS = 10, 11


def inputs(batch: int, dim: int, seqlen: int, dstate: Optional[int], layout: str) -> List[Tensor]:
    """u, delta, A, B, C; dstate None: one state for each channel, with its own B and C."""
    A = -torch.randn(dim, *([] if dstate is None else [dstate])).exp()
    u, delta = torch.randn(2, batch, dim, seqlen)
    B, C = torch.randn(2, batch, dim if dstate is None else dstate, seqlen)
    tensors = [u, delta.abs() / 10, A, B, C / (dstate or 1) ** 0.5]
    if layout == "lbd":
        tensors = [x.permute(2, 0, 1).contiguous().permute(1, 2, 0) if x.dim() == 3 else x for x in tensors]
    return [x.cuda() for x in tensors]


def schemes() -> Dict[str, Callable[..., Tensor]]:
    torch.ops.load_library(str(mamba_ops.library_path().with_name("libmamba_study.so")))
    study = torch.ops.mamba_study
    return {
        "naive": study.scan_naive,
        "warp, 1 step a lane": lambda *x: study.scan_warp(*x, 1),
        "warp, 4 steps a lane": lambda *x: study.scan_warp(*x, 4),
        "warp, 8 steps a lane": lambda *x: study.scan_warp(*x, 8),
        "shared": study.scan_shared,
        "mamba::selective_scan": torch.ops.mamba.selective_scan,
    }


def microseconds(call: Callable[[], Tensor]) -> float:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(CALLS):
                call()
        times = []
        for _ in range(REPLAYS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(1000 * begin.elapsed_time(end) / CALLS)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", help="the raw figures as JSON")
    parser.add_argument("--once", action="store_true", help="run every kernel once, time nothing")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for size in SIZES[:2] if options.once else SIZES:
        for dstate in (None, 16):
            for layout in LAYOUTS:
                arguments = inputs(*size, dstate, layout)
                row = {"size": size, "dstate": dstate, "layout": layout, "us": {}}
                for name, scheme in schemes().items():
                    if options.once:
                        scheme(*arguments)
                    else:
                        row["us"][name] = microseconds(lambda scheme=scheme, arguments=arguments: scheme(*arguments))
                rows.append(row)
                times = "  ".join(f"{name} {us:.1f}" for name, us in row["us"].items())
                print(f"{size} dstate {dstate} {layout}: {times}", flush=True)
    torch.cuda.synchronize()
    if options.out:
        figures = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
