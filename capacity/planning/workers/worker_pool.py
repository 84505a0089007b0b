"""Worker pools: this process, local processes, or a Dask cluster, with the same tasks and the same results.

A command opens a pool, submits functions with their arguments, and runs tasks itself if all workers that tried them
died. The result of a task depends only on the task, so the number of workers and the order of completion do not
matter.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from capacity.base.processes import check_workers, local_workers
from capacity.planning.workers.environment_fingerprint import NO_NAMED_INPUTS, NamedInputs

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")
Value = TypeVar("Value")


class NotDone(Exception):
    """No worker completed a task, or all are gone; the caller has to run it."""


class Recalled(Exception):
    """The caller no longer waits for this task."""


@dataclass(kw_only=True)
class WorkerPool:
    """Executor with the number of tasks that it runs at a time.

    `address`: of a cluster, whose tasks cannot be cancelled once submitted. `deadly`: exceptions of tasks that no
    worker completed. `through`: a function that calls the submitted one. `is_lost`: all workers are gone; earlier
    results remain valid.
    """

    executor: Executor
    workers: int
    address: str | None = None
    deadly: tuple[type[Exception], ...] = (CancelledError,)
    through: tuple[Callable[..., Any], ...] = ()
    is_lost: bool = False

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any] | None:
        """Submit a task; return None if all workers are gone."""
        if self.is_lost:
            return None
        try:
            return self.executor.submit(*self.through, function, *arguments)
        except BrokenExecutor:
            self.is_lost = True
            return None

    def take_back(self, future: Future[Any]) -> bool:
        """Cancel a task; return whether it had not started and will not start."""
        return self.address is None and future.cancel()

    def result(self, future: Future[Any]) -> Any:
        """Return the result of a task. Raises NotDone, and exceptions of the task itself."""
        try:
            return future.result()
        except BrokenExecutor:
            self.is_lost = True
            raise NotDone from None
        except self.deadly:
            raise NotDone from None

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return a note if a cluster was lost."""
        if self.address is None or not self.is_lost:
            return ()
        return (f"The Dask cluster at {self.address} was lost, so its remaining tasks ran on this machine.",)


PoolFactory = Callable[[], AbstractContextManager[WorkerPool]]


def run_in_parallel(
    chains: Sequence[Generator[Ask, Answer, Value]],
    do: Callable[[Ask], Answer],
    *,
    crew: WorkerPool | None,
    function: Callable[..., Answer],
    told: Callable[[], None] = lambda: None,
) -> list[Value]:
    """Run the chains in parallel and return their values in order; each request of a chain may depend on earlier
    answers.

    `do(ask)` answers in this process, one chain after another without a crew; `function(*common, ask)` does the same
    on a worker. `told()` is called after each answer.
    """
    values: dict[int, Value] = {}
    flying: dict[Future[Answer], tuple[int, Ask]] = {}

    def report(answer: Answer) -> Answer:
        told()
        return answer

    def go_on(number: int, answer: Answer | None = None) -> None:
        """Advance a chain until a worker has accepted its next request, or to its end."""
        while True:
            try:
                ask = chains[number].send(answer)  # type: ignore[arg-type]  # None starts the chain
            except StopIteration as ended:
                values[number] = ended.value
                return
            future = None if crew is None else crew.submit(function, ask)
            if future is not None:
                flying[future] = number, ask
                return
            answer = report(do(ask))

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
            go_on(number, report(answer))
    return [values[number] for number in range(len(chains))]


def single_request(ask: Ask) -> Generator[Ask, Answer, Answer]:
    """Return a chain with a single request."""
    return (yield ask)


def open_pool(
    workers: int,
    cluster: str | None,
    *,
    common: tuple[object, ...] = (),
    named: NamedInputs = NO_NAMED_INPUTS,
) -> AbstractContextManager[WorkerPool]:
    """Open the Dask cluster at `cluster` (tcp://host:port), or `workers` processes on this machine.

    `common` are the first arguments of every submitted function; they are sent once. `named` is what tasks look up by
    name; a cluster must have identical content. Raises InvalidInput if it does not.
    """
    if cluster is None:
        return _local(workers, common)
    from capacity.planning.workers.dask_workers import dask_pool

    return dask_pool(cluster, common=common, named=named)


@contextmanager
def _local(workers: int, common: tuple[object, ...]) -> Iterator[WorkerPool]:
    check_workers(workers)
    with local_workers(workers, _keep_common, common) as executor:
        yield WorkerPool(executor=executor, workers=workers, through=(_with_common,) if common else ())


_common: tuple[object, ...] = ()  # of this worker process


def _keep_common(*common: object) -> None:
    global _common
    _common = common


def _with_common(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*_common, *arguments)


_is_recalled: ContextVar[Callable[[], bool] | None] = ContextVar("is_recalled", default=None)


@contextmanager
def recall_scope(is_recalled: Callable[[], bool]) -> Iterator[None]:
    """Let the code in this context check whether the caller still waits for it."""
    token = _is_recalled.set(is_recalled)
    try:
        stop_if_recalled()
        yield
    finally:
        _is_recalled.reset(token)


def stop_if_recalled() -> None:
    """Raise Recalled if the caller no longer waits for this task."""
    is_recalled = _is_recalled.get()
    if is_recalled is not None and is_recalled():
        raise Recalled
