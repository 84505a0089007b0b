"""Work off the main script: bounded, with progress, cancelled for good, and kept by its specification.

Each slot has a thread and a worker process (`capacity_app.worker`). A job that is cancelled has its process killed;
the next job of the slot starts another. Results of finished jobs are kept, the least recently asked for go first.
"""

from __future__ import annotations

import hashlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Literal

from capacity.base.errors import CapacityError, InvalidInput

SLOTS = max(1, min(2, os.cpu_count() or 1))
KEPT = 48
QUEUED = 32

Status = Literal["waiting", "running", "done", "failed", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A call to make elsewhere: `module:function` with keywords that can be pickled. Equal tasks have equal keys.

    `reports`: the function takes `progress`, a callable whose arguments are shown as they come.
    """

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    reports: bool = False

    @property
    def key(self) -> str:
        """What tells this task from others."""
        return hashlib.sha256(f"{self.function} {_canonical(self.arguments)}".encode()).hexdigest()


def _canonical(value: Any) -> str:
    """Text that is the same for equal values; arrays by their bytes."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k!r}:{_canonical(value[k])}" for k in sorted(value)) + "}"
    if isinstance(value, (list, tuple)):
        return "(" + ",".join(map(_canonical, value)) + ")"
    if hasattr(value, "tobytes"):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__ + _canonical({f.name: getattr(value, f.name) for f in fields(value)})
    return repr(value)


class Job:
    """A task under way. `progress` holds the arguments of the latest report; `value` what came of it."""

    def __init__(self, task: Task, key: str) -> None:
        self.task = task
        self.key = key
        self.status: Status = "waiting"
        self.progress: tuple[Any, ...] | None = None
        self.value: Any = None
        self.error: CapacityError | None = None
        self.crash: str | None = None
        self.watchers = 0
        self.ended = threading.Event()
        self._lock = threading.Lock()

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.ended.is_set()

    def result(self) -> Any:
        """The value. Raises the CapacityError that the task raised, and RuntimeError for any other end."""
        if self.error is not None:
            raise self.error
        if self.status != "done":
            raise RuntimeError(self.crash or f"the job is {self.status}")
        return self.value

    def begin(self) -> bool:
        """Mark it as running; False where it was cancelled before."""
        with self._lock:
            if not self.finished:
                self.status = "running"
            return not self.finished

    def end(self, status: Status) -> None:
        """Mark it as finished; the first end counts."""
        with self._lock:
            if not self.finished:
                self.status = status
                self.ended.set()


class Runner:
    """A few workers, a short queue, and what they found."""

    def __init__(self, slots: int = SLOTS, *, kept: int = KEPT, queued: int = QUEUED) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._kept = kept
        self._queued = queued
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._slots = [_Slot(self._freed) for _ in range(slots)]
        self._idle = list(self._slots)

    def warm(self) -> None:
        """Start one worker before it is needed."""
        self._slots[-1].start()

    def submit(self, task: Task) -> Job:
        """The job of this task, known or new. Raises InvalidInput where too many wait."""
        key = task.key
        with self._lock:
            known = self._jobs.get(key)
            if known is not None and known.status != "cancelled" and known.crash is None:
                self._jobs.move_to_end(key)
                return known
            if len(self._waiting) >= self._queued:
                raise InvalidInput(f"{self._queued} computations wait already: try again in a moment")
            job = self._jobs[key] = Job(task, key)
            self._jobs.move_to_end(key)
            self._waiting.append(job)
            self._forget()
            self._dispatch()
        return job

    def known(self, task: Task) -> Job | None:
        """The finished job of this task, if its result is still kept."""
        with self._lock:
            job = self._jobs.get(task.key)
            return job if job is not None and job.status in ("done", "failed") and job.crash is None else None

    def cancel(self, job: Job) -> None:
        """Stop a job for good: one that runs loses its process."""
        job.end("cancelled")
        with self._lock:
            if job in self._waiting:
                self._waiting.remove(job)
        for slot in self._slots:
            slot.abandon(job)

    def join(self, timeout_s: float) -> bool:
        """Wait until nothing is under way; whether that is so."""
        with self._lock:
            jobs = list(self._jobs.values())
        return all(job.ended.wait(timeout_s) for job in jobs)

    def close(self) -> None:
        """Kill every worker."""
        for slot in self._slots:
            slot.kill()

    def _dispatch(self) -> None:
        """Give waiting jobs to idle slots, the one that worked last first: its process is there already."""
        while self._waiting and self._idle:
            self._idle.pop().jobs.put(self._waiting.popleft())

    def _freed(self, slot: _Slot) -> None:
        with self._lock:
            self._idle.append(slot)
            self._dispatch()

    def _forget(self) -> None:
        """Let go of the oldest results."""
        finished = [key for key, job in self._jobs.items() if job.finished]
        for key in finished[: max(0, len(self._jobs) - self._kept)]:
            del self._jobs[key]


class _Slot:
    """One thread and its process."""

    def __init__(self, freed: Callable[[_Slot], None]) -> None:
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._freed = freed
        self._job: Job | None = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        threading.Thread(target=self._serve, daemon=True, name="capacity-job").start()

    def start(self) -> None:
        """Have a process ready."""
        with self._lock:
            self._worker()

    def abandon(self, job: Job) -> None:
        """Kill the process if it works on this job."""
        with self._lock:
            if self._job is job:
                self._kill()

    def kill(self) -> None:
        """Kill the process."""
        with self._lock:
            self._kill()

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # its own session: the processes that it started too
            self._process.wait()
        self._process = None

    def _serve(self) -> None:
        while True:
            job = self.jobs.get()
            with self._lock:
                pipe = self._worker() if job.begin() else None
                self._job = job
            try:
                if pipe is not None:
                    pipe.send((job.task.function, dict(job.task.arguments), job.task.reports))
                while not job.finished and pipe is not None:
                    _take(job, *pipe.recv())
            except (EOFError, OSError):
                self.kill()  # what is left of it: the next job gets a new one
                job.crash = "its process ended"
                job.end("failed")
            if job.status == "cancelled" and pipe is not None:
                self.kill()  # its answer may be in the pipe still, and is none of the next job
            with self._lock:
                self._job = None
            self._freed(self)

    def _worker(self) -> Connection:
        if self._process is None or self._process.poll() is not None or self._pipe is None:
            ours, theirs = Pipe()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "capacity_app.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            theirs.close()
            self._pipe = ours
        return self._pipe


def _take(job: Job, kind: str, content: Any) -> None:
    """What a worker has sent."""
    if kind == "progress":
        job.progress = content
    elif kind == "done":
        job.value = content
        job.end("done")
    elif kind == "refused":
        job.error = content
        job.end("failed")
    else:
        job.crash = content
        job.end("failed")


@cache
def runner() -> Runner:
    """The one runner of this server."""
    return Runner()
