"""What a run records: progress, samples, step work and observers, whatever stands before the engines."""

from __future__ import annotations

from typing import Any

import pytest
from deployments import DEPLOYMENTS, WORKLOADS

from capacity.simulator import Engine, simulate
from capacity.simulator.schedulers import Step


@pytest.mark.parametrize("kind", WORKLOADS)
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_progress_samples_work_and_observers_reach_every_deployment(name: str, kind: str) -> None:
    workload, reports, steps = WORKLOADS[kind], [], []

    def observe(step: Step, engine: Engine) -> None:
        steps.append((step.end, engine.kv_used_blocks))

    shown: dict[str, Any] = {"keep_work": True, "sample_interval_s": 0.5}
    run = simulate(
        workload, **DEPLOYMENTS[name], **shown, progress=lambda done, total: reports.append((done, total))
    )
    assert reports == sorted(reports)
    assert 10 <= len(reports) <= 201
    assert reports[-1][0] >= 400
    assert {total for _, total in reports} == {401}
    stepped = simulate(workload, **DEPLOYMENTS[name], **shown, observer=observe)
    assert stepped.to_dict() == run.to_dict()
    assert len(steps) == run.steps
    assert len(run.step_work) == len(run.replicas)
    assert sum(replica.requests for replica in run.replicas) >= 401
    assert [sample.time_s for sample in run.series[:3]] == [0.0, 0.5, 1.0]
    assert max(sample.running for sample in run.series) > 0
    assert max(sample.kv_used_blocks for sample in run.series) > 0
    assert run.series == stepped.series
