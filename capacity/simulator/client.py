"""Clients: they send requests at given times, after other requests, or within a concurrency cap; and they time out."""

import heapq
from array import array
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Protocol

import numpy as np
import simpy

from capacity.base.clock import LATEST_S
from capacity.base.errors import InvalidInput
from capacity.simulator.instants import ARRIVE, CLOCK_ENDS_PS, DEADLINE, NEVER, Instant, clock_overflow_error
from capacity.step import PS_PER_S
from capacity.workload import Workload


class Arrivals(Protocol):
    """Interface through which a deployment gets requests from its clients, with or without network latency."""

    due_ps: int

    def take(self, now_ps: int) -> list[tuple[int, int]]: ...
    def on_completion(self, request: int, now_ps: int) -> list[tuple[int, int]]: ...


class Client:
    """Sends requests at their arrival times, after other requests complete, or within a concurrency cap.

    `due_ps` is the earliest known time of the next request; NEVER if none is known.
    """

    def __init__(self, workload: Workload) -> None:
        _check_clock(workload)
        self._arrival_ps = array("q", bytes(8 * len(workload)))
        instants_ps = np.frombuffer(self._arrival_ps, dtype=np.int64)
        np.rint(workload.arrival_s * PS_PER_S, out=instants_ps, casting="unsafe")
        self._cap = workload.concurrency
        self._in_flight = 0
        self._next = 0
        self._ready: list[tuple[int, int]] = []  # (time, request) of requests that a completion made ready
        self._held: deque[int] = deque()  # ready requests that the cap holds back
        self._followers: dict[int, list[int]] = {}
        self._think_ps: list[int] = []
        if workload.after_request is not None and workload.think_s is not None:
            self._think_ps = np.rint(workload.think_s * PS_PER_S).astype(np.int64).tolist()
            for request, trigger in enumerate(workload.after_request.tolist()):
                if trigger >= 0:
                    self._followers.setdefault(trigger, []).append(request)
            self._timed: Sequence[int] = np.flatnonzero(workload.after_request < 0).tolist()
        else:
            self._timed = range(len(self._arrival_ps))
        self._timed_ps = self._arrival_ps
        if self._followers:
            self._timed_ps = array("q", [self._arrival_ps[i] for i in self._timed])
        self._update_due()

    def _update_due(self) -> None:
        if self._cap is not None and self._in_flight >= self._cap:
            self.due_ps = NEVER
            return
        self.due_ps = self._timed_ps[self._next] if self._next < len(self._timed_ps) else NEVER
        if self._ready:
            self.due_ps = min(self.due_ps, self._ready[0][0])

    def take(self, now_ps: int) -> list[tuple[int, int]]:
        """Return (request, send time) of the requests that are due, in order; hold those above the concurrency cap."""
        sent: list[tuple[int, int]] = []
        while True:
            due_ps = self._timed_ps[self._next] if self._next < len(self._timed_ps) else None
            if (
                self._ready
                and self._ready[0][0] <= now_ps
                and (due_ps is None or self._ready[0] < (due_ps, self._timed[self._next]))
            ):
                at_ps, request = heapq.heappop(self._ready)
            elif due_ps is not None and due_ps <= now_ps:
                at_ps, request = due_ps, self._timed[self._next]
                self._next += 1
            else:
                break
            if self._cap is not None and self._in_flight >= self._cap:
                self._held.append(request)
            else:
                self._in_flight += 1
                sent.append((request, at_ps))
        self._update_due()
        return sent

    def on_completion(self, request: int, now_ps: int) -> list[tuple[int, int]]:
        """Record the end of a request; return (request, send time) of requests that the concurrency cap now allows."""
        sent = self.take(now_ps) if self._cap is not None else []  # with the cap before this completion
        self._in_flight -= 1
        for follower in self._followers.pop(request, ()):
            at_ps = now_ps + self._think_ps[follower]
            if at_ps >= CLOCK_ENDS_PS:
                raise clock_overflow_error(at_ps)
            heapq.heappush(self._ready, (at_ps, follower))
        if self._held:
            self._in_flight += 1
            sent.append((self._held.popleft(), now_ps))
        self._update_due()
        return sent


def _check_clock(workload: Workload) -> None:
    """Raise InvalidInput if a request would be sent after the end of the clock even if all answers took no time."""
    latest_s = float(workload.arrival_s[-1])
    what = "the last request"
    after, think_s = workload.after_request, workload.think_s
    if after is not None and think_s is not None and think_s.sum() + latest_s > LATEST_S:
        sent_s = workload.arrival_s.tolist()  # earliest possible: after the think times of all earlier turns
        for request, (trigger, thinking_s) in enumerate(zip(after.tolist(), think_s.tolist(), strict=True)):
            if trigger >= 0:
                sent_s[request] = sent_s[trigger] + thinking_s
        last = int(np.argmax(sent_s))
        latest_s, what = sent_s[last], f"request {last}"
        if after[last] >= 0:
            what += ", including think times,"
    if latest_s > LATEST_S:
        raise InvalidInput(
            f"{what} of {workload.name} arrives after {latest_s:g} s, but simulated time ends at {LATEST_S:g} s: "
            "use a part of the trace, or compress its time"
        )


class OpenLoopClient(Client):
    """Sends every request `delay_ps` after its arrival time, independent of completions."""

    def __init__(self, workload: Workload, delay_ps: int = 0) -> None:
        super().__init__(workload)
        if delay_ps:
            sent_ps = np.frombuffer(self._arrival_ps, dtype=np.int64)
            self._timed_ps = array("q", (sent_ps + delay_ps).tobytes())
            self._update_due()

    def take_all(self) -> Sequence[int]:
        """Mark all requests as sent and return the times (ps) at which they reach the engines, in order."""
        self.due_ps = NEVER
        return self._timed_ps

    def take(self, now_ps: int) -> list[tuple[int, int]]:
        sent: list[tuple[int, int]] = []
        request, due_ps, times = self._next, self.due_ps, self._timed_ps
        while due_ps <= now_ps:
            sent.append((request, due_ps))
            request += 1
            due_ps = times[request] if request < len(times) else NEVER
        self._next, self.due_ps = request, due_ps
        return sent

    def on_completion(self, request: int, now_ps: int) -> list[tuple[int, int]]:  # noqa: ARG002
        return NOTHING_SENT


NOTHING_SENT: list[tuple[int, int]] = []


def make_client(workload: Workload) -> Client:
    """Return the client that sends this workload."""
    return Client(workload) if workload.is_closed_loop else OpenLoopClient(workload)


class ClientTimeouts:
    """Client timeouts. All clients have the same timeout, so deadlines are in order of arrival.

    `is_outstanding(request)`: whether a client still waits; `give_up(request, now_ps)` is called at a timeout.
    """

    def __init__(
        self,
        env: simpy.Environment,
        timeout_ps: int,
        is_outstanding: Callable[[int], bool],
        give_up: Callable[[int, int], None],
    ) -> None:
        self.timeout_ps = timeout_ps
        self._env = env
        self._is_outstanding = is_outstanding
        self._give_up = give_up
        self._deadlines: deque[tuple[int, int]] = deque()  # (instant, request), in order
        self._first: simpy.Event | None = None  # triggered by the next request while no deadline is pending

    def begin(self, request: int, at_ps: int) -> None:
        """Start the timeout of a request."""
        self._deadlines.append((at_ps + self.timeout_ps, request))
        if self._first is not None:
            self._first.succeed()
            self._first = None

    def run(self) -> Generator[simpy.Event, None, None]:
        env, deadlines = self._env, self._deadlines
        while True:
            if not deadlines:
                self._first = env.event()
                yield self._first
            at_ps, request = deadlines.popleft()
            if self._is_outstanding(request):
                yield Instant(env, ARRIVE, DEADLINE).schedule_at(at_ps)
                if self._is_outstanding(request):
                    self._give_up(request, at_ps)
