"""What a cascade answers: every place that requests reach, the whole beside the large model, where it breaks even.

The tiers of the answer are simulated apart, each at its share of the arrivals, and their times are added as if they
were independent. In `run_together` they are one deployment, its engines in two pools: every request goes its way, and
comes to the large model when the small one has answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from capacity.answers.deployment_run import run_service, verdict_on
from capacity.answers.engine_setup import make_workload
from capacity.answers.records import Quantity
from capacity.answers.run_intervals import predicted_ms
from capacity.base.errors import InvalidInput
from capacity.base.record import AnswerRecord, make_from
from capacity.deployment import Cascade, Service, Traffic
from capacity.deployment.cascade_fields import EMBEDDING_USD_PER_MILLION, LOOKUP_S
from capacity.deployment.use_cases import filled_notes
from capacity.hardware.pricing import SECONDS_PER_HOUR
from capacity.planning.cascades.arrangement import Arrangement, Cache, per_month
from capacity.planning.cascades.mixture import Way, mixed
from capacity.planning.cascades.tiers import HostedSide, OwnSide, Side, Waits
from capacity.pool.resolve import ResolvedPool

SHOWN_RATES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One place that requests reach. `share` is of all requests; the $ of a request are of those that reach it.

    `usd_per_request` is its bill here over them, `usd_per_request_at_scale` that of engines at their target. Of an API
    the GPU, engines, GPUs and utilization are None; latencies are where nobody said them.
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
class Whole:
    """All requests together. `usd_per_request` is the bill here over them, in whole engines."""

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
    """Up to which escalation rate, and from which hit rate, it pays: where engines are many, and here in whole ones.

    None: at no rate; or, of a rate that there is none of, not asked.
    """

    escalation_rate_at_scale: Quantity | None
    escalation_rate_here: float | None
    cache_hit_rate_at_scale: Quantity | None
    cache_hit_rate_here: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRate:
    """The bill at another escalation rate."""

    escalation_rate: float
    usd_per_request_at_scale: Quantity
    usd_per_month: Quantity


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeAnswer(AnswerRecord):
    """A cascade beside its large model alone, at the same requests. Rates that there is none of are None."""

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
    cascade: Whole
    alone: Whole
    saved_fraction: float
    break_even: BreakEvenRates
    rates: tuple[AtRate, ...]
    warnings: tuple[str, ...]
    together: Together | None = None  # the same simulated as one deployment, where that was asked for


def cascade_answer(model: str, asked: Cascade, traffic: Traffic, arranged: Arrangement) -> CascadeAnswer:
    """The answer for an arrangement, with its simulations."""
    small, cache, rate = arranged.small, arranged.cache, arranged.requests_per_s
    small_waits = _waits(small, arranged.small_share * rate)
    large_waits = _waits(arranged.large, arranged.large_share * rate)
    alone = arranged.alone
    alone_waits = large_waits if arranged.large_share == 1 else _waits(alone.large, rate)
    tiers = []
    embedded = None if cache is None else _waits(cache.embedder, rate)
    if cache is not None:
        tiers.append(_cache_tier(arranged, cache))
        if cache.embedder is not None:
            tiers.append(_tier("embedding", str(asked.embedding_model), cache.embedder, 1.0, rate, embedded))
    if small is not None:
        tiers.append(_tier("small", str(asked.small), small, arranged.small_share, rate, small_waits))
    tiers.append(_tier("large", model, arranged.large, arranged.large_share, rate, large_waits))
    whole = _whole(arranged, large_waits, small_waits, embedded)
    before = _whole(alone, alone_waits, None, None)
    return make_from(
        CascadeAnswer,
        asked,
        model=model,
        escalate_by=None if small is None else asked.escalate_by,
        requests_per_s=rate,
        input_len=traffic.input_len or 1,
        output_len=traffic.output_len or 1,
        tiers=tuple(tiers),
        cascade=whole,
        alone=before,
        saved_fraction=1 - whole.usd_per_month.value / before.usd_per_month.value,
        break_even=BreakEvenRates(
            escalation_rate_at_scale=None if small is None else arranged.break_even_escalation(),
            escalation_rate_here=None if small is None else arranged.break_even_escalation_here(),
            cache_hit_rate_at_scale=None if cache is None else arranged.break_even_hits(),
            cache_hit_rate_here=None if cache is None else arranged.break_even_hits_here(),
        ),
        rates=() if small is None else tuple(_at_rate(arranged, each) for each in SHOWN_RATES),
        warnings=(
            *dict.fromkeys(_notes(asked, traffic, arranged)),
            *dict.fromkeys(
                waits.warning
                for waits in (small_waits, large_waits, alone_waits, embedded)
                if waits is not None and waits.warning is not None
            ),
        ),
    )


def _waits(side: Side | None, requests_per_s: float) -> Waits | None:
    return None if side is None or not requests_per_s else side.waits(requests_per_s)


def _tier(name: str, model: str, side: Side, share: float, rate: float, waits: Waits | None) -> Tier:
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
        usd_per_request=hourly.scaled(1 / reaching / SECONDS_PER_HOUR) if reaching else None,
        usd_per_request_at_scale=side.usd_at_scale,
        usd_per_month=per_month(hourly),
        mean_ttft_s=None if waits is None else mixed([Way(share=1.0, stages=(waits.ttft,))], "mean"),
        mean_e2e_s=None if waits is None else mixed([Way(share=1.0, stages=(waits.e2e,))], "mean"),
    )


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
        usd_per_month=per_month(known.scaled(rate * SECONDS_PER_HOUR)),
        mean_ttft_s=wait,
        mean_e2e_s=wait,
    )


def _whole(arranged: Arrangement, large: Waits | None, small: Waits | None, embedder: Waits | None) -> Whole:
    rate, hourly = arranged.requests_per_s, arranged.usd_per_hour()
    ways = arranged.ways(large, small, embedder)
    first, last = ([], []) if ways is None else ways
    return Whole(
        billed_gpus=sum(side.billed_gpus(share * rate) or 0 for side, share in arranged.sides),
        usd_per_month=per_month(hourly),
        usd_per_request=hourly.scaled(1 / rate / SECONDS_PER_HOUR),
        usd_per_request_at_scale=arranged.usd_at_scale(),
        mean_ttft_s=mixed(first, "mean") if first else None,
        p95_ttft_s=mixed(first, "p95") if first else None,
        mean_e2e_s=mixed(last, "mean") if last else None,
        p95_e2e_s=mixed(last, "p95") if last else None,
    )


def _at_rate(arranged: Arrangement, escalation_rate: float) -> AtRate:
    other = arranged.with_escalation(escalation_rate)
    return AtRate(
        escalation_rate=escalation_rate,
        usd_per_request_at_scale=other.usd_at_scale(),
        usd_per_month=per_month(other.usd_per_hour()),
    )


def _notes(asked: Cascade, traffic: Traffic, arranged: Arrangement) -> Iterator[str]:
    yield from filled_notes(traffic)
    rates = [name for name in ("escalation_rate", "cache_hit_rate") if getattr(asked, name) is not None]
    yield f"{' and '.join(rates).replace('_', ' ')}: as given; whether the answers are good enough is yours to measure"
    if arranged.cache is not None:
        if "cache_lookup_s" not in asked.model_fields_set:
            yield f"a lookup takes {LOOKUP_S:g} s: assumed (--cache-lookup-s is yours)"
        if "embedding_price" not in asked.model_fields_set and asked.embedding_model is None:
            yield (
                f"an embedding costs ${EMBEDDING_USD_PER_MILLION:g} per 1M tokens, OpenAI's text-embedding-3-small, "
                "read 2026-11 (--embedding-price is yours)"
            )
    if arranged.small is not None and arranged.by_answer:
        yield (
            "an answer that is judged is shown when that is done: its first token comes with its last; "
            "--escalate-by prompt decides before"
        )
    embedder = None if arranged.cache is None else arranged.cache.embedder
    for side, flag in ((arranged.large, "--api"), (arranged.small, "--small-api"), (embedder, "")):
        if isinstance(side, HostedSide):
            yield f"{side.price.model}: {side.price.described}"
            if side.ttft_s is None:
                yield (
                    f"no latency: nobody can compute how fast that API is; {flag}-ttft-s and {flag}-tpot-s are what "
                    "you measured"
                )
        elif isinstance(side, OwnSide):
            yield side.price.quoted
            yield from side.resolved.notes
    if any(isinstance(side, OwnSide) for side in (arranged.large, arranged.small)):
        yield (
            f"engines are given {asked.target_utilization:.0%} of their full load, arrivals dealt at random: "
            "`capacity plan` sizes each to a service level"
        )


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
    count = max(side.engines(requests_per_s), 1)
    fields = {"replicas": count, "route_escalation_rate": escalation_rate}
    return replace(side.resolved, pool=side.resolved.pool.model_copy(update=fields))
