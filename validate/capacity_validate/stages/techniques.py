"""Techniques of engines and quantizers, held to what they promise: on the host, and on the GPU that is measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from capacity_validate.capture import Captures
from capacity_validate.device_techniques import device_findings, served_dtype
from capacity_validate.findings import ON_HOST
from capacity_validate.quantizers import quantizer_findings
from capacity_validate.session import Session
from capacity_validate.stages.result import StageResult
from capacity_validate.techniques import technique_findings

DEVICE_S = 20.0  # of the budget for a GPU's own, at most
DEVICE_SHARE = 0.2


def technique_stage(session: Session) -> Iterator[StageResult]:
    if not session.plan.techniques:
        return
    if session.time_left_s() <= 0:
        yield StageResult(remarks=("techniques: left out, the budget was spent",))
        return
    session.announce("techniques")
    if session.on_gpu:
        yield from _on_device(session)
    for findings in (quantizer_findings, technique_findings):
        yield StageResult(findings=tuple(replace(f, device=ON_HOST) for f in findings()))


def _on_device(session: Session) -> Iterator[StageResult]:
    device = session.facts.torch_name
    if (reason := session.missing.get(served_dtype(device))) is not None:
        yield StageResult(remarks=(f"no technique was checked on {device}: {reason}",))
        return
    ends = time.monotonic() + min(DEVICE_S, DEVICE_SHARE * session.time_left_s())
    for finding in device_findings(device, Captures(session.torch, device)):
        yield StageResult(findings=(finding,))
        if time.monotonic() > ends:
            yield StageResult(remarks=(f"the budget left the last techniques unchecked on {device}",))
            return
