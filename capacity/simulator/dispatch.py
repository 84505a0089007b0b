"""Options of a deployment outside its engines: router, admission rules, client timeout, failures, KV link."""

from dataclasses import dataclass

from capacity.deployment.routing import Router
from capacity.simulator.admission import Admission, AdmissionRules, OutstandingLimit, QueueLimit
from capacity.simulator.escalation import Escalation
from capacity.simulator.fleet import Failures
from capacity.simulator.transfer import KvLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Options of a deployment outside its engines.

    `router`: a name or a class of `Router`; None if a single engine gets its requests directly from the clients.
    `queue_limit`: a replica rejects requests while this many wait in it. `outstanding_limit`: the router holds
    requests, in order of arrival, while every replica has this many outstanding requests. `admission`: further rules.
    `timeout_s`: the client cancels a request that takes longer. `link`: KV link from prefill to decode replicas.
    `decode_router`: router that chooses the decode replica. `seed`: seed of random routers. `scales`: whether
    autoscaling is on. `cascade`: rates at which requests go on to the next pool.
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
    def rules(self) -> AdmissionRules:
        limits: list[Admission] = []
        if self.queue_limit is not None:
            limits.append(QueueLimit(self.queue_limit))
        if self.outstanding_limit is not None:
            limits.append(OutstandingLimit(self.outstanding_limit))
        return AdmissionRules((*limits, *self.admission))

    @property
    def is_static(self) -> bool:
        """Whether the replica of a request never depends on the state of the replicas."""
        rules = self.rules
        asked = rules.looks_at_requests or rules.looks_at_replicas or rules.limits_replicas
        given = self.link, self.failures, self.timeout_s
        return not (asked or self.scales) and all(each is None for each in given)


def router_name(router: str | type[Router] | None) -> str | None:
    return router.__name__ if isinstance(router, type) else router
