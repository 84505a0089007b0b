"""Answer of `cascade`: every tier, the cascade compared with the large model alone, and break-even rates.

Each tier is simulated separately at its share of the arrivals; the times of the tiers are then added as independent
random variables. `run_cascade` simulates the tiers as one deployment with two pools, where a request reaches the large
model after the small model has answered it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from capacity.answers.deployment_run import run_service, verdict_on
from capacity.answers.engine_setup import make_workload
from capacity.answers.records import Quantity
from capacity.answers.run_intervals import predicted_ms
from capacity.base.errors import InvalidInput
from capacity.base.money import usd_text
from capacity.base.record import AnswerRecord, make_from
from capacity.deployment import Cascade, Service, Traffic
from capacity.deployment.cascade_fields import EMBEDDING_USD_PER_MILLION, LOOKUP_S
from capacity.deployment.use_cases import filled_notes
from capacity.hardware.pricing import SECONDS_PER_HOUR
from capacity.planning.cascades.arrangement import Arrangement, Cache, per_month
from capacity.planning.cascades.tiers import (
    AnswerTimes,
    HostedSide,
    OwnSide,
    RequestPath,
    Side,
    Stage,
    mixture_latency,
)
from capacity.pool.resolve import ResolvedPool

SHOWN_RATES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One tier of the cascade; `share` is the fraction of all requests that reach the tier.

    `usd_per_request` is per request that reaches the tier, with the number of engines rounded up;
    `usd_per_request_at_scale` neglects this rounding and assumes the target utilisation. For an API, GPU, engines,
    GPUs and utilisation are None, and so are latencies that the user did not give.
    """

    tier: str
    model: str
    place: str
    gpu: str | None
    share: float
    requests_per_s: float
    engines: int | None
    billed_gpus: int | None
    utilization: float | None
    usd_per_request: Quantity | None
    usd_per_request_at_scale: Quantity
    usd_per_month: Quantity
    mean_ttft_s: Quantity | None
    mean_e2e_s: Quantity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeTotals:
    """Cost and latency over all requests; `usd_per_request` has the engine counts rounded up."""

    billed_gpus: int
    usd_per_month: Quantity
    usd_per_request: Quantity
    usd_per_request_at_scale: Quantity
    mean_ttft_s: Quantity | None
    p95_ttft_s: Quantity | None
    mean_e2e_s: Quantity | None
    p95_e2e_s: Quantity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEvenRates:
    """Highest escalation rate and lowest hit rate at which the cascade saves money.

    `..._at_scale` neglects the rounding to whole engines, `..._here` includes it. None if no rate saves money, or if
    the cascade has no such rate.
    """

    escalation_rate_at_scale: Quantity | None
    escalation_rate_here: float | None
    cache_hit_rate_at_scale: Quantity | None
    cache_hit_rate_here: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateBill:
    """Cost of the cascade at another escalation rate."""

    escalation_rate: float
    usd_per_request_at_scale: Quantity
    usd_per_month: Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeRun:
    """Result of simulating the whole cascade as one deployment: completed requests, and latencies for clients.

    `unseen_tokens` of the small model were discarded because the request was escalated; `verdict`: see `simulate`.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeAnswer(AnswerRecord):
    """Cascade compared with its large model alone; rates of a tier that the cascade does not have are None."""

    SCHEMA: ClassVar[str] = "capacity/cascade/v1"
    ROWS: ClassVar[str] = "tiers"

    model: str
    small: str | None
    escalate_by: str | None
    escalation_rate: float | None
    cache_hit_rate: float | None
    requests_per_s: float
    input_len: int
    output_len: int
    target_utilization: float
    tiers: tuple[Tier, ...]
    cascade: CascadeTotals
    alone: CascadeTotals
    saved_fraction: float
    break_even: BreakEvenRates
    rates: tuple[RateBill, ...]
    warnings: tuple[str, ...]
    together: CascadeRun | None = None  # simulation as one deployment, if requested


def cascade_answer(model: str, asked: Cascade, traffic: Traffic, arranged: Arrangement) -> CascadeAnswer:
    """Simulate the tiers of an arrangement separately and return the answer of `cascade`."""
    small, cache, rate = arranged.small, arranged.cache, arranged.requests_per_s
    small_waits = _waits(small, arranged.small_share * rate)
    large_waits = _waits(arranged.large, arranged.large_share * rate)
    alone = arranged.large_model_only
    alone_waits = large_waits if arranged.large_share == 1 else _waits(alone.large, rate)
    embedded = None if cache is None else _waits(cache.embedder, rate)
    whole = _cascade_totals(arranged, large_waits, small_waits, embedded)
    before = _cascade_totals(alone, alone_waits, None, None)
    return make_from(
        CascadeAnswer,
        asked,
        model=model,
        escalate_by=None if small is None else asked.escalate_by,
        requests_per_s=rate,
        input_len=traffic.input_len or 1,
        output_len=traffic.output_len or 1,
        tiers=_tiers(model, asked, arranged, large_waits, small_waits, embedded),
        cascade=whole,
        alone=before,
        saved_fraction=1 - whole.usd_per_month.value / before.usd_per_month.value,
        break_even=BreakEvenRates(
            escalation_rate_at_scale=None if small is None else arranged.break_even_escalation(),
            escalation_rate_here=None if small is None else arranged.break_even_escalation_here(),
            cache_hit_rate_at_scale=None if cache is None else arranged.break_even_hits(),
            cache_hit_rate_here=None if cache is None else arranged.break_even_hits_here(),
        ),
        rates=() if small is None else tuple(_bill_at_rate(arranged, each) for each in SHOWN_RATES),
        warnings=(
            *dict.fromkeys(_notes(asked, traffic, arranged)),
            *dict.fromkeys(
                waits.warning
                for waits in (small_waits, large_waits, alone_waits, embedded)
                if waits is not None and waits.warning is not None
            ),
        ),
    )


def _tiers(
    model: str,
    asked: Cascade,
    arranged: Arrangement,
    large: AnswerTimes | None,
    small: AnswerTimes | None,
    embedder: AnswerTimes | None,
) -> tuple[Tier, ...]:
    cache, rate = arranged.cache, arranged.requests_per_s
    tiers = []
    if cache is not None:
        tiers.append(_cache_tier(arranged, cache))
        if cache.embedder is not None:
            tiers.append(_tier("embedding", str(asked.embedding_model), cache.embedder, 1.0, rate, embedder))
    if arranged.small is not None:
        tiers.append(_tier("small", str(asked.small), arranged.small, arranged.small_share, rate, small))
    return (*tiers, _tier("large", model, arranged.large, arranged.large_share, rate, large))


def _waits(side: Side | None, requests_per_s: float) -> AnswerTimes | None:
    return None if side is None or not requests_per_s else side.waits(requests_per_s)


def _tier(name: str, model: str, side: Side, share: float, rate: float, waits: AnswerTimes | None) -> Tier:
    reaching = share * rate
    hourly = side.usd_per_hour(reaching)
    return Tier(
        tier=name,
        model=model,
        place=side.place,
        gpu=side.resolved.profile.name if isinstance(side, OwnSide) else None,
        share=share,
        requests_per_s=reaching,
        engines=side.engines(reaching),
        billed_gpus=side.billed_gpus(reaching),
        utilization=side.utilization(reaching),
        usd_per_request=hourly.scale(1 / reaching / SECONDS_PER_HOUR) if reaching else None,
        usd_per_request_at_scale=side.usd_at_scale,
        usd_per_month=per_month(hourly),
        mean_ttft_s=None if waits is None else _mean(waits.ttft),
        mean_e2e_s=None if waits is None else _mean(waits.e2e),
    )


def _mean(stage: Stage) -> Quantity:
    return mixture_latency([RequestPath(share=1.0, stages=(stage,))], "mean")


def _cache_tier(arranged: Arrangement, cache: Cache) -> Tier:
    rate = arranged.requests_per_s
    usd = cache.lookup_usd + cache.store_usd_per_hour / (rate * SECONDS_PER_HOUR)
    known, wait = Quantity(value=usd, low=usd, high=usd), Quantity(value=cache.lookup_s)
    return Tier(
        tier="semantic cache",
        model="store" if cache.embedder is not None else "embedding and store",
        place="as priced",
        gpu=None,
        share=1.0,
        requests_per_s=rate,
        engines=None,
        billed_gpus=None,
        utilization=None,
        usd_per_request=known,
        usd_per_request_at_scale=known,
        usd_per_month=per_month(known.scale(rate * SECONDS_PER_HOUR)),
        mean_ttft_s=wait,
        mean_e2e_s=wait,
    )


def _cascade_totals(
    arranged: Arrangement, large: AnswerTimes | None, small: AnswerTimes | None, embedder: AnswerTimes | None
) -> CascadeTotals:
    rate, hourly = arranged.requests_per_s, arranged.usd_per_hour()
    ways = arranged.paths(large, small, embedder)
    first, last = ([], []) if ways is None else ways
    return CascadeTotals(
        billed_gpus=sum(side.billed_gpus(share * rate) or 0 for side, share in arranged.sides),
        usd_per_month=per_month(hourly),
        usd_per_request=hourly.scale(1 / rate / SECONDS_PER_HOUR),
        usd_per_request_at_scale=arranged.usd_at_scale(),
        mean_ttft_s=mixture_latency(first, "mean") if first else None,
        p95_ttft_s=mixture_latency(first, "p95") if first else None,
        mean_e2e_s=mixture_latency(last, "mean") if last else None,
        p95_e2e_s=mixture_latency(last, "p95") if last else None,
    )


def _bill_at_rate(arranged: Arrangement, escalation_rate: float) -> RateBill:
    other = arranged.with_escalation(escalation_rate)
    return RateBill(
        escalation_rate=escalation_rate,
        usd_per_request_at_scale=other.usd_at_scale(),
        usd_per_month=per_month(other.usd_per_hour()),
    )


def _notes(asked: Cascade, traffic: Traffic, arranged: Arrangement) -> Iterator[str]:
    yield from filled_notes(traffic)
    rates = [name for name in ("escalation_rate", "cache_hit_rate") if getattr(asked, name) is not None]
    yield f"{' and '.join(rates).replace('_', ' ')}: your input, not predicted; measure the quality of the answers."
    if arranged.cache is not None:
        if "cache_lookup_s" not in asked.model_fields_set:
            yield f"A cache lookup is assumed to take {LOOKUP_S:g} s; set --cache-lookup-s to your own value."
        if "embedding_price" not in asked.model_fields_set and asked.embedding_model is None:
            yield (
                f"An embedding costs {usd_text(EMBEDDING_USD_PER_MILLION, 'g')} per 1M tokens, the price of OpenAI's "
                "text-embedding-3-small in 2026-11; set --embedding-price to your own."
            )
    if arranged.small is not None and arranged.by_answer:
        yield (
            "The small model's answer is shown only after it is judged, so its TTFT equals its E2E. --escalate-by "
            "prompt decides before the answer."
        )
    embedder = None if arranged.cache is None else arranged.cache.embedder
    for side, flag in ((arranged.large, "--api"), (arranged.small, "--small-api"), (embedder, "")):
        if isinstance(side, HostedSide):
            yield f"{side.price.model}: {side.price.described}"
            if side.ttft_s is None:
                yield f"The latency of an API cannot be predicted: set {flag}-ttft-s and {flag}-tpot-s."
        elif isinstance(side, OwnSide):
            yield side.price.quote
            yield from side.resolved.notes
    if any(isinstance(side, OwnSide) for side in (arranged.large, arranged.small)):
        yield (
            f"Each engine gets at most {asked.target_utilization:.0%} of its full load, with random arrivals; "
            "`capacity plan` sizes a deployment for a service level."
        )


def run_cascade(asked: Cascade, traffic: Traffic, arranged: Arrangement) -> CascadeRun:
    """Simulate the cascade as one deployment. Raises InvalidInput if a tier cannot be simulated, such as an API."""
    pools, service = _pools_and_router(asked, traffic, arranged)
    requests = make_workload(traffic, min(pool.max_model_len for pool in pools))
    run = run_service(pools, service, requests, seed=traffic.seed)
    verdict = verdict_on(run, pools, service, requests)
    found = predicted_ms(pools, requests, traffic, run, verdict)
    if not found or run.cascade is None:
        raise InvalidInput("no request completed, so the cascade cannot be evaluated: increase --num-prompts")
    times = {
        f"{statistic}_{name}_s": found[f"{statistic}_{metric}_ms"].scale(1e-3)
        for statistic in ("mean", "p95")
        for name, metric in (("ttft", "ttft"), ("e2e", "e2el"))
    }
    return CascadeRun(
        requests=len(requests),
        completed=int(run.records.completed.sum()),
        escalated=run.cascade.answered[-1],
        unseen_tokens=run.cascade.unseen_tokens,
        verdict=None if verdict is None else verdict.verdict,
        **times,
    )


def _pools_and_router(
    asked: Cascade, traffic: Traffic, arranged: Arrangement
) -> tuple[list[ResolvedPool], Service]:
    """Return the pools of both models, with the engine counts of the arrangement, and their router."""
    if asked.small is None:
        raise InvalidInput("--simulate needs a small model: add --small, or leave --simulate out")
    if asked.embedding_model is not None:
        raise InvalidInput("--simulate does not support --embedding-model: set --cache-lookup-s instead")
    if asked.small_output_len not in (None, traffic.output_len):
        raise InvalidInput("--simulate uses one output length: leave --small-output-len out")
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
        raise InvalidInput("--simulate needs your own engines, because an API's queues are unknown")
    count = max(side.engines(requests_per_s), 1)
    fields = {"replicas": count, "route_escalation_rate": escalation_rate}
    return replace(side.resolved, pool=side.resolved.pool.model_copy(update=fields))
