"""Collectives between processes of their own; left out where a GPU is alone, or the budget is spent."""

from __future__ import annotations

from collections.abc import Iterator

from capacity_validate.collectives import measure_collectives, rank_counts
from capacity_validate.session import Session
from capacity_validate.stages.result import StageResult

COLLECTIVES_S = 20.0  # to start processes that each import torch


def collective_stage(session: Session) -> Iterator[StageResult]:
    stage = session.plan.collectives
    if stage is None:
        return
    counts = rank_counts(session.facts.devices_in_node) if session.on_gpu else (stage.ranks,)
    if not counts:
        yield StageResult(remarks=("one GPU: no collectives were measured",))
        return
    if session.transformer is not None:
        session.transformer.release()  # the first GPU's memory: this is the last stage
        session.free_memory()
    for ranks in counts:
        if session.time_left_s() < COLLECTIVES_S * session.slowdown:
            yield StageResult(remarks=(f"collectives of {ranks} ranks: left out, the budget was spent",))
            return
        session.announce(f"collectives of {ranks} ranks")
        for measured in measure_collectives(
            ranks=ranks, on_cuda=session.on_gpu, message_bytes=stage.message_bytes
        ):
            if measured.case.id not in session.log.done:
                session.log.add(measured)
