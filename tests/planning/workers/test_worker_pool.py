"""Who computes: chains side by side give what they give one after the other, whoever dies and in whatever order."""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest

from capacity.base.errors import InvalidInput
from capacity.planning.workers.worker_pool import (
    NotDone,
    Recalled,
    WorkerPool,
    open_pool,
    recall_scope,
    run_in_parallel,
    single_request,
    stop_if_recalled,
)

STARTS = (27, 1, 97, 6, 871, 2)


class Poison(Exception):
    """What an executor says of a task that kills whoever works at it."""


def halved_or_more(number: int) -> int:
    return number // 2 if number % 2 == 0 else 3 * number + 1


def collatz(number: int) -> Generator[int, int, tuple[int, int]]:
    """Each question follows from the answer before: steps to 1, and the start."""
    start, steps = number, 0
    while number != 1:
        number = yield number
        steps += 1
    return steps, start


EXPECTED = [(111, 27), (0, 1), (118, 97), (8, 6), (178, 871), (1, 2)]


def chains() -> list[Generator[int, int, tuple[int, int]]]:
    return [collatz(number) for number in STARTS]


def test_without_a_crew_one_chain_after_the_other() -> None:
    asked: list[int] = []

    def do(number: int) -> int:
        asked.append(number)
        return halved_or_more(number)

    assert run_in_parallel(chains(), do, worker_pool=None, function=halved_or_more) == EXPECTED
    assert asked[110] == 2  # the first to its end
    assert asked[111] == 97


@pytest.mark.parametrize("workers", [1, 3])
def test_the_order_in_which_workers_answer_does_not_count(workers: int) -> None:
    rng = random.Random(workers)
    told: list[int] = []

    def slowly(number: int) -> int:
        time.sleep(rng.random() * 1e-4)
        return halved_or_more(number)

    with ThreadPoolExecutor(workers) as executor:
        worker_pool = WorkerPool(executor=executor, workers=workers)
        found = run_in_parallel(
            chains(), _nobody, worker_pool=worker_pool, function=slowly, on_answer=lambda: told.append(1)
        )
    assert found == EXPECTED
    assert len(told) == sum(steps for steps, _ in EXPECTED)


def _nobody(number: int) -> int:
    raise AssertionError(f"{number} was to be done by a worker")


class Failing(Executor):
    """Answers, but what is poison to it or comes after so many tasks."""

    def __init__(self, tasks: int, *, when_gone: str) -> None:
        self._left, self._when_gone = tasks, when_gone

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._left -= 1
        if arguments[0] % 5 == 0:
            future.set_exception(Poison())
        elif self._left >= 0:
            future.set_result(function(*arguments))
        elif self._when_gone == "refuses":
            raise BrokenExecutor
        else:
            future.set_exception(BrokenExecutor())
        return future


@pytest.mark.parametrize("when_gone", ["refuses", "breaks"])
def test_what_no_worker_survives_is_done_here(when_gone: str) -> None:
    here: list[int] = []

    def do(number: int) -> int:
        here.append(number)
        return halved_or_more(number)

    executor = Failing(30, when_gone=when_gone)
    worker_pool = WorkerPool(executor=executor, workers=2, address="tcp://h:1", deadly=(Poison,))
    assert run_in_parallel(chains(), do, worker_pool=worker_pool, function=halved_or_more) == EXPECTED
    poisoned = sum(number % 5 == 0 for number in here)
    assert 0 < poisoned < len(here) < sum(steps for steps, _ in EXPECTED)
    assert worker_pool.is_lost
    assert worker_pool.remarks == (
        "The Dask cluster at tcp://h:1 was lost, so its remaining tasks ran on this machine.",
    )


def test_what_a_task_raises_is_raised() -> None:
    def refuse(number: int) -> int:
        raise InvalidInput(f"{number} is odd")

    with ThreadPoolExecutor(1) as executor, pytest.raises(InvalidInput, match="27 is odd"):
        run_in_parallel(
            chains(), _nobody, worker_pool=WorkerPool(executor=executor, workers=1), function=refuse
        )


def test_what_a_process_has_not_begun_is_taken_back_and_nobody_is_lost() -> None:
    future: Future[Any] = Future()
    with ThreadPoolExecutor(1) as executor:
        here, there = (
            WorkerPool(executor=executor, workers=1),
            WorkerPool(executor=executor, workers=1, address="tcp://h:1"),
        )
        assert not there.take_back(future)
        assert here.take_back(future)
        with pytest.raises(NotDone):
            here.result(future)
        assert not here.is_lost


def add(first: int, second: int, third: int) -> int:
    return first + second + third


def test_what_tasks_have_in_common_comes_first() -> None:
    with open_pool(1, None, common=(1, 20)) as worker_pool:
        asks: list[Generator[int, int, int]] = [single_request(300), single_request(400)]
        assert run_in_parallel(asks, _nobody, worker_pool=worker_pool, function=add) == [321, 421]
        assert worker_pool.remarks == ()


def test_a_task_that_nobody_waits_for_stops() -> None:
    stop_if_recalled()
    with recall_scope(lambda: False):
        stop_if_recalled()
    with pytest.raises(Recalled), recall_scope(lambda: True):
        raise AssertionError("it has begun")
    stop_if_recalled()
