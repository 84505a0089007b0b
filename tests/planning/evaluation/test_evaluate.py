"""Trials: one replica for all, and what gives up early, change no verdict."""

from __future__ import annotations

import numpy as np
import pytest

from capacity.deployment import Pool
from capacity.planning.evaluation.evaluate import (
    EngineGroup,
    evaluate_engines,
    run_engines,
)
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.search.plan_request import parsed_slos
from capacity.pool.resolve import resolve
from capacity.workload import SteadyArrivals, ThinkTime, Workload, conversations, random_requests
from capacity.workload.lengths import FixedLengths


@pytest.mark.parametrize("speculator", [None, "eagle3"])
def test_one_replica_in_turn_is_one_of_the_cluster(speculator: str | None) -> None:
    """What a sample simulates is, to the picosecond, what the same replica does among the others; drafts are drawn by
    request number, and so alike in distribution only."""
    resolved = resolve("llama-3.1-8b", Pool(gpu="a100", speculator=speculator))
    workload = random_requests(num_requests=120, input_len=300, output_len=20, request_rate_per_s=80, seed=3)
    whole = run_engines([EngineGroup(resolved=resolved, replicas=4)], workload).records
    one = run_engines([EngineGroup(resolved=resolved)], workload.select(np.arange(0, 120, 4))).records
    assert np.array_equal(whole.arrival_ps[::4], one.arrival_ps)
    if speculator is None:
        assert np.array_equal(whole.finish_ps[::4], one.finish_ps)
        assert np.array_equal(whole.first_token_ps[::4], one.first_token_ps)
    else:
        ratio = (one.finish_ps - one.arrival_ps).mean() / (whole.finish_ps - whole.arrival_ps).mean()
        assert ratio == pytest.approx(1, abs=0.1)


def test_sessions_and_closed_loops_are_never_sampled() -> None:
    """Their next request waits for an answer, wherever that is given: the whole deployment is simulated."""
    resolved = resolve("llama-3.1-8b", Pool(gpu="a100"))
    talks = conversations(
        num_sessions=600,
        arrivals=SteadyArrivals(40.0),
        turns=FixedLengths(3),
        user_tokens=FixedLengths(20),
        output=FixedLengths(4),
        think_time=ThinkTime(0.5),
        seed=1,
    )
    loop = random_requests(
        num_requests=1700, input_len=50, output_len=4, request_rate_per_s=50
    ).in_closed_loop(8)
    for workload in (talks, loop):
        engines = [EngineGroup(resolved=resolved, replicas=2)]
        trial = evaluate_engines(engines, [workload], Goal(slos=parsed_slos("e2el:p95:60s")), sample=True)
        assert (trial.seen, trial.requests) == ("all", len(workload))


def test_giving_up_and_sampling_change_no_verdict() -> None:
    resolved = resolve("llama-3.1-8b", Pool(gpu="a100"))
    workload = random_requests(
        num_requests=2400, input_len=300, output_len=20, request_rate_per_s=120, seed=3
    )
    for slo in ("ttft:p95:100ms", "ttft:p95:2s tpot:p95:60ms", "tpot:p50:10ms ttft:p99:60s"):
        goal = Goal(slos=parsed_slos(slo))
        for replicas in (1, 2, 4):
            engines = [EngineGroup(resolved=resolved, replicas=replicas)]
            full = evaluate_engines(engines, [workload], goal, give_up=False)
            assert full.seen == "all"
            assert evaluate_engines(engines, [workload], goal).met == full.met
            sample = evaluate_engines(engines, [workload], goal, sample=True)
            assert sample.met == full.met
            if full.met and replicas > 1:
                assert sample.seen == "sample"
                assert sample.output_tokens_per_s == pytest.approx(full.output_tokens_per_s, rel=0.05)


def requests(rate: float, *, count: int = 160) -> Workload:
    return random_requests(
        num_requests=count, input_len=900, output_len=80, request_rate_per_s=rate, range_ratio=0.7, seed=1
    )


def test_the_first_draw_may_promise_and_never_condemns() -> None:
    resolved = resolve("llama-3.1-8b", Pool(gpu="a100"))
    draws = [requests(rate, count=100) for rate in (40.0, 2.0, 2.0)]  # the first is the hardest
    hard = Goal(slos=parsed_slos("ttft:p60:300ms"))
    engines = [EngineGroup(resolved=resolved)]
    alone = evaluate_engines(engines, draws[:1], hard)
    assert not alone.met
    together = evaluate_engines(engines, draws, hard, sample=True, first_draw=True)
    assert (together.met, together.seen) == (True, "all")
    easy = Goal(slos=parsed_slos("ttft:p60:9s"))
    promised = evaluate_engines(engines, draws, easy, sample=True, first_draw=True)
    assert (promised.met, promised.seen, promised.requests) == (True, "sample", 100)
