"""Progress reports of a running search."""

from collections.abc import Callable
from dataclasses import dataclass

from capacity.planning.space import Candidate, Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of a search: the best deployment so far, and how many engines of the current stage are `settled`."""

    elapsed_s: float
    stage: str
    settled: int
    engines: int
    simulated: int
    best: Candidate | None
    objective: float | None
    minimised: Objective


Progress = Callable[[Snapshot], None]
