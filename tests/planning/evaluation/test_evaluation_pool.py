"""Trials on demand: the same with workers as without, and ended by the clock in the middle."""

from __future__ import annotations

import math
import time
from concurrent.futures import wait
from typing import Any

import pytest
from slowness import slowness

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.model import load_model
from capacity.planning.evaluation import evaluation_pool as bench_module
from capacity.planning.evaluation.evaluation_context import (
    EvaluationContext,
    EvaluationRequest,
    OutOfTime,
    first_request,
)
from capacity.planning.evaluation.evaluation_pool import EvaluationPool
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.space import Candidate
from capacity.workload import parse_slos, random_requests


def context(requests: int = 60, output_len: int = 20) -> EvaluationContext:
    traffic = random_requests(
        num_requests=requests,
        input_len=100,
        output_len=output_len,
        request_rate_per_s=5.0,
        range_ratio=0.5,
    )
    goal = Goal(slos=parse_slos("ttft:p95:1s tpot:p95:1s"))
    return EvaluationContext(model=load_model("llama-3.1-8b"), workloads=[traffic], goal=goal)


ASKS = [
    first_request(Candidate(pool=Pool(gpu="h100", max_num_seqs=seqs), replicas=1), 0.9)
    for seqs in (1, 2, 4, 8)
]


@pytest.mark.ci
def test_workers_find_what_this_process_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "WORKERS_AFTER_S", 0.0)
    with EvaluationPool(context=context()) as alone:
        expected = [alone.trial(ask) for ask in ASKS]
    run = EvaluationContext.run

    def slow(self: EvaluationContext, *args: Any, **words: Any) -> Any:
        # Of this process alone: its worker starts, and finds one of those that it was given, meanwhile.
        if given := list(several._futures.values()):
            wait(given, timeout=60, return_when="FIRST_COMPLETED")
        return run(self, *args, **words)

    with EvaluationPool(context=context(), workers=2) as several, monkeypatch.context() as slower:
        slower.setattr(EvaluationContext, "run", slow)
        assert [several.trial(ask, lambda: ASKS) for ask in ASKS] == expected
        assert list(several.trials) == ASKS  # what was found ahead counts when it is asked for
        assert len(several.seconds) < len(ASKS)  # of this process
        slower.undo()
        tasks = [EvaluationRequest(candidate=ask.candidate, confidence=0.9) for ask in ASKS]
        assert several.run_all(tasks) == alone.run_all(tasks)


def test_a_full_trial_stands_for_a_sample() -> None:
    with EvaluationPool(context=context()) as evaluator:
        full = evaluator.trial(ASKS[0]._replace(sample=False, first_draw=False))
        assert evaluator.trial(ASKS[0]) is full


@pytest.mark.ci
def test_a_trial_ends_when_time_is_up_and_leaves_nothing() -> None:
    with EvaluationPool(context=context(20_000, 4000)) as evaluator:
        evaluator.trial(ASKS[0])  # the core is there, and the engine too
        evaluator.trials.clear()
        evaluator.until_s = time.monotonic() + 0.05
        with pytest.raises(OutOfTime):
            evaluator.trial(ASKS[-1]._replace(sample=False, first_draw=False))
        assert time.monotonic() - evaluator.until_s < 2 * max(slowness(), 1.0)
        assert not evaluator.trials
        assert evaluator.run_all([EvaluationRequest(candidate=ASKS[0].candidate, confidence=0.9)]) == [None]
        evaluator.until_s = math.inf


def test_a_tick_is_heard_while_a_trial_runs_and_ctrl_c_goes_through() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with EvaluationPool(context=context(), tick=interrupt) as evaluator:
        with pytest.raises(KeyboardInterrupt):
            evaluator.trial(ASKS[0])
        assert (
            evaluator.run_all([EvaluationRequest(candidate=ask.candidate, confidence=0.9) for ask in ASKS])
            == [None] * 4
        )
    with pytest.raises(InvalidInput, match="workers must be from 1 to 1024, not 0"):
        EvaluationPool(context=context(), workers=0)
