"""Techniques of engines and quantizers, held to what they promise."""

from __future__ import annotations

from collections.abc import Iterator

from capacity_validate.quantizers import quantizer_findings
from capacity_validate.session import Session
from capacity_validate.stages.result import StageResult
from capacity_validate.techniques import technique_findings


def technique_stage(session: Session) -> Iterator[StageResult]:
    if not session.plan.techniques:
        return
    if session.time_left_s() <= 0:
        yield StageResult(remarks=("techniques: left out, the budget was spent",))
        return
    session.announce("techniques")
    yield StageResult(findings=tuple(quantizer_findings()))
    yield StageResult(findings=tuple(technique_findings()))
