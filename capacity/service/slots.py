"""A worker slot: a thread with its worker process (`capacity.service.worker`), which runs one job at a time."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from capacity.service.quotas import Quota, Usage, group_usage

if TYPE_CHECKING:
    from capacity.service.jobs import Job


class Slot:
    """A thread with a worker process that runs one job at a time.

    After each job it calls `freed` with itself, the job's session and the job's CPU seconds. `low_priority`: the
    process's priority was lowered, which cannot be undone, so the next job gets a new process.
    """

    def __init__(self, freed: Callable[[Slot, str, float], None], quota: Quota) -> None:
        self.job: Job | None = None
        self.low_priority = False
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._freed = freed
        self._quota = quota
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._process_s = self._before_s = self._cpu_s = 0.0
        self._closed = False
        threading.Thread(target=self._serve, daemon=True, name="capacity-job").start()

    @property
    def group(self) -> int:
        """Return the process group of the worker process; 0 if it is not running."""
        return 0 if self._process is None else self._process.pid

    def assign(self, job: Job) -> None:
        self.job = job
        self._jobs.put(job)

    def start(self) -> None:
        with self._lock:
            if not self._closed:
                self._worker()

    def kill_job(self, job: Job) -> None:
        with self._lock:
            if self.job is job and self._process is not None:
                used_s = group_usage({self.group})[self.group].cpu_s - self._before_s
                self._cpu_s = max(self._cpu_s, used_s)
                self._kill()

    def kill_idle(self) -> None:
        with self._lock:
            if self.job is None:
                self._kill()

    def kill(self) -> None:
        """Kill the process and close the slot."""
        with self._lock:
            self._closed = True
            self._kill()

    def job_and_cpu_seconds(self, group: int, usage: Usage) -> tuple[Job | None, float]:
        """Return the slot's job and this job's CPU seconds; None and 0 if `group` is not the slot's process group."""
        with self._lock:
            if group != self.group:
                return None, 0.0
            self._cpu_s = max(self._cpu_s, usage.cpu_s - self._before_s)
            return self.job, self._cpu_s

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # including the processes that it started
            self._process.wait()
        self._process = None

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            with self._lock:
                pipe = self._worker() if job.begin() else None
                self._cpu_s = 0.0
                if pipe is not None and not self._process_s:  # a new process; a scan of all processes is slow
                    self._process_s = group_usage({self.group})[self.group].cpu_s
                self._before_s = self._process_s
            answered = pipe is None
            try:
                if pipe is not None:
                    task = job.task
                    pipe.send((task.function, dict(task.arguments), task.reports, task.profiles))
                while not job.finished and pipe is not None:
                    status, content, process_s = pipe.recv()
                    answered = status != "progress"
                    self._process_s = max(self._process_s, process_s)
                    if answered:
                        job.end(status, **content)
                    else:
                        job.progress = content
            except (EOFError, OSError):
                job.end("failed", crash="the worker process ended during the job")
            with self._lock:
                self._cpu_s = max(self._cpu_s, self._process_s - self._before_s)
                if self.low_priority or not answered:
                    self._kill()  # the pipe may contain an answer that does not belong to the next job
                self.job = None
            self._freed(self, job.owner, self._cpu_s)

    def _worker(self) -> Connection:
        if self._process is None or self._process.poll() is not None or self._pipe is None:
            ours, theirs = Pipe()
            pipe, most_bytes = str(theirs.fileno()), str(self._quota.job_bytes)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "capacity.service.worker", pipe, most_bytes],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            theirs.close()
            self._pipe = ours
            self.low_priority, self._process_s = False, 0.0
        return self._pipe
