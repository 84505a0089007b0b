"""The account that every router keeps: no order of events confuses it."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from capacity.deployment.routers import ROUTERS, make_router
from capacity.deployment.routing import Prompt


def test_replicas_that_open_out_of_turn_stand_in_order_of_number() -> None:
    router = make_router("round-robin")
    for replica in (0, 2, 1):
        router.add_replica(replica)
    assert router.ready == [0, 1, 2]
    assert [router.send(Prompt(request, 1)) for request in range(4)] == [0, 1, 2, 0]


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
        self.router.add_replica(self.replicas)
        self.alive.add(self.replicas)
        self.replicas += 1

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        replica = data.draw(st.sampled_from(sorted(self.alive)))
        self.router.remove_replica(replica)
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
