"""Progress of a plan's search on stderr: a bar on a terminal, lines in a file or a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from capacity.planning.search.snapshot import Snapshot

SILENT_S = 1.0  # shorter searches print nothing
EVERY_S = 10.0  # between two lines without a better answer
CTRL_C = "Ctrl-C returns the best result so far"


@contextmanager
def search_progress(*, every_better: bool = True) -> Iterator[Callable[[Snapshot], None]]:
    """Yield a callback that shows the progress of a search, which is given as a `Snapshot`.

    `every_better`: without a terminal, print a line for each better answer. Turn it off for several consecutive
    searches, because each has its own best answer.
    """
    if not sys.stderr.isatty():
        yield ProgressLines(sys.stderr, every_better=every_better)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[best]}"), console=Console(stderr=True)) as progress:
        task = progress.add_task("survey", total=None, best="")

        def update(snapshot: Snapshot) -> None:
            progress.update(
                task,
                description=snapshot.stage,
                completed=snapshot.settled,
                total=snapshot.engines,
                best=f"best so far: {best_text(snapshot)}" if snapshot.best else CTRL_C,
            )

        yield update


class ProgressLines:
    """Prints a line for every better plan, if enabled, and at least one line every `EVERY_S` seconds."""

    def __init__(self, stream: TextIO, *, every_better: bool = True) -> None:
        self._stream = stream
        self._every_better = every_better
        self._begun_s = self._told_s = time.monotonic()
        self._best: object = None

    def __call__(self, snapshot: Snapshot) -> None:
        now_s = time.monotonic()
        news = self._every_better and snapshot.best is not None and snapshot.best != self._best
        if now_s - self._begun_s < SILENT_S or not (news or now_s - self._told_s >= EVERY_S):
            return
        self._told_s, self._best = now_s, snapshot.best
        best = f"best so far {best_text(snapshot)}" if snapshot.best else "no answer yet"
        state = f"{snapshot.stage}, {snapshot.settled:,} of {snapshot.engines:,} engine candidates complete"
        print(
            f"{snapshot.elapsed_s:.0f} s: {best}; {state}, {snapshot.simulated:,} simulated",
            file=self._stream,
            flush=True,
        )


def best_text(snapshot: Snapshot) -> str:
    """Return the best candidate so far as text, with the value of the objective."""
    from capacity.base.money import convert_amounts
    from capacity.planning.search.candidate_family import format_objective

    assert snapshot.best is not None
    assert snapshot.objective is not None
    if snapshot.minimised == "latency":
        return f"{snapshot.best.label}, {snapshot.objective:.2f} of the limits"
    amount = format_objective(snapshot.minimised, snapshot.objective)
    return f"{snapshot.best.label}, {convert_amounts(amount)}"
