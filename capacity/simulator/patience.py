"""Clients that give up: whatever is outstanding so long after it was sent is cancelled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator

import simpy

from capacity.simulator.instants import ARRIVE, DEADLINE, Instant


class Patience:
    """One deadline after the other, each an event of its own; equal patience for all, so they come in order.

    `is_outstanding(request)` says whether anybody still waits, `give_up(request, instant)` is told who no longer does.
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
        self._first: simpy.Event | None = None  # while no request has a deadline: the first one's coming

    def begin(self, request: int, at_ps: int) -> None:
        """A client waits from now on."""
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
                yield Instant(env, ARRIVE, DEADLINE).at(at_ps)
                if self._is_outstanding(request):
                    self._give_up(request, at_ps)
