"""Worker pools: this process, local processes, or a Dask cluster, with the same tasks and the same results.

A command opens a pool and submits functions with their arguments. If all workers that tried a task died, the command
runs the task itself. The result of a task depends only on the task, so the number of workers and the order of
completion do not affect it.
"""

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
    """No worker completed a task, or all workers are gone; the caller must run the task itself."""


class Recalled(Exception):
    """Raised to end a task because its caller no longer waits for the result."""


@dataclass(kw_only=True)
class WorkerPool:
    """Executor with the number of tasks that it runs at the same time.

    `address` is that of a Dask cluster, whose tasks cannot be cancelled once submitted; None for local processes.
    `deadly`: exceptions that mean that no worker completed the task. `through`: empty, or a function that receives each
    submitted function and calls it. `is_lost`: all workers are gone; results received earlier remain valid.
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
        """Cancel a task if it has not started; return whether it was cancelled."""
        return self.address is None and future.cancel()

    def result(self, future: Future[Any]) -> Any:
        """Return the result of a task. Raises NotDone, and any exception that the task raised."""
        try:
            return future.result()
        except BrokenExecutor:
            self.is_lost = True
            raise NotDone from None
        except self.deadly:
            raise NotDone from None

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return a note if the cluster was lost; otherwise empty."""
        if self.address is None or not self.is_lost:
            return ()
        return (f"The Dask cluster at {self.address} was lost, so its remaining tasks ran on this machine.",)


PoolFactory = Callable[[], AbstractContextManager[WorkerPool]]


def run_in_parallel(
    chains: Sequence[Generator[Ask, Answer, Value]],
    do: Callable[[Ask], Answer],
    *,
    worker_pool: WorkerPool | None,
    function: Callable[..., Answer],
    on_answer: Callable[[], None] = lambda: None,
) -> list[Value]:
    """Run chains of dependent tasks in parallel and return the value of each chain, in order.

    A chain is a generator that yields the argument `ask` of a task and receives its result before the next task.
    `do(ask)` runs a task in this process; without a worker pool, one chain runs after another. `function(*common, ask)`
    runs it on a worker. `on_answer()` is called after each result.
    """
    values: dict[int, Value] = {}
    flying: dict[Future[Answer], tuple[int, Ask]] = {}

    def report(answer: Answer) -> Answer:
        on_answer()
        return answer

    def go_on(number: int, answer: Answer | None = None) -> None:
        """Advance a chain with the result `answer` until a worker accepts its next task, or to its end."""
        while True:
            try:
                ask = chains[number].send(answer)  # type: ignore[arg-type]  # None starts the chain
            except StopIteration as ended:
                values[number] = ended.value
                return
            future = None if worker_pool is None else worker_pool.submit(function, ask)
            if future is not None:
                flying[future] = number, ask
                return
            answer = report(do(ask))

    for number in range(len(chains)):
        go_on(number)
    while flying:
        assert worker_pool is not None
        for future in wait(flying, return_when=FIRST_COMPLETED).done:
            number, ask = flying.pop(future)
            try:
                answer = worker_pool.result(future)
            except NotDone:
                answer = do(ask)
            go_on(number, report(answer))
    return [values[number] for number in range(len(chains))]


def single_request(ask: Ask) -> Generator[Ask, Answer, Answer]:
    """Return a chain with a single task, for `run_in_parallel`; its value is the task's result."""
    return (yield ask)


def open_pool(
    workers: int,
    cluster: str | None,
    *,
    common: tuple[object, ...] = (),
    named: NamedInputs = NO_NAMED_INPUTS,
) -> AbstractContextManager[WorkerPool]:
    """Open a worker pool on the Dask cluster at `cluster` (tcp://host:port), or of `workers` local processes.

    `common` are the first arguments of every submitted function; they are sent to each worker once. `named` are the
    inputs that tasks look up by name; raises InvalidInput if their content on the cluster differs.
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
    """Set, for this `with` block, the function that returns whether the caller no longer waits for the result."""
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
