"""Who computes: this process, further ones of this machine, or a Dask cluster. The same tasks, and the same answers.

A verb opens a crew, hands out functions with their arguments, and does itself what nobody there has survived. What a
task answers depends on the task alone, so that neither the number of workers nor the order in which they end counts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from capacity.base.processes import check_workers, local_workers
from capacity.planning.workers.environment_fingerprint import NOTHING, Named

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")
Value = TypeVar("Value")


class NotDone(Exception):
    """No worker survived a task, or all are gone: who asked does it."""


class Recalled(Exception):
    """Nobody waits for this task any more."""


@dataclass(kw_only=True)
class WorkerPool:
    """An executor, and how many tasks it works on at a time.

    `address`: of a cluster, where a task that was handed out is not taken back. `deadly`: what a task ends with there
    that kills whoever works at it. `through`: a function that calls the one that is handed out. `is_lost`: nobody is
    left; what was returned stands.
    """

    executor: Executor
    workers: int
    address: str | None = None
    deadly: tuple[type[Exception], ...] = ()
    through: tuple[Callable[..., Any], ...] = ()
    is_lost: bool = False

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any] | None:
        """None where nobody is left."""
        if self.is_lost:
            return None
        try:
            return self.executor.submit(*self.through, function, *arguments)
        except BrokenExecutor:
            self.is_lost = True
            return None

    def take_back(self, future: Future[Any]) -> bool:
        """Whether nobody has begun with it, and nobody will."""
        return self.address is None and future.cancel()

    def result(self, future: Future[Any]) -> Any:
        """What a task has answered. Raises NotDone, and what the task itself raised."""
        try:
            return future.result()
        except BrokenExecutor:
            self.is_lost = True
            raise NotDone from None
        except CancelledError:  # taken back
            raise NotDone from None
        except self.deadly:
            raise NotDone from None

    @property
    def remarks(self) -> tuple[str, ...]:
        """That a cluster was lost on the way."""
        if self.address is None or not self.is_lost:
            return ()
        return (f"the Dask cluster at {self.address} went away: what it had not done was computed here",)


Crews = Callable[[], AbstractContextManager[WorkerPool]]


def side_by_side(
    chains: Sequence[Generator[Ask, Answer, Value]],
    do: Callable[[Ask], Answer],
    *,
    crew: WorkerPool | None,
    function: Callable[..., Answer],
    told: Callable[[], None] = lambda: None,
) -> list[Value]:
    """What each of `chains` returns, in their order; a chain asks one thing after the other, each by the last answer.

    `do(ask)` answers here, one chain after the other without a crew; `function(*common, ask)` is the same on a worker.
    `told()` is called with each answer.
    """
    values: dict[int, Value] = {}
    flying: dict[Future[Answer], tuple[int, Ask]] = {}

    def heard(answer: Answer) -> Answer:
        told()
        return answer

    def go_on(number: int, answer: Answer | None = None) -> None:
        """To the next question that a worker has taken, or to the end."""
        while True:
            try:
                ask = chains[number].send(answer)  # type: ignore[arg-type]  # None begins
            except StopIteration as ended:
                values[number] = ended.value
                return
            future = None if crew is None else crew.submit(function, ask)
            if future is not None:
                flying[future] = number, ask
                return
            answer = heard(do(ask))

    for number in range(len(chains)):
        go_on(number)
    while flying:
        assert crew is not None
        for future in wait(flying, return_when=FIRST_COMPLETED).done:
            number, ask = flying.pop(future)
            try:
                answer = crew.result(future)
            except NotDone:
                answer = do(ask)
            go_on(number, heard(answer))
    return [values[number] for number in range(len(chains))]


def once(ask: Ask) -> Generator[Ask, Answer, Answer]:
    """A chain of a single question."""
    return (yield ask)


def opened(
    workers: int, cluster: str | None, *, common: tuple[object, ...] = (), named: Named = NOTHING
) -> AbstractContextManager[WorkerPool]:
    """The Dask cluster at `cluster` (tcp://host:port), or `workers` processes of this machine.

    `common` are the first arguments of each function that is handed out: they travel once. `named` is what the tasks
    look up by its name, which a cluster must find as it is here. Raises InvalidInput where that is not so.
    """
    if cluster is None:
        return _local(workers, common)
    from capacity.planning.workers.dask_workers import dask_crew

    return dask_crew(cluster, common=common, named=named)


@contextmanager
def _local(workers: int, common: tuple[object, ...]) -> Iterator[WorkerPool]:
    check_workers(workers)
    with local_workers(workers, _keep_common, common) as executor:
        yield WorkerPool(executor=executor, workers=workers, through=(_with_common,) if common else ())


# in a worker

_common: tuple[object, ...] = ()  # of this worker process


def _keep_common(*common: object) -> None:
    global _common
    _common = common


def _with_common(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*_common, *arguments)


_is_recalled: ContextVar[Callable[[], bool] | None] = ContextVar("is_recalled", default=None)


@contextmanager
def recallable(is_recalled: Callable[[], bool]) -> Iterator[None]:
    """What runs within looks again and again whether somebody still waits for it."""
    token = _is_recalled.set(is_recalled)
    try:
        stop_if_recalled()
        yield
    finally:
        _is_recalled.reset(token)


def stop_if_recalled() -> None:
    """Raise Recalled where nobody waits for this task any more."""
    is_recalled = _is_recalled.get()
    if is_recalled is not None and is_recalled():
        raise Recalled
