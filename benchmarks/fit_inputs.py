"""The data files that a fit reads: listed on standard error when it ends, and refused if their rows judge predictions.

Every `fit_*.py` runs in `listed_inputs`, which sees each file that Python opens (an audit hook), in any module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

JUDGING = ("evaluation", "judged_runs.csv")  # folder and file of rows that no fit may read
DATA = (".csv", ".gz", ".json", ".jsonl", ".xz")


@contextmanager
def listed_inputs() -> Iterator[None]:
    """List the data files that are read inside, also after an error. Reading one that judges raises RuntimeError."""
    seen: set[Path] = set()
    inside = True

    def note_file(event: str, arguments: tuple[object, ...]) -> None:
        if not inside or event != "open" or not isinstance(arguments[0], (str, os.PathLike)):
            return
        path, mode = Path(arguments[0]), str(arguments[1] or "r")
        if path.suffix not in DATA or "r" not in mode:
            return
        if not set(JUDGING).isdisjoint(path.parts):
            raise RuntimeError(f"a fit must not read {path}: its rows judge the predictions")
        seen.add(path)

    sys.addaudithook(note_file)
    try:
        yield
    finally:
        inside = False  # a hook cannot be removed
        names = sorted({str(Path(*path.parts[-2:])) for path in seen})
        print("data files read:", *(names or ["none"]), sep="\n  ", file=sys.stderr)
