"""The results of a validation run, to which each stage adds."""

from dataclasses import dataclass, field
from typing import NamedTuple

from capacity_validate.findings import Finding
from capacity_validate.runner import RunOutcome
from capacity_validate.serving_loop import EngineRun
from capacity_validate.session import WholeModel
from capacity_validate.speculative_decoding import SpeculativeRun


class LoadedRun(NamedTuple):
    """A serving run and its request rate."""

    rate_per_s: float
    run: EngineRun


@dataclass(slots=True, kw_only=True)
class StageResults:
    """The results of all stages so far. Each stage adds to them, so that a run keeps its results if a stage fails."""

    whole: WholeModel | None = None
    outcome: RunOutcome | None = None
    slowdown: float | None = None
    throttled_fraction: float = 0.0  # of the readings during the cases, due to heat or a power brake
    findings: list[Finding] = field(default_factory=list)
    runs: list[LoadedRun] = field(default_factory=list)
    speculation: list[SpeculativeRun] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # failed stages, with the reason
