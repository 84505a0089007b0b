"""Background jobs of the dashboard and the service: limited in number, with progress, cancellation and a cache.

Each slot (`capacity.service.slots`) has a thread and a worker process. Each session has its own queue. The next job
comes from the session with the fewest running jobs; between equal sessions, from the one with the least CPU time. Jobs
of a closed session are cancelled. Results are cached; the least recently used are dropped first.
"""

import hashlib
import json
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from capacity.base.errors import CapacityError, OverLimit
from capacity.hardware.profile_search import first_folders
from capacity.service.quotas import QUOTA, Quota, RecentCpuTime, group_usage, lower_priority
from capacity.service.slots import Slot

SLOTS = 8
MAX_IDLE = 2  # maximum number of idle processes; at least one is kept
MAX_RESULTS = 48
MAX_WAITING = 64  # maximum number of waiting jobs of all sessions
WATCH_S = 0.5
NICE_WHEN_HEAVY = 15

Status = Literal["waiting", "running", "done", "failed", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A function call for a worker process: `module:function` with picklable arguments. Equal tasks have equal keys.

    If `reports` is true, the function gets a callable `progress` too, which it calls to report its progress.
    `profiles`: folders in which the function searches for GPU profiles first.
    """

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    reports: bool = False
    profiles: tuple[Path, ...] = field(default_factory=first_folders)

    @property
    def key(self) -> str:
        """Return a hash of the function, its arguments and its profile folders."""
        arguments = json.dumps(self.arguments, sort_keys=True, default=_to_json_value)
        folders = "".join(f" {folder}" for folder in self.profiles)
        return hashlib.sha256(f"{self.function} {arguments}{folders}".encode()).hexdigest()


def _to_json_value(value: Any) -> Any:
    """Convert a value for JSON so that equal values give equal text; an array becomes a hash of its bytes."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tobytes"):
        return str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest()
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, {each.name: getattr(value, each.name) for each in fields(value)}
    return repr(value)


class Job:
    """A submitted task. `progress` is the latest report, `value` the result."""

    def __init__(self, task: Task, owner: str = "") -> None:
        self.task = task
        self.key = task.key
        self.owner = owner
        self.followers: Counter[str] = Counter({owner: 1})
        self.status: Status = "waiting"
        self.progress: tuple[Any, ...] | None = None
        self.value: Any = None
        self.error: CapacityError | None = None
        self.crash: str | None = None
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._when_ended: list[Callable[[], object]] = []

    def call_when_ended(self, call: Callable[[], object]) -> None:
        """Call `call` when the job ends, in the thread that ends it; at once if the job has already ended."""
        with self._lock:
            if not self.finished:
                self._when_ended.append(call)
                return
        call()

    @property
    def finished(self) -> bool:
        return self.ended.is_set()

    @property
    def can_be_retried(self) -> bool:
        """Return whether the job ended without an answer (cancelled or crashed), so that it may run again."""
        return self.status == "cancelled" or self.crash is not None

    def result(self) -> Any:
        """Return the value. Raises the task's CapacityError, or RuntimeError if the job crashed or was cancelled."""
        if self.error is not None:
            raise self.error
        if self.status != "done":
            raise RuntimeError(self.crash or f"the job is {self.status}")
        return self.value

    def begin(self) -> bool:
        """Mark the job as running; return False if it was cancelled before it started."""
        with self._lock:
            if not self.finished:
                self.status = "running"
            return not self.finished

    def end(
        self,
        status: Status,
        *,
        value: Any = None,
        error: CapacityError | None = None,
        crash: str | None = None,
    ) -> None:
        """Mark the job as finished; later calls have no effect. A crashed job (`crash`: the reason) may run again."""
        with self._lock:
            if self.finished:
                return
            self.value, self.error, self.crash, self.status = value, error, crash, status
            self.ended.set()
        for call in self._when_ended:
            call()


class Runner:
    """Scheduler of jobs, with cached results. `kept`, `waiting` and `idle`: maximum numbers of cached results, waiting
    jobs, and idle worker processes. `alive` returns whether a session has an open browser tab."""

    def __init__(
        self,
        slots: int = SLOTS,
        *,
        kept: int = MAX_RESULTS,
        waiting: int = MAX_WAITING,
        idle: int = MAX_IDLE,
        quota: Quota = QUOTA,
        alive: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._kept = kept
        self._most_waiting = waiting
        self._most_idle = idle
        self._quota = quota
        self._alive = alive
        self._lock = threading.RLock()
        self._waiting: list[Job] = []
        self._slots = [Slot(self._on_slot_free, quota) for _ in range(slots)]
        self._idle = list(self._slots)
        self._used: dict[str, RecentCpuTime] = {}
        self._gone_since: dict[str, float] = {}
        threading.Thread(target=self._watch, daemon=True, name="capacity-watch").start()

    def submit(self, task: Task, session: str = "") -> Job:
        """Return the cached or new job of this task, and add the session to its followers (sessions that wait for it).

        Raises OverLimit if too many jobs wait, or if the session has used up its CPU time.
        """
        key = task.key
        with self._lock:
            known = self._jobs.get(key)
            if known is not None and not known.can_be_retried:
                self._jobs.move_to_end(key)
                known.followers[session] += 1
                return known
            self._check(session)
            job = self._jobs[key] = Job(task, session)
            self._jobs.move_to_end(key)
            self._waiting.append(job)
            self._drop_oldest_results()
            self._dispatch()
        return job

    def finished_job(self, task: Task) -> Job | None:
        """Return the finished job of this task if its result is cached."""
        with self._lock:
            job = self._jobs.get(task.key)
            return job if job is not None and job.finished and not job.can_be_retried else None

    def leave(self, job: Job, session: str = "") -> None:
        """Remove the session from the job's followers; a job without followers is cancelled."""
        with self._lock:
            job.followers -= Counter({session: 1})
            wanted = job.followers.total() > 0
        if not wanted and not job.finished:
            self.cancel(job)

    def cancel(self, job: Job) -> None:
        """Cancel a job; if it is running, its process is killed."""
        job.end("cancelled")
        with self._lock:
            if job in self._waiting:
                self._waiting.remove(job)
        for slot in self._slots:
            slot.kill_job(job)

    def join(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for each job; return whether all have ended."""
        with self._lock:
            jobs = list(self._jobs.values())
        return all(job.ended.wait(timeout_s) for job in jobs)

    def close(self) -> None:
        """Kill every worker process."""
        for slot in self._slots:
            slot.kill()

    def _check(self, session: str) -> None:
        quota = self._quota
        of_session = sum(job.owner == session for job in self._waiting)
        if of_session >= quota.session_waiting or len(self._waiting) >= self._most_waiting:
            raise OverLimit(
                f"{len(self._waiting)} computations are already waiting, {of_session} of them of this session (limits "
                f"{self._most_waiting} and {quota.session_waiting}); try again in a moment"
            )
        used_s = self._session_usage(session).seconds()
        if used_s > quota.session_cpu_s:
            raise OverLimit(
                f"this session has used {used_s:,.0f} s of CPU time in {quota.window_s / 60:,.0f} minutes (limit "
                f"{quota.session_cpu_s:,.0f} s); try again later, or run the command in a terminal"
            )

    def _session_usage(self, session: str) -> RecentCpuTime:
        return self._used.setdefault(session, RecentCpuTime(self._quota.window_s))

    def _dispatch(self) -> None:
        """Assign waiting jobs to idle slots, first to slots whose worker process is running."""
        while self._idle and (job := self._next_job()) is not None:
            self._waiting.remove(job)
            slot = max(reversed(self._idle), key=lambda each: each.group > 0)
            self._idle.remove(slot)
            slot.assign(job)

    def _next_job(self) -> Job | None:
        """Return the waiting job to run next. A session with a running job does not get the last free slot."""
        running = Counter(slot.job.owner for slot in self._slots if slot.job is not None)
        most = self._quota.session_running if len(self._idle) > 1 else 1
        ready = [job for job in self._waiting if running[job.owner] < most]
        return min(
            ready,
            key=lambda job: (running[job.owner], self._session_usage(job.owner).seconds()),
            default=None,
        )

    def _on_slot_free(self, slot: Slot, owner: str, cpu_s: float) -> None:
        with self._lock:
            self._session_usage(owner).add(cpu_s)
            self._idle.append(slot)
            self._dispatch()
        self._keep_ready()

    def _keep_ready(self) -> None:
        """Stop or start an idle worker process, so that at least one and at most `idle` processes are ready."""
        with self._lock:
            ready = [slot for slot in self._idle if slot.group]
            cold = [slot for slot in self._idle if not slot.group]
        if len(ready) > self._most_idle:
            ready[-1].kill_idle()
        elif cold and not ready:
            cold[-1].start()

    def _drop_oldest_results(self) -> None:
        finished = [key for key, job in self._jobs.items() if job.finished]
        for key in finished[: max(0, len(self._jobs) - self._kept)]:
            del self._jobs[key]

    def _watch(self) -> None:
        while True:
            time.sleep(WATCH_S)
            self._enforce_quotas()
            self._leave_for_closed_sessions()
            self._keep_ready()

    def _enforce_quotas(self) -> None:
        """Stop jobs that exceed their quota, and lower the priority of jobs that have run long."""
        working = {slot.group: slot for slot in self._slots if slot.job is not None and slot.group}
        for group, usage in group_usage(set(working)).items() if working else ():
            slot = working[group]
            job, cpu_s = slot.job_and_cpu_seconds(group, usage)
            if job is None:
                continue
            reason = self._quota.reason_to_stop(cpu_s, usage.held_bytes)
            if reason is not None:
                job.end("failed", error=OverLimit(reason))
                slot.kill_job(job)
            elif cpu_s > self._quota.heavy_after_s and not slot.low_priority:
                slot.low_priority = True
                lower_priority(group, NICE_WHEN_HEAVY)

    def _leave_for_closed_sessions(self) -> None:
        with self._lock:
            jobs = [job for job in self._jobs.values() if not job.finished]
            sessions = {session for job in jobs for session in job.followers}
            self._used = {session: used for session, used in self._used.items() if used.seconds() > 0}
        now_s = time.monotonic()
        gone = {session for session in sessions if not self._alive(session)}
        self._gone_since = {session: self._gone_since.get(session, now_s) for session in gone}
        for session, since_s in self._gone_since.items():
            if now_s - since_s >= self._quota.grace_s:
                for job in jobs:
                    while job.followers[session] > 0:
                        self.leave(job, session)
