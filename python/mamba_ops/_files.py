"""Where the command line writes, asked before the work is done that the files are for."""

import os
from pathlib import Path
from typing import List, Sequence

from ._errors import CommandError


def outputs(prefix: str, suffixes: Sequence[str]) -> List[Path]:
    """prefix + suffix for each suffix; raises CommandError unless files can be written there."""
    if os.path.basename(prefix) in ("", ".", ".."):
        raise CommandError(f"--out {prefix!r} names no file: give the beginning of a file name, as figures")
    paths = [Path(prefix + suffix) for suffix in suffixes]
    if not paths[0].parent.is_dir():
        raise CommandError(f"the folder {paths[0].parent} of --out is not there: make it first")
    for path in paths:
        _try(path)
    return paths


def _try(path: Path) -> None:
    """Permissions alone do not tell: folders may be read-only, full, or of a kind of their own as /proc."""
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise CommandError(f"{path} of --out cannot be written ({error.strerror}): name another place") from error
    if is_new:
        path.unlink()
