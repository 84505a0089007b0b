"""Who is let in: rules that are asked as a request arrives. A new one is a subclass, for `simulate(admission=)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from capacity.deployment.routing import Prompt
from capacity.simulator.engines import EngineState

Decision = Literal["admit", "hold", "refuse"]


class Admission:
    """A rule that lets everybody in.

    `at_router` is asked before a replica is chosen; who is held is asked again, in order, whenever a request leaves or
    a replica opens. `at_replica` is asked of the chosen one: it admits or refuses. While `full` says so of its
    outstanding requests, a replica is passed over; where all are, requests are held.
    """

    def at_router(self, prompt: Prompt, outstanding: Sequence[int]) -> Decision:  # noqa: ARG002
        """`outstanding` requests, by replica."""
        return "admit"

    def at_replica(self, request: int, state: EngineState) -> Decision:  # noqa: ARG002
        return "admit"

    def full(self, outstanding: int) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class QueueLimit(Admission):
    """A replica turns away whoever comes while so many wait."""

    waiting: int

    def at_replica(self, request: int, state: EngineState) -> Decision:  # noqa: ARG002
        return "refuse" if state.num_waiting >= self.waiting else "admit"


@dataclass(frozen=True)
class OutstandingLimit(Admission):
    """The router keeps requests back, in order, while every replica has so many."""

    requests: int

    def full(self, outstanding: int) -> bool:
        return outstanding >= self.requests


class Rules:
    """Several rules as one: the first that does not admit decides. Questions that no rule answers are not asked."""

    def __init__(self, rules: Sequence[Admission]) -> None:
        def rules_with(name: str) -> list[Admission]:
            return [rule for rule in rules if getattr(type(rule), name) is not getattr(Admission, name)]

        self._at_router = rules_with("at_router")
        self._at_replica = rules_with("at_replica")
        self._full = rules_with("full")
        self.holds = bool(self._at_router or self._full)  # whether they look at what has left
        self.looks_at_replicas = bool(self._at_replica)
        self.looks_at_requests = bool(self._at_router)
        self.limits_replicas = bool(self._full)

    def at_router(self, prompt: Prompt, outstanding: Sequence[int]) -> Decision:
        decisions = (rule.at_router(prompt, outstanding) for rule in self._at_router)
        return next((decision for decision in decisions if decision != "admit"), "admit")

    def is_refused(self, request: int, state: EngineState) -> bool:
        return any(rule.at_replica(request, state) != "admit" for rule in self._at_replica)

    def full(self, outstanding: int) -> bool:
        return any(rule.full(outstanding) for rule in self._full)
