"""Bisection of the highest rate: the edge, never and always; side by side as one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from capacity.deployment import Pool
from capacity.model import load_model
from capacity.planning.evaluation.evaluate import TOLERANCE, highest_rate
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.load.highest_rate import RatePoint, RateRuns, Served, _search_loop
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


@given(
    edge=st.floats(0.5, 3000),
    guess=st.integers(1, 300),
    power=st.sampled_from([0.0, 0.2, 1.0, 4.0, 40.0]),
    most=st.integers(1, 2000),
)
def test_search_of_a_closed_loop_finds_the_edge_in_few_runs(
    edge: float, guess: int, power: float, most: int
) -> None:
    """Also if the ratio is flat or rises steeply; if it is linear, the interpolation needs a few runs."""
    loads: list[float] = []

    def run(point: RatePoint) -> Any:
        loads.append(point.rate)
        met = point.rate <= edge
        ratio = (point.rate / edge) ** power if power else 0.5 if met else 2.0
        return SimpleNamespace(met=met, ratio=ratio)

    (found,) = run_in_parallel(
        [_search_loop(guess, None, 0, most)], run, worker_pool=None, function=Served.trial
    )
    highest = min(int(edge), most)
    assert highest - max(int(TOLERANCE * found), 1) < found <= highest
    assert len(loads) <= (6 if power == 1.0 else 40)
    assert all(1 <= load <= most and load == int(load) for load in loads)


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
