"""Routers that tell pools apart: limits, room, and what is expected of each replica, by hand."""

from __future__ import annotations

import random
from typing import Any

from capacity.deployment.routers import make_router
from capacity.deployment.routing import Forecast, PoolLimits, Prompt, Router


def ready(router: Router, replicas: int) -> Router:
    for replica in range(replicas):
        router.add_replica(replica)
    return router


def pooled(name: str, *pools: PoolLimits) -> Router:
    """A router with two replicas of each pool: 0 and 1 of the first, 2 and 3 of the next."""
    router = make_router(name)
    for replica in range(2 * len(pools)):
        router.assign_pool(replica, pools[replica // 2])
        router.add_replica(replica)
    return router


SHORT, MIDDLE, LONG = PoolLimits(0, 100), PoolLimits(1, 1000), PoolLimits(2)


def test_requests_go_to_the_first_pool_that_takes_their_length() -> None:
    router = pooled("by-prompt-length", LONG, SHORT, MIDDLE)
    sent = [router.send(Prompt(0, tokens)) for tokens in (100, 100, 101, 1000, 1001, 10**6)]
    assert sent == [2, 3, 4, 5, 0, 1], "limits hold; within a pool the fewest outstanding, in turn"
    assert router.send(Prompt(0, 50)) == 2
    router.on_request_end(5, 1000)
    assert router.send(Prompt(0, 500)) == 5, "the one with the fewest, whoever's turn it is"


def test_the_length_is_of_the_prompt_or_of_what_is_asked_for() -> None:
    prompt = Prompt(0, 90, asked_tokens=110)
    assert pooled("by-prompt-length", SHORT, LONG).send(prompt) == 0
    assert pooled("by-request-length", SHORT, LONG).send(prompt) == 2


def test_a_full_pool_spills_into_the_next_that_takes_the_request_and_has_room() -> None:
    router = pooled("by-prompt-length", PoolLimits(0, 100, 1), PoolLimits(1, 1000, 1), PoolLimits(2, None, 1))
    assert [router.send(Prompt(0, 10)) for _ in range(8)] == [0, 1, 2, 3, 4, 5, 0, 1], "all full: its own"
    router.on_request_end(4, 10)
    assert router.send(Prompt(0, 10)) == 4


def test_cheap_pools_fill_first_where_nothing_but_room_decides() -> None:
    router = pooled("by-prompt-length", PoolLimits(0, None, 2), PoolLimits(1))
    assert [router.send(Prompt(0, tokens)) for tokens in (9, 9999, 9, 9999, 9, 9)] == [0, 1, 0, 1, 2, 3]


def test_what_no_pool_takes_goes_where_the_longest_go_and_lost_pools_are_passed_over() -> None:
    router = pooled("by-prompt-length", SHORT, MIDDLE)
    assert router.send(Prompt(0, 5000)) == 2
    for replica in (2, 3):
        router.remove_replica(replica)
    assert router.send(Prompt(0, 5000)) == 0, "better than nowhere"
    for replica in (0, 1):
        router.pause(replica)
    router.add_replica(4)  # of a pool that nobody has told of
    assert router.send(Prompt(0, 10)) == 4
    router.resume(1)
    assert router.send(Prompt(0, 10)) == 1


def expecting(*token_s: float, within_s: float = 1.0, **more: Any) -> Router:
    """Pools of two replicas, each with nothing to wait for but its prompts: so many seconds a token."""
    takes = [
        PoolLimits(place, forecast=Forecast(within_s, 0.0, each), **more)
        for place, each in enumerate(token_s)
    ]
    return pooled("within-ttft", *takes)


def test_the_first_pool_that_is_in_time_and_in_it_who_is_soonest() -> None:
    """The cheap pool reads 1,000 tokens in a second, the dear one 10,000."""
    router = expecting(1e-3, 1e-4)
    assert [router.send(Prompt(0, tokens)) for tokens in (600, 300)] == [0, 1]
    assert router.send(Prompt(0, 500)) == 1, "0.8 s there, 1.1 s at the other"
    assert router.send(Prompt(0, 400)) == 0, "1.0 s is in time"
    assert router.send(Prompt(0, 300)) == 2, "1.1 s is not: the dear ones take it"
    router.now_s = 0.5
    assert router.send(Prompt(0, 300)) == 1, "half a second later the cheap ones have read as much"


def test_where_nobody_is_in_time_the_soonest_of_all() -> None:
    router = expecting(1e-3, 1e-3)
    assert [router.send(Prompt(0, tokens)) for tokens in (5000, 4000, 3000, 2000)] == [0, 1, 2, 3]
    assert router.send(Prompt(0, 1000)) == 3


def test_an_idle_replica_has_read_everything_and_requests_per_request_slow_it_down() -> None:
    router = expecting(1e-3)
    assert [router.send(Prompt(0, 900)), router.send(Prompt(0, 800))] == [0, 1]
    router.on_request_end(0, 900)
    assert router.send(Prompt(0, 500)) == 0
    slow = pooled(
        "within-ttft", PoolLimits(0, forecast=Forecast(1.0, 0.1, 1e-3, per_request_s=1e-3)), PoolLimits(1)
    )
    for _ in range(2):
        assert slow.send(Prompt(0, 1)) in (0, 1)
    assert slow.send(Prompt(0, 440)) in (0, 1), "0.1 s and 2 ms for each of 440 tokens"
    assert slow.send(Prompt(0, 460)) in (2, 3), "1.02 s at the other"
    assert slow.send(Prompt(0, 440)) in (0, 1)


def test_limits_hold_and_a_full_pool_is_passed_over_where_first_tokens_decide() -> None:
    takes = PoolLimits(0, 100, 1, Forecast(1.0, 0.0, 1e-6)), PoolLimits(1, None, 1, Forecast(1.0, 0.0, 1e-6))
    router = pooled("within-ttft", *takes)
    assert router.send(Prompt(0, 101)) == 2
    assert [router.send(Prompt(0, 10)) for _ in range(5)] == [0, 1, 3, 0, 1], "all full: its own"
    only_short = pooled("within-ttft", PoolLimits(0, 100, None, Forecast(1.0, 0.0, 1e-6)))
    assert only_short.send(Prompt(0, 500)) == 0, "better than nowhere"


def test_without_forecasts_the_fewest_outstanding_decide() -> None:
    router, fewest = (ready(make_router(name), 3) for name in ("within-ttft", "least-outstanding"))
    rng = random.Random(3)
    held: list[int] = []
    for _ in range(200):
        if held and rng.random() < 0.4:
            replica = held.pop(rng.randrange(len(held)))
            router.on_request_end(replica, 7)
            fewest.on_request_end(replica, 7)
        else:
            held.append(router.send(Prompt(0, 7)))
            assert fewest.send(Prompt(0, 7)) == held[-1]
