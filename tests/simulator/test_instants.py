"""What comes first at one instant."""

from __future__ import annotations

import simpy

from capacity.simulator.instants import ARRIVE, BEFORE, CLIENT, DEADLINE, DECIDE, SETTLE, TIMER, call_at


def test_samples_the_world_steps_requests_decisions() -> None:
    env = simpy.Environment(initial_time=0)
    seen: list[object] = []
    places = [
        (DECIDE, 7),
        (DECIDE, 0),
        (ARRIVE, DEADLINE),
        (ARRIVE, TIMER),
        (ARRIVE, CLIENT),
        (SETTLE, 9),
        (BEFORE, 0),
    ]
    for kind, rank in places:
        call_at(env, 5, lambda _, place=(kind, rank): seen.append(place), kind, rank)  # type: ignore[misc]

    def world() -> object:
        yield env.timeout(5)
        seen.append("world")
        call_at(env, 5, lambda _: seen.append("still before all others"), SETTLE, 0)

    env.process(world())  # type: ignore[arg-type]
    env.run()
    others = sorted(places)[1:]
    assert seen == [(BEFORE, 0), "world", "still before all others", *others]
    assert env.now == 5
