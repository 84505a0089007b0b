"""What a worker of a test's sweep runs; a module of its own, so that starting one imports little."""

from __future__ import annotations

import os

DEADLY = "a point that kills its worker"


def arm() -> None:
    """In a worker: an option `gpu = DEADLY` ends the process, as running out of memory does."""
    from capacity.planning.sweeps import sweep as run

    answer = run.answer_point
    run.answer_point = lambda point: os._exit(9) if point.options["gpu"] == DEADLY else answer(point)
