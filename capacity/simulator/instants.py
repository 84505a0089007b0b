"""Simulated times (instants) in whole picoseconds, and the order of events with the same time.

Order: samples of the state; changes of the deployment (failures and scaling use SimPy's timeouts); ends of steps
(SETTLE); arrivals (ARRIVE: from clients, then ends of transfers, then deadlines); the engines' next decisions
(DECIDE). Engine events of one kind are ordered by engine number, all other events by the order of scheduling.
"""

from collections.abc import Callable, Sequence

import simpy

from capacity.base.errors import InvalidInput
from capacity.step import PS_PER_S

BEFORE, SETTLE, ARRIVE, DECIDE = -1, 0, 1, 2  # kinds of events, in the order within an instant
CLIENT, TIMER, DEADLINE = 0, 1, 2  # ranks of arrivals
NEVER = 1 << 62  # after all other instants
CLOCK_ENDS_PS = NEVER // 4  # no event at or after this; limit of the compiled engines' keys
RANKS = 1 << 20


class Instant(simpy.Event):  # type: ignore[misc]
    """A SimPy event; among events with the same time, its kind and then its rank determine the order."""

    _ok, _value = True, None  # triggered, without a value

    def __init__(self, env: simpy.Environment, kind: int, rank: int = 0) -> None:
        self.env = env
        self.callbacks: list[Callable[[simpy.Event], None]] = []
        self._place = (kind + 1) * RANKS + rank

    def schedule_at(self, at_ps: int) -> "Instant":
        """Schedule the event at a simulated time and return it."""
        env = self.env
        env.schedule(self, self._place, at_ps - env._now)
        return self


def call_at(
    env: simpy.Environment, at_ps: int, act: Callable[[simpy.Event], None], kind: int, rank: int = 0
) -> None:
    """Schedule a call of `act` at a simulated time."""
    Instant(env, kind, rank).schedule_at(at_ps).callbacks.append(act)


def clock_overflow_error(at_ps: int) -> InvalidInput:
    """Return the error for a run whose events exceed the range of simulated time."""
    return InvalidInput(
        f"simulated time ends after {CLOCK_ENDS_PS // PS_PER_S} s, and the run goes on to {at_ps // PS_PER_S} s: "
        "simulate fewer requests, or a faster deployment"
    )


def next_event_key(queue: Sequence[tuple[int, int, int, simpy.Event]]) -> int:
    """Return the sort key of the next SimPy event; compiled engines may first do all work that has a lower key."""
    if not queue:
        return NEVER
    at_ps, place, _, _ = queue[0]
    if at_ps >= CLOCK_ENDS_PS:
        return NEVER
    return 4 * at_ps + place // RANKS - 1 if place >= RANKS else 4 * at_ps
