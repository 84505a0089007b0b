"""Bisection of the highest rate: the edge, never and always; side by side as one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from capacity.deployment import Pool
from capacity.model import load_model
from capacity.planning.evaluation.evaluate import TOLERANCE, highest_rate
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.load.highest_rate import RateRuns, Served
from capacity.planning.workers.worker_pool import WorkerPool, run_in_parallel
from capacity.pool.resolve import resolve
from capacity.workload import parse_slos, random_requests


def bisected(met: Callable[[float], bool], guess: float) -> float:
    return run_in_parallel([highest_rate(guess)], met, worker_pool=None, function=met)[0]


@given(edge=st.floats(0.01, 1000), guess=st.floats(0.1, 100))
def test_bisection_finds_the_edge(edge: float, guess: float) -> None:
    found = bisected(lambda rate: rate <= edge, guess)
    if guess / 2**11 <= edge <= guess * 2**10:
        assert edge * (1 - 1.01 * TOLERANCE) <= found <= edge


def test_bisection_says_never_and_always() -> None:
    assert bisected(lambda _: False, 1.0) == 0.0
    assert bisected(lambda _: True, 1.0) == math.inf


def test_runs_side_by_side_find_what_runs_in_a_row_find() -> None:
    workloads = [
        random_requests(num_requests=40, input_len=300, output_len=20, request_rate_per_s=1.0, seed=seed)
        for seed in (0, 1)
    ]
    resolved = resolve(load_model("llama-3.2-1b"), Pool(gpu="h100"))
    goal = Goal(slos=parse_slos("ttft:p95:100ms"))
    served = Served(resolved=resolved, workloads=workloads, goal=goal, replicas=1)
    told: list[int] = []
    alone = RateRuns(served=served, worker_pool=None, progress=lambda done, _: told.append(done))
    with ThreadPoolExecutor(1) as executor:

        class Known:
            """What the tasks have in common is known to the executor, as to a worker_pool's."""

            submit = staticmethod(lambda function, *asked: executor.submit(function, served, *asked))

        several = RateRuns(served=served, worker_pool=WorkerPool(executor=Known(), workers=1), progress=None)  # type: ignore[arg-type]
        assert several.highest(50.0, 0.9) == alone.highest(50.0, 0.9)
        assert several.evaluate_all([1.0, 9.0]) == alone.evaluate_all([1.0, 9.0])
    assert told == list(range(1, several.done + 1))
