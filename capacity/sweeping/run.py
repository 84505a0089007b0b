"""Run a sweep over any executor, point by point; what fails is recorded and the rest go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from capacity.errors import CapacityError, InvalidInput
from capacity.sweeping.spec import Point, SweepSpec, points
from capacity.sweeping.store import Answer, Store

CHUNK = {"fit": 25, "estimate": 25, "simulate": 1}  # points of one task: analytic ones are short
IN_FLIGHT = 8  # tasks that are handed out ahead
ATTEMPTS = 2  # of a point whose worker dies

Executors = Callable[[], AbstractContextManager[Executor]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """How a sweep ended: `skipped` were done before."""

    points: int
    done: int
    failed: int
    skipped: int


def run_sweep(
    spec: SweepSpec,
    store: Store,
    *,
    executors: Executors | None = None,
    retry_failed: bool = False,
    progress: Progress | None = None,
) -> Swept:
    """Answer every point that the store does not hold yet.

    `executors` opens an executor (again, where its workers died); None: this process. A point that fails, or
    whose worker dies twice, is recorded with its reason.
    """
    everything = points(spec)
    known = store.known(failed=not retry_failed)
    todo = [point for point in everything if point.key not in known]
    ended = {"done": 0, "failed": 0}

    def keep(point: Point, answer: Answer) -> None:
        store.keep(point, answer)
        ended["done" if answer.reason is None else "failed"] += 1
        if progress is not None:
            progress(len(everything) - len(todo) + sum(ended.values()), len(everything))

    if executors is None:
        for point in todo:
            keep(point, answer_point(point))
    else:
        _spread(todo, executors, keep)
    return Swept(points=len(everything), skipped=len(everything) - len(todo), **ended)


def _spread(todo: Sequence[Point], executors: Executors, keep: Callable[[Point, Answer], None]) -> None:
    attempts: dict[str, int] = {}
    waiting = list(todo)
    size = CHUNK[todo[0].question] if todo else 1
    while waiting:
        lost: list[Point] = []
        with executors() as executor:
            for chunk, answers in _completed(executor, _chunks(waiting, size)):
                if answers is None:
                    lost += chunk
                    continue
                for point, answer in zip(chunk, answers, strict=True):
                    keep(point, answer)
        waiting = []
        for point in lost:
            attempts[point.key] = attempts.get(point.key, 0) + 1
            if size == 1 and attempts[point.key] > ATTEMPTS:
                keep(
                    point, Answer(key=point.key, answer=None, reason="the worker died each time it was tried")
                )
            else:
                waiting.append(point)
        if lost:
            size = 1  # so that one point's death is its own


def _chunks(todo: Sequence[Point], size: int) -> Iterator[tuple[Point, ...]]:
    for start in range(0, len(todo), size):
        yield tuple(todo[start : start + size])


def _completed(
    executor: Executor, chunks: Iterable[tuple[Point, ...]]
) -> Iterator[tuple[tuple[Point, ...], list[Answer] | None]]:
    """Chunks as they end, a bounded number ahead; None in place of answers that died with their worker."""
    flying: dict[Future[list[Answer]], tuple[Point, ...]] = {}
    left = iter(chunks)
    broken = False
    while True:
        for chunk in () if broken else left:
            try:
                flying[executor.submit(answer_points, chunk)] = chunk
            except BrokenExecutor:
                broken = True
                yield chunk, None
                break
            if len(flying) >= IN_FLIGHT:
                break
        if not flying:
            break
        ended, _ = wait(flying, return_when=FIRST_COMPLETED)
        for future in ended:
            chunk = flying.pop(future)
            try:
                yield chunk, future.result()
            except BrokenExecutor:
                broken = True
                yield chunk, None
            except (
                Exception
            ) as error:  # an executor's own way to say that a worker died (Dask's KilledWorker)
                reason = f"{type(error).__name__}: {error}"
                yield chunk, [Answer(key=point.key, answer=None, reason=reason) for point in chunk]
    for chunk in left:
        yield chunk, None


def answer_points(chunk: Sequence[Point]) -> list[Answer]:
    """What a worker does: every point of a chunk."""
    return [answer_point(point) for point in chunk]


def answer_point(point: Point) -> Answer:
    """One point as canonical JSON, the same bytes wherever it is computed; or why there is no answer."""
    try:
        described = _ask(point)
    except CapacityError as error:
        return Answer(key=point.key, answer=None, reason=f"{type(error).__name__}: {error}")
    except Exception as error:  # a point that trips the library must not end the sweep
        return Answer(key=point.key, answer=None, reason=f"bug: {type(error).__name__}: {error}")
    return Answer(key=point.key, answer=json.dumps(described, sort_keys=True), reason=None)


def _ask(point: Point) -> dict[str, Any]:
    from capacity import api

    options = {name: value for name, value in point.options.items() if name != "model"}
    model = _model(str(point.options["model"]))
    match point.question:
        case "fit":
            return api.fit(model, **options).to_dict()
        case "estimate":
            return api.estimate(model, **options).to_dict()
        case _:
            return api.simulate(model, goodput=point.goodput, **options).to_dict()


@lru_cache(maxsize=64)
def _model(name: str) -> Any:
    from capacity.model import load_model

    return load_model(name)


def processes(workers: int) -> Executors | None:
    """Executors of local processes; None for one worker: this process."""
    if workers < 1:
        raise InvalidInput(f"workers must be at least 1, not {workers}")
    if workers == 1:
        return None
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    context = multiprocessing.get_context("spawn")
    return lambda: ProcessPoolExecutor(workers, mp_context=context)


def dask_executors(address: str) -> Executors:
    """The executor of the Dask cluster at `address`, tcp://host:port. Raises InvalidInput without `distributed`."""
    try:
        from distributed import Client
    except ImportError:
        raise InvalidInput("--scheduler needs Dask: pip install 'llm-capacity[dask]'") from None

    @contextmanager
    def opened() -> Iterator[Executor]:
        try:
            client = Client(address, timeout="10s")
        except OSError as error:
            raise InvalidInput(f"no Dask scheduler answers at {address}: {error}") from None
        with client:
            yield client.get_executor(retries=ATTEMPTS)

    return opened
