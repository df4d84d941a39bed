"""The command: which pictures are made of which reports."""

import argparse
from typing import Callable, Dict

from .._errors import CommandError
from .._files import outputs
from ..bench.report import read_report
from .panels import select

NEEDS = "plot needs matplotlib: install it by `pip install matplotlib`, or the package with its extra: mamba-ops[bench]"


def run(options: argparse.Namespace) -> int:
    """Write the pictures and say where; a picture that the figures are not enough for is left out, and said so."""
    reports = [select(read_report(path), options.sizes, options.directions) for path in options.files]
    prefix = options.files[0].removesuffix(".json") if options.out is None else options.out
    outputs(prefix, [f"-{name}.{kind}" for name in options.pictures for kind in options.formats])
    written = []
    pictures = _pictures()
    for name in options.pictures:
        figure = pictures[name](reports)
        if figure is None:
            print(f"no {name} picture: no measurements for it in {', '.join(options.files)}")
            continue
        for kind in options.formats:
            path = f"{prefix}-{name}.{kind}"
            metadata = {"Date": None} if kind == "svg" else None  # the same figures, the same file
            figure.savefig(path, dpi=150, metadata=metadata)
            written.append(path)
    if not written:
        raise CommandError(
            "nothing to draw: the files hold no such measurements; run bench with more sizes, or plot fewer options"
        )
    print("written:", *written)
    return 0


def _pictures() -> Dict[str, Callable]:
    try:
        from . import figures
    except ImportError as error:
        raise CommandError(NEEDS) from error
    return {"time": figures.time, "speedup": figures.speedup, "share": figures.share}
