"""Use a Dask cluster as a worker pool: connect, compare environments, monitor the connection, and cancel tasks.

This is the only module that uses Dask. If a worker dies, Dask repeats its tasks on another worker.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from capacity.base.errors import InvalidInput
from capacity.planning.workers.environment_fingerprint import NamedInputs, difference, environment_fingerprint
from capacity.planning.workers.worker_pool import WorkerPool, recall_scope

if TYPE_CHECKING:
    from distributed import Client

ADDRESS = re.compile(r"(?:tcp|tls|ws|wss)://(?P<host>\[[\da-fA-F:.%]+\]|[^\s/:@\[\]]+):(?P<port>\d{1,5})")
MAX_PORTS = 65535
CONNECT_S = 5.0
LOOK_S = 2.0  # seconds between two checks of the workers
ALONE_S = 30.0  # time without workers or a reply before giving up
GONE_S = 6.0  # time without a scheduler before giving up
CLOSE_S = 2.0
LOGGER_NAMES = (
    "distributed",
    "distributed.client",
    "distributed.core",
    "distributed.comm",
    "tornado",
    "asyncio",
)


@contextmanager
def dask_pool(address: str, *, common: tuple[object, ...], named: NamedInputs) -> Iterator[WorkerPool]:
    """Open a worker pool on the Dask cluster at `address`.

    Raises InvalidInput if `distributed` is not installed, if the address has no scheduler or the scheduler has no
    workers, or if the environment of a worker differs from this one.
    """
    _require_listener(address)
    try:
        from distributed import KilledWorker
    except ImportError:
        raise InvalidInput("--cluster needs Dask: pip install 'llm-capacity[dask]'") from None
    with _silence_logging(), _connect(address) as client:
        own = environment_fingerprint(named)
        count = _require_alike(client, address, own, named)
        with _DaskExecutor(client, own, named, common) as executor:
            yield WorkerPool(
                executor=executor, workers=count, address=address, deadly=(CancelledError, KilledWorker)
            )


def _require_listener(address: str) -> None:
    """Raise InvalidInput if the address accepts no connections; Dask itself would retry and leave a client running."""
    read = ADDRESS.fullmatch(address)
    if read is None or int(read["port"]) > MAX_PORTS:
        raise InvalidInput(f"--cluster is {address!r:.80}: must be an address such as tcp://host:port")
    try:
        socket.create_connection((read["host"].strip("[]"), int(read["port"])), timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:  # an invalid host name raises ValueError
        raise _no_answer_error(address, error) from None


def _no_answer_error(address: str, error: Exception) -> InvalidInput:
    why = getattr(error, "strerror", None) or f"{error}" or f"not within {CONNECT_S:g} s"
    if isinstance(error, MemoryError):  # Dask read the first bytes of another protocol as a length
        why = "the server uses another protocol"
    return InvalidInput(f"no Dask scheduler answers at {address:.80}: {why}")


@contextmanager
def _silence_logging() -> Iterator[None]:
    """Silence Dask's loggers in this `with` block, because errors are reported in one line instead."""
    loggers = [logging.getLogger(name) for name in LOGGER_NAMES]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


async def _kind_of(address: str) -> str:
    """Return the type of the Dask server at this address, such as "Scheduler". Raises any error of the connection.

    Check this first, because a client would wait forever for a server that does not use the Dask protocol.
    """
    from distributed import Security, rpc

    async with asyncio.timeout(CONNECT_S):
        async with rpc(address, connection_args=Security().get_connection_args("client")) as there:
            answer = await there.identity()
            return str(answer["type"])


@contextmanager
def _connect(address: str) -> Iterator[Client]:
    from distributed import Client

    try:
        with ThreadPoolExecutor(1) as alone:  # a notebook's thread already runs an event loop
            kind = alone.submit(asyncio.run, _kind_of(address)).result()
        if kind != "Scheduler":
            raise ConnectionError(f"the address is that of a {kind}, not of a Dask scheduler")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on package versions; relevant ones are compared here
            client = Client(address, timeout=CONNECT_S, set_as_default=False, name="llm-capacity")
    except Exception as error:  # Dask may raise any error on another protocol
        raise _no_answer_error(address, error) from None
    try:
        yield client
    finally:
        _close(client)


def _require_alike(client: Client, address: str, own: Mapping[str, str], named: NamedInputs) -> int:
    """Return the number of workers. Raises InvalidInput if there are none, or if the environment of one differs."""
    found = client.run(environment_fingerprint, named, on_error="return")
    alike = 0
    for worker, theirs in sorted(found.items()):
        if isinstance(theirs, OSError):  # the worker has just left
            continue
        if not isinstance(theirs, dict):
            raise InvalidInput(f"worker {worker} cannot load llm-capacity {own['llm-capacity']}: {theirs!r}")
        _refuse(worker, difference(own, theirs))
        alike += 1
    if not alike:
        raise InvalidInput(f"the Dask cluster has no workers: start some with `dask worker {address}`")
    return alike


def _refuse(worker: str, differing: str | None) -> None:
    if differing is not None:
        raise InvalidInput(
            f"worker {worker} differs from this machine: {differing}; install the same versions"
        )


class _DaskExecutor(Executor):
    """Executor for Dask tasks. If the scheduler or all workers are lost, tasks fail and no more are accepted."""

    def __init__(
        self, client: Client, own: Mapping[str, str], named: NamedInputs, common: tuple[object, ...]
    ) -> None:
        self._client = client
        self._tasks = client.get_executor(pure=False)
        self._expected = (dict(own), named)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a large argument
            # separate tasks, so that Dask restores the value if the worker that stores it dies
            self._common = [client.submit(_return_value, each, pure=False) for each in common]
        self._handed_out: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._is_gone = False
        self._ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        with self._lock:
            if self._is_gone:
                raise BrokenExecutor
            self._handed_out.add(answer)
        try:
            task = self._tasks.submit(_perform, self._expected, function, *self._common, *arguments)
        except Exception as error:  # Dask raises several types for a closed client
            raise BrokenExecutor(str(error)) from None
        task.add_done_callback(lambda ended: self._on_answer(ended, answer))
        return answer

    def _on_answer(self, task: Future[Any], answer: Future[Any]) -> None:
        with self._lock:
            if answer not in self._handed_out:
                return
            self._handed_out.remove(answer)
        if task.cancelled():  # the connection and the running tasks were lost
            answer.set_exception(BrokenExecutor())
        elif (error := task.exception()) is not None:
            answer.set_exception(BrokenExecutor() if _is_of_dask(error) else error)
        else:
            answer.set_result(task.result())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Stop the monitoring; closing the client then cancels waiting tasks and stops running ones."""
        self._ended.set()

    def _watch(self) -> None:
        seen_s = time.monotonic()
        while not self._ended.wait(LOOK_S):
            patience_s = ALONE_S
            try:
                if self._client.sync(self._client.scheduler.ncores, workers=None, callback_timeout=CONNECT_S):
                    seen_s = time.monotonic()
            except TimeoutError:
                pass
            except Exception:  # closed or unreachable
                patience_s = GONE_S
            if time.monotonic() - seen_s > patience_s:
                self._break()
                return

    def _break(self) -> None:
        with self._lock:
            self._is_gone = True
            broken = list(self._handed_out)
            self._handed_out.clear()
        for answer in broken:
            answer.set_exception(BrokenExecutor())
        _close(self._client)


def _is_of_dask(error: BaseException) -> bool:
    """Return whether Dask itself raised the error, and not the task.

    If Dask loses a task while its result arrives, it passes the result on as an error.
    """
    from distributed import cfexecutor

    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename == cfexecutor.__file__


def _close(client: Client) -> None:
    with suppress(Exception):  # the scheduler may be gone
        client.close(timeout=CLOSE_S)


_one_at_a_time = threading.Lock()  # for any number of worker threads


def _return_value(value: object) -> object:
    return value


def _perform(
    expected: tuple[dict[str, str], NamedInputs], function: Callable[..., Any], *arguments: Any
) -> Any:
    from distributed import get_worker

    own, named = expected
    worker = get_worker()
    key = worker.get_current_task()

    def is_recalled() -> bool:
        task = worker.state.tasks.get(key)
        return task is None or task.state == "cancelled"

    with _one_at_a_time, recall_scope(is_recalled):
        _refuse(worker.address, difference(own, environment_fingerprint(named)))
        return function(*arguments)
