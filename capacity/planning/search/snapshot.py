"""What a search for deployments reports of itself while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from capacity.planning.space import Candidate, Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How the search stands: the best answer so far, and how many of the engines of this stage are settled."""

    elapsed_s: float
    stage: str
    settled: int
    engines: int
    simulated: int
    best: Candidate | None
    objective: float | None
    minimised: Objective


Progress = Callable[[Snapshot], None]
