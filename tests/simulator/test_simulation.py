"""The simulator against queueing theory, conservation laws and its own symmetries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployments import DEPLOYMENTS, WORKLOADS
from engine_runs import COLUMNS, random_run, run_engine

from capacity.simulator import Engine, SimulationResult, simulate
from capacity.simulator.schedulers import Step
from capacity.step import PS_PER_S, AffineStepTimes
from capacity.workload import Workload, random_requests


def same(a: SimulationResult, b: SimulationResult, rows: int, scale: int = 1) -> bool:
    instants = {"arrival_ps", "first_scheduled_ps", "first_token_ps", "finish_ps"}
    return all(
        (getattr(a.records, c)[:rows] * (scale if c in instants else 1) == getattr(b.records, c)[:rows]).all()
        for c in COLUMNS
    )


def open_run(seed: int) -> tuple[Workload, dict[str, Any]]:
    workload, options = random_run(seed)
    options["step_times"] = AffineStepTimes(0.01, 0.001, per_context_token_s=1e-6)
    return replace(workload, concurrency=None), options


def test_exact_symmetries() -> None:
    """Time scaled by four, a request added after the end, a run repeated: nothing else may change."""
    for seed in range(60):
        workload, options = open_run(seed)
        base = run_engine(workload, **options)
        assert same(base, run_engine(workload, **options), len(workload))
        slow = AffineStepTimes(0.04, 0.004, per_context_token_s=4e-6)
        grid = np.rint(workload.arrival_s * PS_PER_S) / PS_PER_S
        slower = run_engine(replace(workload, arrival_s=grid * 4), **options | {"step_times": slow})
        assert same(base, slower, len(workload), 4)
        count = len(workload)
        longer = replace(
            workload,
            arrival_s=np.append(workload.arrival_s, base.summary.duration + workload.arrival_s[0] + 1),
            prompt_tokens=np.append(workload.prompt_tokens, 5),
            output_tokens=np.append(workload.output_tokens, 5),
            priority=None if workload.priority is None else np.append(workload.priority, 0),
            content=None,
        )
        plain = run_engine(replace(workload, content=None), **options)
        assert same(plain, run_engine(longer, **options), count)


def test_tendencies_in_aggregate() -> None:
    """Scheduling anomalies are real, so of more memory only the mean over runs may be asserted."""
    worse = more_tokens = 0
    faster_total = base_total = 0.0
    for seed in range(80):
        workload, options = open_run(seed)
        base = run_engine(workload, **options)
        roomy = run_engine(workload, **options | {"num_blocks": 2 * options["num_blocks"]})
        worse += roomy.summary.duration > base.summary.duration
        fast = AffineStepTimes(0.005, 0.0005, per_context_token_s=5e-7)
        quick = run_engine(workload, **options | {"step_times": fast})
        assert quick.summary.duration <= base.summary.duration
        base_total += base.summary.duration
        faster_total += quick.summary.duration
        more_tokens += roomy.preemptions > base.preemptions
    assert worse <= 3
    assert more_tokens <= 3
    assert faster_total < base_total


def test_caching_without_anything_shared_changes_nothing() -> None:
    for seed in range(40):
        workload, options = open_run(seed)
        workload = replace(workload, content=None)
        options["num_blocks"] += 4000  # nothing is evicted, nobody preempted
        on = run_engine(workload, **options | {"enable_prefix_caching": True})
        off = run_engine(workload, **options | {"enable_prefix_caching": False})
        assert same(on, off, len(workload))


SAME_BYTES = """
import json, sys
sys.path.insert(0, {tests!r})
from engine_runs import random_run, run_engine
out = []
for seed in range(4):
    workload, options = random_run(seed)
    result = run_engine(workload, **options)
    out.append([result.to_dict(), result.records.finish_ps.tolist(), workload.fingerprint()])
print(json.dumps(out))
"""


def test_same_bytes_whatever_the_hash_seed() -> None:
    tests = Path(__file__).parents[1]
    answers = set()
    for seed in ("0", "4242"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(tests.parent)}
        script = SAME_BYTES.format(tests=str(tests))
        answers.add(
            subprocess.run(
                [sys.executable, "-c", script], env=environment, capture_output=True, check=True
            ).stdout
        )
    assert len(answers) == 1
    assert len(json.loads(answers.pop())) == 4


def test_an_interrupted_run_shows_what_was_done() -> None:
    workload = random_requests(num_requests=50, input_len=20, output_len=10, request_rate_per_s=5.0)

    def interrupt(step: Step, engine: Engine) -> None:  # noqa: ARG001
        if step.end > 4 * PS_PER_S:
            raise KeyboardInterrupt

    settings = {"step_times": AffineStepTimes(0.01, 1e-4), "num_blocks": 30, "observer": interrupt}
    with pytest.raises(KeyboardInterrupt):  # half a run is no answer to who asked for a whole one
        run_engine(workload, **settings)
    result = run_engine(workload, **settings, keep_interrupted=True)
    assert result.status == "interrupted"
    assert result.reason is not None
    assert "4.0" in result.reason
    assert 10 < result.summary.completed < 30


def test_memory_stays_bounded() -> None:
    """100,000 requests in a process of its own: live requests and columns, no per-token state."""
    benchmark = Path(__file__).parents[2] / "benchmarks" / "simulation_speed.py"
    command = [sys.executable, str(benchmark), "--alone", "100000"]
    environment = os.environ | {"PYTHONPATH": str(benchmark.parent.parent)}
    answer = subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout
    assert json.loads(answer)["peak_mb"] < 200


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_an_interrupt_keeps_what_every_deployment_has_done(name: str) -> None:
    def interrupt(done: int, total: int) -> None:  # noqa: ARG001
        if done >= 200:
            raise KeyboardInterrupt

    run = simulate(WORKLOADS["open"], **DEPLOYMENTS[name], progress=interrupt, keep_interrupted=True)
    assert run.status == "interrupted"
    assert run.reason is not None
    assert "s of simulated time" in run.reason
    assert 199 <= run.summary.completed < 401  # the compiled engines tell it some steps at a time
    with pytest.raises(KeyboardInterrupt):
        simulate(WORKLOADS["open"], **DEPLOYMENTS[name], progress=interrupt)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_stall_is_told_by_every_deployment(name: str) -> None:
    """A prompt of 700 tokens never finds its 44 blocks among 40."""
    large = Workload(
        arrival_s=np.array([0.0, 1.0]), prompt_tokens=np.array([700, 10]), output_tokens=np.array([5, 5])
    )
    run = simulate(large, **DEPLOYMENTS[name])
    assert run.status == "stalled"
    assert run.reason is not None
    assert "KV blocks than" in run.reason
