"""What stands between the clients and the engines of a deployment: a router, rules, patience, failures, a link."""

from __future__ import annotations

from dataclasses import dataclass

from capacity.deployment.routing import Router
from capacity.simulator.admission import Admission, OutstandingLimit, QueueLimit, Rules
from capacity.simulator.escalation import Escalation
from capacity.simulator.fleet import Failures
from capacity.simulator.transfer import KvLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """What stands between the clients and the engines.

    `router`, a name or a class of `Router`: None where one engine takes its requests straight from the clients.
    `queue_limit`: a replica turns away whoever comes while so many wait. `outstanding_limit`: the router keeps requests
    back, in order, while every replica has that many. `admission`: further rules. `timeout_s`: a client gives up that
    long after it has sent, and the request is cancelled. `link` and `decode_router` lead from prefill to decode
    replicas. `seed` is for routers that draw. `scales`: replicas come and go with the load. `cascade`: who is asked
    again, where pools stand one after another.
    """

    router: str | type[Router] | None = None
    decode_router: str | type[Router] = "least-outstanding"
    queue_limit: int | None = None
    outstanding_limit: int | None = None
    admission: tuple[Admission, ...] = ()
    timeout_s: float | None = None
    failures: Failures | None = None
    link: KvLink | None = None
    seed: int = 0
    scales: bool = False
    cascade: Escalation | None = None

    @property
    def rules(self) -> Rules:
        limits: list[Admission] = []
        if self.queue_limit is not None:
            limits.append(QueueLimit(self.queue_limit))
        if self.outstanding_limit is not None:
            limits.append(OutstandingLimit(self.outstanding_limit))
        return Rules((*limits, *self.admission))

    @property
    def changes_nothing(self) -> bool:
        """Whether requests go where the router sends them, whatever happens there."""
        rules = self.rules
        asked = rules.looks_at_requests or rules.looks_at_replicas or rules.limits_replicas
        given = self.link, self.failures, self.timeout_s
        return not (asked or self.scales) and all(each is None for each in given)


def name_of(router: str | type[Router] | None) -> str | None:
    return router.__name__ if isinstance(router, type) else router
