"""When something happens: an instant in whole picoseconds, and its place among all that happens then.

At one instant: samples of the state before it, what changes the deployment (failures, scaling: SimPy's own timeouts),
ends of steps (SETTLE), arrivals (ARRIVE: from the clients, then ends of transfers, then deadlines), and what the
engines compute next (DECIDE). Engines of one kind come by their number, all else in the order in which it was planned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import simpy

from capacity.base.errors import InvalidInput
from capacity.step import PS_PER_S

BEFORE, SETTLE, ARRIVE, DECIDE = -1, 0, 1, 2  # what happens at one instant, in this order
CLIENT, TIMER, DEADLINE = 0, 1, 2  # ranks of what arrives
NEVER = 1 << 62  # an instant after all others
CLOCK_ENDS_PS = NEVER // 4  # what is due then or later never happens; the compiled engines' keys hold no more
RANKS = 1 << 20


class Instant(simpy.Event):  # type: ignore[misc]
    """An event whose place is its kind and then its rank; SimPy's priorities make it so."""

    _ok, _value = True, None  # it will happen, and has nothing to say

    def __init__(self, env: simpy.Environment, kind: int, rank: int = 0) -> None:
        self.env = env
        self.callbacks: list[Callable[[simpy.Event], None]] = []
        self._place = (kind + 1) * RANKS + rank

    def schedule_at(self, at_ps: int) -> Instant:
        """It will happen then."""
        env = self.env
        env.schedule(self, self._place, at_ps - env._now)
        return self


def call_at(
    env: simpy.Environment, at_ps: int, act: Callable[[simpy.Event], None], kind: int, rank: int = 0
) -> None:
    """Call `act` at an instant."""
    Instant(env, kind, rank).schedule_at(at_ps).callbacks.append(act)


def beyond_clock(at_ps: int) -> InvalidInput:
    """The error of a run that goes on for longer than simulated time, to be raised."""
    return InvalidInput(
        f"simulated time ends after {CLOCK_ENDS_PS // PS_PER_S} s, and the run goes on to {at_ps // PS_PER_S} s: "
        "fewer requests, or a faster deployment"
    )


def next_key_of(queue: Sequence[tuple[int, int, int, simpy.Event]]) -> int:
    """The compiled engines' key of what comes next in SimPy's queue: what they do before it has a lower one."""
    if not queue:
        return NEVER
    at_ps, place, _, _ = queue[0]
    if at_ps >= CLOCK_ENDS_PS:
        return NEVER
    return 4 * at_ps + place // RANKS - 1 if place >= RANKS else 4 * at_ps
