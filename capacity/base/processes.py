"""Local worker processes, which exit without a traceback after Ctrl-C and never outlive their parent."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from capacity.base.errors import InvalidInput

MAX_WORKERS = 1024
POLL_S = 0.5
STOP_SIGNALS = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}
CAN_BLOCK_SIGNALS = hasattr(signal, "pthread_sigmask")  # not on Windows


class _Workers(ProcessPoolExecutor):
    """Process pool that defers interrupts during `submit`, because an interrupted `submit` may not release a lock."""

    def submit(self, *arguments: Any, **keywords: Any) -> Future[Any]:
        with _defer_interrupts():
            return super().submit(*arguments, **keywords)


@contextmanager
def local_workers(
    count: int, initializer: Callable[..., None] | None = None, initargs: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor]:
    """Yield an executor of `count` processes; each calls `initializer(*initargs)` first.

    A terminal sends Ctrl-C to all processes. A worker then exits silently or is ended by the parent, which raises
    KeyboardInterrupt. Interrupts are deferred until a worker has started, because Python would print a traceback.
    """
    import multiprocessing

    check_workers(count)
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with _Workers(
        count, mp_context=context, initializer=_start_worker, initargs=(initializer, initargs)
    ) as executor:
        try:
            for _ in range(count):
                executor.submit(_do_nothing)  # starts a process: there is no idle one yet
            yield executor
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise


def check_workers(count: int) -> None:
    """Raise InvalidInput unless the number of processes is from 1 to `MAX_WORKERS`."""
    if not 1 <= count <= MAX_WORKERS:
        raise InvalidInput(f"workers must be from 1 to {MAX_WORKERS}, not {count}")


def end_with_parent(end: Callable[[], object] | None = None) -> None:
    """End this process when its parent ends, also if the parent is killed.

    Calls `end`, if given, in place of an immediate exit.
    """
    threading.Thread(target=_watch_parent, args=(end or _exit_now, os.getppid()), daemon=True).start()


def _watch_parent(end: Callable[[], object], number: int) -> None:
    from multiprocessing import connection, parent_process

    parent = parent_process()
    if parent is None:
        while os.getppid() == number:
            time.sleep(POLL_S)
    else:
        connection.wait([parent.sentinel])
    end()


def _exit_now() -> None:
    os._exit(1)


@contextmanager
def _defer_interrupts() -> Iterator[None]:
    """Defer interrupts until the block ends; child processes keep their own handlers."""
    if not CAN_BLOCK_SIGNALS:
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # starting it later would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(initializer: Callable[..., None] | None, initargs: tuple[Any, ...]) -> None:
    end_with_parent()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # keep ignoring Ctrl-C if the parent does
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if CAN_BLOCK_SIGNALS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    if initializer is not None:
        initializer(*initargs)


def _do_nothing() -> None:
    pass
