"""Admission rules, checked when a request arrives. To add one, pass an `Admission` to `simulate(admission=)`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from capacity.deployment.routing import Prompt
from capacity.simulator.engines import EngineState

Decision = Literal["admit", "hold", "refuse"]


class Admission:
    """Base class of admission rules; it admits every request.

    `at_router` is called before a replica is chosen: it admits, holds or refuses the request. Requests on hold are
    checked again, in order of arrival, whenever a request leaves or a replica opens. `at_replica` is called for the
    chosen replica: it admits or refuses. The router skips replicas for which `full` returns True, and holds requests
    while all replicas are full.
    """

    def at_router(self, prompt: Prompt, outstanding: Sequence[int]) -> Decision:  # noqa: ARG002
        """Return the decision for a prompt; `outstanding` is the number of outstanding requests of each replica."""
        return "admit"

    def at_replica(self, request: int, state: EngineState) -> Decision:  # noqa: ARG002
        return "admit"

    def full(self, outstanding: int) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class QueueLimit(Admission):
    """Rejects a request when `waiting` requests already wait at its replica."""

    waiting: int

    def at_replica(self, request: int, state: EngineState) -> Decision:  # noqa: ARG002
        return "refuse" if state.num_waiting >= self.waiting else "admit"


@dataclass(frozen=True)
class OutstandingLimit(Admission):
    """Holds requests at the router, in order, while every replica has `requests` outstanding requests."""

    requests: int

    def full(self, outstanding: int) -> bool:
        return outstanding >= self.requests


class AdmissionRules:
    """Combination of admission rules: the first rule that does not admit a request decides. Only methods that a rule
    overrides are called."""

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
