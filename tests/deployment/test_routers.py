"""Routers: each rule by hand, and a state machine that no order of events may confuse."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from capacity import simulate
from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Service
from capacity.deployment.routers import (
    ROUTERS,
    Forecast,
    LeastKv,
    PrefixAware,
    Prompt,
    Router,
    SessionSticky,
    Takes,
    make_router,
)


def ready(router: Router, replicas: int) -> Router:
    for replica in range(replicas):
        router.joined(replica)
    return router


def test_replicas_that_open_out_of_turn_stand_in_order_of_number() -> None:
    router = make_router("round-robin")
    for replica in (0, 2, 1):
        router.joined(replica)
    assert router.ready == [0, 1, 2]
    assert [router.send(Prompt(request, 1)) for request in range(4)] == [0, 1, 2, 0]


class Drawn(Router):
    """Any replica, by a throw of the dice."""

    def _choose(self, prompt: Prompt) -> int:
        return random.Random(f"{self.seed} {prompt.request}").choice(self.ready)


def test_a_router_that_draws_gets_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROUTERS, "drawn", Drawn)
    load: dict[str, Any] = {"gpu": "h100", "input_len": 100, "output_len": 5, "num_prompts": 60}

    def shares(seed: int) -> list[int]:
        answer = simulate("llama-3.1-8b", **load, request_rate=20, replicas=4, router="drawn", seed=seed)
        return [replica["requests"] for replica in answer.to_dict()["replicas"]]

    assert shares(1) == shares(1) != shares(2)


def pooled(name: str, *pools: Takes) -> Router:
    """A router with two replicas of each pool: 0 and 1 of the first, 2 and 3 of the next."""
    router = make_router(name)
    for replica in range(2 * len(pools)):
        router.belongs(replica, pools[replica // 2])
        router.joined(replica)
    return router


SHORT, MIDDLE, LONG = Takes(0, 100), Takes(1, 1000), Takes(2)


def test_requests_go_to_the_first_pool_that_takes_their_length() -> None:
    router = pooled("by-prompt-length", LONG, SHORT, MIDDLE)
    sent = [router.send(Prompt(0, tokens)) for tokens in (100, 100, 101, 1000, 1001, 10**6)]
    assert sent == [2, 3, 4, 5, 0, 1], "limits hold; within a pool the fewest outstanding, in turn"
    assert router.send(Prompt(0, 50)) == 2
    router.left(5, 1000)
    assert router.send(Prompt(0, 500)) == 5, "the one with the fewest, whoever's turn it is"


def test_the_length_is_of_the_prompt_or_of_what_is_asked_for() -> None:
    prompt = Prompt(0, 90, asked_tokens=110)
    assert pooled("by-prompt-length", SHORT, LONG).send(prompt) == 0
    assert pooled("by-request-length", SHORT, LONG).send(prompt) == 2


def test_a_full_pool_spills_into_the_next_that_takes_the_request_and_has_room() -> None:
    router = pooled("by-prompt-length", Takes(0, 100, 1), Takes(1, 1000, 1), Takes(2, None, 1))
    assert [router.send(Prompt(0, 10)) for _ in range(8)] == [0, 1, 2, 3, 4, 5, 0, 1], "all full: its own"
    router.left(4, 10)
    assert router.send(Prompt(0, 10)) == 4


def test_cheap_pools_fill_first_where_nothing_but_room_decides() -> None:
    router = pooled("by-prompt-length", Takes(0, None, 2), Takes(1))
    assert [router.send(Prompt(0, tokens)) for tokens in (9, 9999, 9, 9999, 9, 9)] == [0, 1, 0, 1, 2, 3]


def test_what_no_pool_takes_goes_where_the_longest_go_and_lost_pools_are_passed_over() -> None:
    router = pooled("by-prompt-length", SHORT, MIDDLE)
    assert router.send(Prompt(0, 5000)) == 2
    for replica in (2, 3):
        router.gone(replica)
    assert router.send(Prompt(0, 5000)) == 0, "better than nowhere"
    for replica in (0, 1):
        router.pause(replica)
    router.joined(4)  # of a pool that nobody has told of
    assert router.send(Prompt(0, 10)) == 4
    router.resume(1)
    assert router.send(Prompt(0, 10)) == 1


def expecting(*token_s: float, within_s: float = 1.0, **more: Any) -> Router:
    """Pools of two replicas, each with nothing to wait for but its prompts: so many seconds a token."""
    takes = [
        Takes(place, forecast=Forecast(within_s, 0.0, each), **more) for place, each in enumerate(token_s)
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


def test_an_idle_replica_has_read_everything_and_requests_beside_slow_it_down() -> None:
    router = expecting(1e-3)
    assert [router.send(Prompt(0, 900)), router.send(Prompt(0, 800))] == [0, 1]
    router.left(0, 900)
    assert router.send(Prompt(0, 500)) == 0
    slow = pooled("within-ttft", Takes(0, forecast=Forecast(1.0, 0.1, 1e-3, beside_s=1e-3)), Takes(1))
    for _ in range(2):
        assert slow.send(Prompt(0, 1)) in (0, 1)
    assert slow.send(Prompt(0, 440)) in (0, 1), "0.1 s and 2 ms for each of 440 tokens"
    assert slow.send(Prompt(0, 460)) in (2, 3), "1.02 s at the other"
    assert slow.send(Prompt(0, 440)) in (0, 1)


def test_limits_hold_and_a_full_pool_is_passed_over_where_first_tokens_decide() -> None:
    takes = Takes(0, 100, 1, Forecast(1.0, 0.0, 1e-6)), Takes(1, None, 1, Forecast(1.0, 0.0, 1e-6))
    router = pooled("within-ttft", *takes)
    assert router.send(Prompt(0, 101)) == 2
    assert [router.send(Prompt(0, 10)) for _ in range(5)] == [0, 1, 3, 0, 1], "all full: its own"
    only_short = pooled("within-ttft", Takes(0, 100, None, Forecast(1.0, 0.0, 1e-6)))
    assert only_short.send(Prompt(0, 500)) == 0, "better than nowhere"


def test_without_forecasts_the_fewest_outstanding_decide() -> None:
    router, fewest = (ready(make_router(name), 3) for name in ("within-ttft", "least-outstanding"))
    rng = random.Random(3)
    held: list[int] = []
    for _ in range(200):
        if held and rng.random() < 0.4:
            replica = held.pop(rng.randrange(len(held)))
            router.left(replica, 7)
            fewest.left(replica, 7)
        else:
            held.append(router.send(Prompt(0, 7)))
            assert fewest.send(Prompt(0, 7)) == held[-1]


def test_chance_reaches_every_replica_alike_and_is_the_seed_s() -> None:
    def sent(seed: int) -> list[int]:
        router = ready(make_router("random", seed=seed), 4)
        return [router.send(Prompt(request, 1)) for request in range(4000)]

    assert sent(1) == sent(1) != sent(2)
    counts = [sent(1).count(replica) for replica in range(4)]
    assert max(abs(count - 1000) for count in counts) < 4.5 * (4000 * 0.25 * 0.75) ** 0.5, (
        "4.5 standard errors"
    )


def test_every_router_stands_in_the_help() -> None:
    assert ", ".join(ROUTERS) in (Service.model_fields["router"].description or "")


def test_round_robin_skips_who_is_gone() -> None:
    router = ready(make_router("round-robin"), 3)
    assert [router.send(Prompt(i, 10)) for i in range(4)] == [0, 1, 2, 0]
    router.gone(1)
    assert [router.send(Prompt(i, 10)) for i in range(3)] == [2, 0, 2]


def test_least_outstanding_takes_turns_between_equals() -> None:
    router = ready(make_router("least-outstanding"), 3)
    assert [router.send(Prompt(i, 10)) for i in range(3)] == [0, 1, 2]
    router.left(1, 10)
    assert router.send(Prompt(3, 10)) == 1
    assert router.send(Prompt(4, 10)) == 2


def test_least_kv_counts_prompt_tokens() -> None:
    router = ready(LeastKv(), 2)
    assert router.send(Prompt(0, 1000)) == 0
    assert [router.send(Prompt(i, 300)) for i in (1, 2, 3)] == [1, 1, 1]
    assert router.send(Prompt(4, 300)) == 1, "900 tokens are still fewer than 1000"
    assert router.send(Prompt(5, 1)) == 0


def test_prefix_aware_follows_the_longest_match() -> None:
    router = ready(PrefixAware(), 3)
    first = router.send(Prompt(0, 160, None, (7,), (5,), 10))
    assert router.send(Prompt(1, 160, None, (7,), (5,), 10)) == first
    other = router.send(Prompt(2, 160, None, (8,), (5,), 10))
    assert other != first
    longer = Prompt(3, 160, None, (7, 9), (5, 8), 10)
    assert router.send(longer) == first
    assert router.send(Prompt(4, 1600, None, (8,), (5,), 100)) != other, "5 of 100 blocks are below 0.3"
    router.gone(first)
    assert router.send(longer) != first


def test_prefix_aware_gives_way_to_balance() -> None:
    router = ready(PrefixAware(balance_requests=4), 2)
    same = Prompt(0, 160, None, (7,), (10,), 10)
    homes = [router.send(same) for _ in range(6)]
    assert homes[:5] == [0] * 5
    assert homes[5] == 1


def test_prefix_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefixAware, "MOST_KEYS", 100)
    router = ready(PrefixAware(), 2)
    for key in range(1000):
        replica = router.send(Prompt(key, 16, None, (key,), (1,), 1))
        router.left(replica, 16)
    assert len(router._holders) <= 101  # type: ignore[attr-defined]


def test_sessions_stay_at_home() -> None:
    router = ready(SessionSticky(), 2)
    homes = {session: router.send(Prompt(session, 10, session)) for session in range(4)}
    assert set(homes.values()) == {0, 1}
    for session, home in homes.items():
        assert router.send(Prompt(9, 10, session)) == home
    router.gone(0)
    assert {router.send(Prompt(9, 10, session)) for session in homes} == {1}


def test_names() -> None:
    with pytest.raises(UnknownName, match="least-outstanding"):
        make_router("least-outstandin")
    with pytest.raises(InvalidInput, match="needs sessions"):
        make_router("session-sticky", has_sessions=False)


class RouterMachine(RuleBasedStateMachine):
    """Requests come and go, replicas join and leave; the router's account equals a plain one."""

    @initialize(name=st.sampled_from(sorted(ROUTERS)))
    def start(self, name: str) -> None:
        self.router = make_router(name)
        self.alive: set[int] = set()
        self.outstanding: dict[int, tuple[int, int]] = {}
        self.replicas = self.requests = 0

    @rule()
    def join(self) -> None:
        self.router.joined(self.replicas)
        self.alive.add(self.replicas)
        self.replicas += 1

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        replica = data.draw(st.sampled_from(sorted(self.alive)))
        self.router.gone(replica)
        self.alive.remove(replica)

    @precondition(lambda self: self.alive)
    @rule(tokens=st.integers(1, 500), session=st.integers(0, 5), keys=st.lists(st.integers(0, 3), max_size=3))
    def send(self, tokens: int, session: int, keys: list[int]) -> None:
        chain = tuple(
            sum(4**i * (key + 1) for i, key in enumerate(keys[: end + 1])) for end in range(len(keys))
        )
        stops = tuple(range(1, len(keys) + 1))
        replica = self.router.send(Prompt(self.requests, tokens, session, chain, stops, len(keys)))
        assert replica in self.alive
        self.outstanding[self.requests] = (replica, tokens)
        self.requests += 1

    @precondition(lambda self: self.outstanding)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.outstanding)))
        self.router.left(*self.outstanding.pop(request))

    @invariant()
    def accounts_agree(self) -> None:
        for replica in range(self.replicas if hasattr(self, "router") else 0):
            mine = [tokens for home, tokens in self.outstanding.values() if home == replica]
            assert self.router.requests[replica] == len(mine)
            assert self.router.prompt_tokens[replica] == sum(mine)


TestRouterMachine = RouterMachine.TestCase
