"""A cascade simulated as one deployment: its engines in two pools, the second fed by what the first sends on.

The tiers of the answer are simulated apart, each at its share of the arrivals, and their times are added as if they
were independent. Here every request goes its way, and comes to the large model when the small one has answered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from capacity.answers.deployment_run import run_service, verdict_on
from capacity.answers.engine_setup import make_workload
from capacity.answers.records import Quantity
from capacity.answers.run_intervals import predicted_ms
from capacity.base.errors import InvalidInput
from capacity.deployment import Cascade, Service, Traffic
from capacity.planning.cascades.arrangement import Arrangement
from capacity.planning.cascades.tiers import OwnSide, Side
from capacity.pool.resolve import ResolvedPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """A run of the whole cascade: requests that were answered, and what their users saw.

    `unseen_tokens` were made by the small model, and thrown away; `verdict` as `simulate` has it.
    """

    requests: int
    completed: int
    escalated: int
    unseen_tokens: int
    verdict: str | None
    mean_ttft_s: Quantity
    p95_ttft_s: Quantity
    mean_e2e_s: Quantity
    p95_e2e_s: Quantity


def run_together(asked: Cascade, traffic: Traffic, arranged: Arrangement) -> Together:
    """The run. Raises InvalidInput for sides whose times nobody can simulate."""
    pools, service = _deployed(asked, traffic, arranged)
    requests = make_workload(traffic, min(pool.max_model_len for pool in pools))
    run = run_service(pools, service, requests, seed=traffic.seed)
    verdict = verdict_on(run, pools, service, requests)
    found = predicted_ms(pools, requests, traffic, run, verdict)
    if not found or run.cascade is None:
        raise InvalidInput("no request was answered: nothing to tell of the cascade; a longer --num-prompts?")
    times = {
        f"{statistic}_{name}_s": found[f"{statistic}_{metric}_ms"].scaled(1e-3)
        for statistic in ("mean", "p95")
        for name, metric in (("ttft", "ttft"), ("e2e", "e2el"))
    }
    return Together(
        requests=len(requests),
        completed=int(run.records.completed.sum()),
        escalated=run.cascade.answered[-1],
        unseen_tokens=run.cascade.unseen_tokens,
        verdict=None if verdict is None else verdict.verdict,
        **times,
    )


def _deployed(asked: Cascade, traffic: Traffic, arranged: Arrangement) -> tuple[list[ResolvedPool], Service]:
    """The two pools, of as many engines as the arrangement counts, and the router before them."""
    if asked.small is None:
        raise InvalidInput("--simulate is of a small model before a large one: add --small, or leave it out")
    if asked.embedding_model is not None:
        raise InvalidInput(
            "--simulate has no engines that embed: give --cache-lookup-s for --embedding-model"
        )
    if asked.small_output_len not in (None, traffic.output_len):
        raise InvalidInput(
            f"--simulate has answers of one length: leave out --small-output-len {asked.small_output_len}"
        )
    rate = arranged.requests_per_s
    small = _pool(arranged.small, arranged.small_share * rate, asked.escalation_rate)
    large = _pool(arranged.large, arranged.large_share * rate, None)
    service = Service(
        router="cascade",
        escalate_by=asked.escalate_by,
        judge_s=asked.judge_s,
        cache_hit_rate=asked.cache_hit_rate or 0.0,
        cache_lookup_s=0.0 if asked.cache_hit_rate is None else asked.cache_lookup_s,
    )
    return [small, large], service


def _pool(side: Side | None, requests_per_s: float, escalation_rate: float | None) -> ResolvedPool:
    if not isinstance(side, OwnSide):
        raise InvalidInput("--simulate needs engines of one's own: how an API queues nobody can compute")
    fields = {
        "replicas": max(side.engines(requests_per_s), 1),
        "route_escalation_rate": escalation_rate,
    }
    return replace(side.resolved, pool=side.resolved.pool.model_copy(update=fields))
