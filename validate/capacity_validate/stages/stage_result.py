"""What stages hand on: records that add up."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from capacity_validate.findings import Finding
from capacity_validate.runner import RunOutcome
from capacity_validate.serving_loop import EngineRun
from capacity_validate.session import WholeModel
from capacity_validate.speculative_decoding import SpeculativeRun


class LoadedRun(NamedTuple):
    """A serving run and the request rate that it was sent at."""

    rate_per_s: float
    run: EngineRun


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """One thing that a stage did. None: it says nothing of that."""

    whole: WholeModel | None = None
    outcome: RunOutcome | None = None
    slowdown: float | None = None
    findings: tuple[Finding, ...] = ()
    runs: tuple[LoadedRun, ...] = ()
    speculation: tuple[SpeculativeRun, ...] = ()
    memory: Mapping[str, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()  # stages that failed, and why


def joined(results: Iterable[StageResult]) -> StageResult:
    """Everything that stages did, in order; of a model, an outcome or a byte count the last."""
    results = tuple(results)
    memory: dict[str, float] = {}
    for result in results:
        memory |= result.memory
    return StageResult(
        whole=next((r.whole for r in reversed(results) if r.whole is not None), None),
        outcome=next((r.outcome for r in reversed(results) if r.outcome is not None), None),
        slowdown=next((r.slowdown for r in reversed(results) if r.slowdown is not None), None),
        findings=tuple(finding for r in results for finding in r.findings),
        runs=tuple(run for r in results for run in r.runs),
        speculation=tuple(row for r in results for row in r.speculation),
        memory=memory,
        remarks=tuple(remark for r in results for remark in r.remarks),
        broken=tuple(reason for r in results for reason in r.broken),
    )
