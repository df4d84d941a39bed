"""The command line of mamba_ops: what is installed, how fast it is here, and pictures of that."""

import argparse
import json
import math
import os
import sys
from typing import List, Optional

import torch

from . import _advice, _info, _machine
from ._errors import CommandError

QUICK_SIZES = ["1x256x256", "1x256x1024"]
SIZES = [f"1x256x{2**n}" for n in range(7, 15)] + ["1x1536x2048", "8x1536x2048", "64x384x256"]


def main(arguments: Optional[List[str]] = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        code = options.run(options)
        sys.stdout.flush()
        return code
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # who reads it, as head, has seen enough; Python flushes once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mamba_ops", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="versions, build options, operators, and what does not fit")
    info.add_argument("--json", action="store_true", help="as JSON")
    info.set_defaults(run=_run_info)
    _add_bench(commands.add_parser("bench", help="time the operators beside what is installed"))
    _add_plot(commands.add_parser("plot", help="pictures of what bench wrote"))
    return parser


def _add_bench(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    parser.description = "Medians and quartiles of forward, backward and decoding step, beside what memory allows."
    add("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    add("--directions", nargs="+", choices=["forward", "backward", "decode"], metavar="WHAT",
        help="some of forward, backward, decode; all unless given")  # fmt: skip
    add("--dtype", dest="dtypes", nargs="+", choices=["float32", "bfloat16", "float16", "float64"], default=["float32"])
    add("--layout", dest="layouts", nargs="+", choices=["channel-first", "channel-last"], default=["channel-first"])
    add("--sizes", "--shape", nargs="+", metavar="BxDxL[xN]",
        help="batch x dim x length x dstate (16 unless given), as 1x256x1024")  # fmt: skip
    add("--peers", nargs="+", default=["all"], metavar="PEER",
        help="all, none, or some of loop, transformers, associative_scan, mamba_ssm, study_naive, study_warp, "
        "study_shared")  # fmt: skip
    cpus = os.cpu_count() or 1  # more threads wait for each other: a call may never end
    add("--threads", type=_positive(int, cpus), default=torch.get_num_threads(), help="CPU threads, no more than CPUs")
    add("--seconds", type=_positive(float), help="how long to repeat each call (0.5; quick: 0.2)")
    add("--time-limit", type=_positive(float), help="skip a call expected to take more seconds (5; quick: 2)")
    add("--quick", action="store_true", help="few sizes and repeats: less than a minute")
    add("--out", metavar="PREFIX", help="write PREFIX.json and PREFIX.csv")
    add("--note", default="", help="a remark to write down, as a commit")
    add("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_run_bench)


def _add_plot(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    parser.description = "Time against length, speed-up and share of the limit, readable in black and white."
    add("files", nargs="+", metavar="FILE", help="JSON files of bench")
    add("--out", metavar="PREFIX", help="write PREFIX-time.png and so on; the first FILE without .json unless given")
    add("--pictures", nargs="+", choices=["time", "speedup", "share"], default=["time", "speedup", "share"])
    add("--directions", nargs="+", choices=["forward", "backward", "decode"], help="only these")
    add("--sizes", nargs="+", metavar="BxDxL", help="only these; a decoding step is BxD")
    add("--formats", nargs="+", choices=["png", "svg"], default=["png", "svg"])
    parser.set_defaults(run=_run_plot)


def _positive(kind, most=None):
    bounds = "above 0 and finite" if most is None else f"above 0 and at most {most}"

    def parse(text: str):
        value = kind(text)
        if not 0 < value < math.inf or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"must be {bounds}, not {text}")
        return value

    parse.__name__ = f"positive {kind.__name__}"
    return parse


def _run_bench(options: argparse.Namespace) -> int:
    from .bench.command import run

    options.directions = options.directions or ["forward", "backward", "decode"]
    options.sizes = options.sizes or (QUICK_SIZES if options.quick else SIZES)
    options.seconds = options.seconds or (0.2 if options.quick else 0.5)
    options.time_limit = options.time_limit or (2.0 if options.quick else 5.0)
    return run(options)


def _run_plot(options: argparse.Namespace) -> int:
    from .plot.command import run

    return run(options)


def _run_info(options: argparse.Namespace) -> int:
    rows, operators, devices = _info.info(), _info.operators(), _info.cuda_devices()
    wanted_level = os.environ.get("MAMBA_OPS_CPU", "")
    advice = _advice.advice(rows, devices, _machine.cpu_flags(), wanted_level)
    rows["CPU"], rows["driver"] = _machine.cpu_name(), _machine.driver()
    rows["CUDA devices"] = ", ".join(f"{x.name} ({x.capability})" for x in devices) or "none"
    if options.json:
        print(json.dumps(dict(rows, operators=operators, advice=advice), indent=1))
        return 0
    width = max(map(len, [*rows, *operators]))
    print(*(f"{name:<{width}}  {value}" for name, value in rows.items()), sep="\n")
    print("\noperators and the dispatch keys with a kernel")
    print(*(f"{name:<{width}}  {' '.join(keys)}" for name, keys in operators.items()), sep="\n")
    print("\nadvice")
    print(*(f"* {sentence}" for sentence in advice or ["nothing: all of it fits together"]), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
