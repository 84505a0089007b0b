"""Routers: each rule by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from capacity import simulate
from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Service
from capacity.deployment.routers import ROUTERS, LeastKv, PrefixAware, SessionSticky, make_router
from capacity.deployment.routing import Prompt, Router


def ready(router: Router, replicas: int) -> Router:
    for replica in range(replicas):
        router.add_replica(replica)
    return router


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
    router.remove_replica(1)
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
    router.remove_replica(first)
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
    router.remove_replica(0)
    assert {router.send(Prompt(9, 10, session)) for session in homes} == {1}


def test_names() -> None:
    with pytest.raises(UnknownName, match="least-outstanding"):
        make_router("least-outstandin")
    with pytest.raises(InvalidInput, match="needs sessions"):
        make_router("session-sticky", has_sessions=False)
