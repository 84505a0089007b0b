"""`sweep` as a function: every point of a question, kept in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capacity.planning.sweeping.run import Swept
    from capacity.planning.sweeping.spec import SweepSpec


def sweep(
    spec: str | Path | SweepSpec,
    store: str | Path,
    *,
    workers: int = 1,
    scheduler: str | None = None,
    retry_failed: bool = False,
    export_to: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Swept:
    """Answer every point of `spec` (a TOML file) that the SQLite file `store` does not hold, and keep it there.

    `workers` local processes, or the Dask cluster at `scheduler` (tcp://host:port). A script that asks for more
    than one worker guards its own code by `if __name__ == "__main__"`. Raises MalformedFile and InvalidInput; a
    point that fails is recorded with its reason.
    """
    from capacity.planning.sweeping.export import export
    from capacity.planning.sweeping.run import dask_executors, processes, run_sweep
    from capacity.planning.sweeping.spec import SweepSpec, points, read_sweep
    from capacity.planning.sweeping.store import open_store

    read = spec if isinstance(spec, SweepSpec) else read_sweep(spec)
    executors = dask_executors(scheduler) if scheduler is not None else processes(workers)
    with open_store(store) as opened:
        swept = run_sweep(read, opened, executors=executors, retry_failed=retry_failed, progress=progress)
        if export_to is not None:
            export(opened.rows(points(read)), export_to)
    return swept
