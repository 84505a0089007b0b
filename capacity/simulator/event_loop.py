"""The clock that the replicas of a deployment share: what comes first, who may run how far before the others.

Keys order what happens at one instant: ends of steps, then arrivals, then decisions. Whatever happens at fixed instants
(failures, scaling) is a SimPy process and comes before all of these; engines run between.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from itertools import count

import simpy

from capacity.simulator.client import NEVER, Arrivals
from capacity.simulator.driven import ARRIVE, NEVER_KEY, DrivenEngine


class EventLoop(ABC):
    """Replicas by their keys, timers, and the deadlines of requests; subclasses say what arrivals and deadlines do."""

    def __init__(self, client: Arrivals, *, independent: bool, feedback: bool) -> None:
        """`independent`: no completion brings a request or frees a place, so each engine may run by itself.
        `feedback`: a completion may bring a request."""
        self.env = simpy.Environment(initial_time=0)
        self.client = client
        self.replicas: list[DrivenEngine] = []
        self.keys: list[int] = []
        self.now_ps = 0
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._deadlines: list[tuple[int, int]] = []  # (instant, request)
        self._order = count()
        self._independent = independent
        self._feedback = feedback
        self._engines_act = False  # whether what one engine does can act on another

    @property
    @abstractmethod
    def waiting_for_replica(self) -> int:
        """Requests that no replica has yet."""

    @abstractmethod
    def _send(self, sent: list[tuple[int, int]]) -> None:
        """Requests from the client, each with its instant; those turned away at once may bring others."""

    @abstractmethod
    def _arrive(self, request: int, at_ps: int) -> None: ...

    @abstractmethod
    def _give_up(self, request: int, now_ps: int) -> None:
        """The deadline of a request has come."""

    @abstractmethod
    def _is_outstanding(self, request: int) -> bool: ...

    def at(self, at_ps: int, act: Callable[[], None]) -> None:
        """Do something at an instant to come."""
        heapq.heappush(self._timers, (at_ps, next(self._order), act))

    def drive(self) -> Generator[simpy.Event, None, None]:
        """Until nobody has anything to do. Others' events come first at their instant, then the engines'."""
        env, keys, client, replicas, timers = self.env, self.keys, self.client, self.replicas, self._timers
        others_ps = env.peek()  # nothing is added to it but while this waits
        while True:
            first = min(keys)
            due_ps = outside_ps = client.due_ps
            action_ps = self._next_action() if timers or self._deadlines else NEVER
            if action_ps < outside_ps:
                outside_ps = action_ps
            arrives = 4 * outside_ps + ARRIVE < first and outside_ps < NEVER
            at_ps = outside_ps if arrives else first >> 2
            if others_ps <= at_ps:
                if at_ps == NEVER and (not self.waiting_for_replica or others_ps == float("inf")):
                    return
                yield env.timeout(others_ps - env.now)
                self.now_ps = int(env.now)
                others_ps = env.peek()
                continue
            if at_ps == NEVER:
                return
            self.now_ps = at_ps
            if arrives:
                if outside_ps == due_ps:
                    self._send(client.take(at_ps))
                elif timers and timers[0][0] == at_ps:
                    heapq.heappop(timers)[2]()
                else:
                    self._give_up(heapq.heappop(self._deadlines)[1], at_ps)
                continue
            if others_ps < action_ps:
                action_ps = int(others_ps)
            horizon_ps = action_ps if action_ps < outside_ps else outside_ps
            if self._independent:
                if others_ps <= outside_ps:
                    limit_key = 4 * int(others_ps)
                else:
                    limit_key = 4 * outside_ps + ARRIVE if outside_ps < NEVER else NEVER_KEY
                self._proceed_until(limit_key, horizon_ps, action_ps)
                if not (timers or self._deadlines):
                    self._serve(others_ps)
                continue
            number = keys.index(first)
            if self._feedback:
                horizon_ps = min(horizon_ps, self._next_of_others(number))
                if self._engines_act:  # an arrival elsewhere may be what makes another act
                    action_ps = horizon_ps
            replica = replicas[number]
            replica.proceed(horizon_ps, action_ps)
            if replica.alive:
                keys[number] = replica.key

    def _proceed_until(self, limit_key: int, horizon_ps: int, action_ps: int) -> int:
        """Have the engines do all that is due before `limit_key`, in order; returns the key after that."""
        keys, replicas = self.keys, self.replicas
        first = min(keys)
        while first < limit_key:
            number = keys.index(first)
            keys[number] = replicas[number].proceed_until(limit_key, horizon_ps, action_ps)
            first = min(keys)
        return first

    def _serve(self, until_ps: float) -> None:
        """Arrivals, and the engines between them, for as long as nothing else happens."""
        client, timers, deadlines = self.client, self._timers, self._deadlines
        action_ps = int(until_ps) if until_ps < NEVER else NEVER
        while not timers and not deadlines:
            due_ps = client.due_ps
            if due_ps >= action_ps:
                return
            self._proceed_until(4 * due_ps + ARRIVE, due_ps, action_ps)
            self.now_ps = due_ps
            for request, at_ps in client.take(due_ps):
                self._arrive(request, at_ps)

    def _next_action(self) -> int:
        """When a timer ends, or the patience of a client who still waits."""
        deadlines, timers = self._deadlines, self._timers
        while deadlines and not self._is_outstanding(deadlines[0][1]):
            heapq.heappop(deadlines)
        patience_ps = deadlines[0][0] if deadlines else NEVER
        return min(patience_ps, timers[0][0]) if timers else patience_ps

    def _next_of_others(self, number: int) -> int:
        """When another replica may complete a request, and so bring a new one."""
        return min((key for other, key in enumerate(self.keys) if other != number), default=NEVER_KEY) >> 2
