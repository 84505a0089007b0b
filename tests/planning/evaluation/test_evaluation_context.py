"""Where candidates are tried: pools are resolved once, and what time does not allow is left out."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from capacity.deployment import Pool
from capacity.model import load_model
from capacity.planning.evaluation.evaluate import run_engines
from capacity.planning.evaluation.evaluation_context import EvaluationContext, EvaluationRequest, run_task
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.space import Candidate
from capacity.workload import parse_slos, random_requests

POOL = Pool(gpu="h100")
TASK = EvaluationRequest(candidate=Candidate(pool=POOL, replicas=1), confidence=None)


def context() -> EvaluationContext:
    requests = random_requests(num_requests=20, input_len=100, output_len=20, request_rate_per_s=5.0)
    goal = Goal(slos=parse_slos("ttft:p95:1s tpot:p95:1s"))
    return EvaluationContext(model=load_model("llama-3.1-8b"), workloads=[requests], goal=goal)


def test_a_pool_is_resolved_once_and_does_not_travel_to_workers() -> None:
    here = context()
    assert here.resolve_pool(POOL) is here.resolve_pool(POOL)
    there = pickle.loads(pickle.dumps(here))
    assert there._resolved == {}
    assert there.run(TASK) == here.run(TASK)


def test_full_trial_after_a_first_look_simulates_the_other_draws_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first draw was simulated already; the trial is that of an context which never looked."""
    draws = [
        random_requests(num_requests=20, input_len=100, output_len=20, request_rate_per_s=5.0, seed=seed)
        for seed in range(3)
    ]
    looked, fresh = replace(context(), workloads=draws), replace(context(), workloads=draws)
    served: list[int] = []
    monkeypatch.setattr(
        "capacity.planning.evaluation.evaluate.run_engines",
        lambda engines, workload, **options: (
            served.append(next(i for i, draw in enumerate(draws) if draw is workload))
            or run_engines(engines, workload, **options)
        ),
    )
    first = looked.run(TASK._replace(sample=True, first_draw=True))
    assert (first.seen, served) == ("sample", [0])
    full = looked.run(TASK)
    assert served == [0, 1, 2]
    assert full == fresh.run(TASK)


def test_a_worker_stops_when_its_seconds_are_over() -> None:
    own = context()
    assert run_task(own, TASK, 60.0) == own.run(TASK)
    assert run_task(own, TASK, -1e-9) is None
    calls = []
    context().run(TASK, check=lambda: calls.append(1))
    assert calls


def test_first_tokens_alone_leave_decode_and_its_limits_out() -> None:
    whole, first = (context().run(TASK._replace(first_tokens=only)) for only in (False, True))
    assert [level.slo for level in whole.levels] == ["ttft:p95:1s", "tpot:p95:1s"]
    assert [level.slo for level in first.levels] == ["ttft:p95:1s"]
    assert first.mean_e2e_s < whole.mean_e2e_s


def test_engines_with_the_same_steps_share_them() -> None:
    here = context()
    small, large = (
        here.resolve_pool(POOL.model_copy(update={"max_num_batched_tokens": budget}))
        for budget in (2048, 4096)
    )
    sharded = here.resolve_pool(POOL.model_copy(update={"tensor_parallel_size": 2}))
    assert small.step_setting == large.step_setting
    assert small.step_model is large.step_model
    assert sharded.step_model is not small.step_model
    assert here.setup(POOL, 0.9) is here.setup(POOL, 0.9)
    assert here.setup(POOL, 0.9).step_times is not here.setup(POOL, None).step_times
