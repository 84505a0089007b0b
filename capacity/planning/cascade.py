"""What is asked first, and what that saves: a semantic cache, a small model, or both before a large one.

Hit and escalation rates are the user's, as quality hangs on them: nothing here says which answers are good enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from capacity.answers.phases import check_length
from capacity.answers.records import Quantity
from capacity.base.checked import checked
from capacity.base.errors import InvalidInput
from capacity.base.keywords import documented, split
from capacity.base.record import AnswerRecord
from capacity.deployment import ESTIMATE_TRAFFIC, Cascade, Cost, Pool, Traffic, build, deployment_of
from capacity.deployment.cascade import EMBEDDING_USD_PER_MILLION, LOOKUP_S
from capacity.deployment.reading import refuse_idle
from capacity.deployment.use_cases import filled_notes
from capacity.hardware.pricing import HOURS_PER_MONTH, SECONDS_PER_HOUR, cautions_of, price_of
from capacity.model import ModelSpec
from capacity.planning.arrangement import Arrangement, Cache, per_month
from capacity.planning.hosted_prices import ApiPrice, find_api_prices, read_api_prices
from capacity.planning.mixture import Way, mixed
from capacity.planning.tiers import HostedSide, OwnSide, Side, Waits
from capacity.pool.resolve import ResolvedPool, resolve

NO_RATE = (
    "batch_size",
    "concurrency",
    "burstiness",
)  # a rate is thinned on its way, and Poisson's stays Poisson's
CASCADE_TRAFFIC = tuple(name for name in ESTIMATE_TRAFFIC if name not in NO_RATE)
OF_PREFIXES = ("enable_prefix_caching", "kv_offloading_size")
SHOWN_RATES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One place that requests reach. `share` is of all requests; the $ of a request are of those that reach it.

    `usd_per_request` is its bill here over them, `usd_per_request_at_scale` that of engines at their target. Of an API
    engines, GPUs and utilization are None; latencies are where nobody said them.
    """

    tier: str
    model: str
    place: str
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


@documented(Pool, Traffic, Cost, Cascade)
@checked
def cascade(
    model: str | Path | ModelSpec,
    *,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> CascadeAnswer:
    """$ and latency of a semantic cache (`cache_hit_rate`), a small model (`small`, `escalation_rate`), or both before
    `model`, against `model` alone, and the rates at which they break even.

    Each model is on GPUs (the pool's; `small_gpu`) or of an API (`api`, `small_api`, or their prices). `request_rate`
    or `requests_per_day` says the load. Raises DoesNotFit; InvalidInput for what cannot be asked.
    """
    pool, traffic_fields, prices, own = split(options, Pool, Traffic, Cost, Cascade)
    asked: Cascade = build(Cascade, own)
    refuse_idle("cascade", (asked,), own)
    _check_asked(asked)
    if unread := next((name for name in traffic_fields if name not in CASCADE_TRAFFIC), None):
        raise InvalidInput(
            f"{unread} is not read here: a cascade thins the arrivals of a rate; give --request-rate"
        )
    if unread := next((name for name in OF_PREFIXES if name in pool), None):
        raise InvalidInput(
            f"{unread} changes nothing here: no request shares a prefix with another; leave it out, or ask "
            "`capacity simulate`"
        )
    traffic, cost = build(Traffic, traffic_fields), build(Cost, prices)
    if (large_price := _api_price(str(model), asked, "api")) is None:
        if "gpu" not in pool:
            raise InvalidInput("no GPU: give --gpu NAME (`capacity gpus` lists them), or --api PROVIDER")
        deployment = deployment_of(model, pool=pool, traffic=traffic_fields, cost=prices, question="cascade")
        traffic = deployment.traffic
    elif pool:
        raise InvalidInput(
            f"{next(iter(pool))!r} is of engines on GPUs, and {model} is an API's here: leave it out (small_gpu is the "
            "small model's)"
        )
    _check_load(traffic)
    sides = _Sides(asked, traffic, cost, profiles, download)
    large = sides.hosted(large_price, "api") if large_price else sides.own(model, build(Pool, pool))
    small = sides.small(large)
    arrangement = _arranged(asked, traffic, large, small)
    return _answer(str(getattr(model, "name", model)), asked, traffic, arrangement)


def _check_asked(asked: Cascade) -> None:
    if asked.small is None and asked.cache_hit_rate is None:
        raise InvalidInput(
            "nothing is asked first: give --small MODEL with its --escalation-rate, or a --cache-hit-rate"
        )
    if asked.small is not None and asked.escalation_rate is None:
        raise InvalidInput(
            f"--small {asked.small} needs an --escalation-rate, the share that goes on: yours to measure, as quality "
            "hangs on it; try 0.3, and the break-even says how far it may go"
        )


def _check_load(traffic: Traffic) -> None:
    if traffic.request_rate is None or traffic.input_len is None or traffic.output_len is None:
        raise InvalidInput(
            "no load: give --input-len, --output-len and a --request-rate or --requests-per-day, which says how many "
            "engines each model takes"
        )
    if traffic.request_rate == float("inf"):
        raise InvalidInput("--request-rate inf keeps no number of engines busy: give a finite one")


def _api_price(model: str, asked: Cascade, name: str) -> ApiPrice | None:
    """The API price of a side: given, or of a named provider; None of GPUs. Raises InvalidInput."""
    provider, given_in, given_out = (
        getattr(asked, field) for field in (name, f"{name}_input_price", f"{name}_output_price")
    )
    flag = "--" + name.replace("_", "-")
    if given_in is None and given_out is None:
        if provider is None:
            return None
        table = None if asked.api_price_file is None else read_api_prices(asked.api_price_file)
        found = find_api_prices(model, provider, table=table)
        if len(found) != 1:
            raise InvalidInput(
                f"{flag} {provider} names {len(found)} prices of {model}: name one provider, or give "
                f"{flag}-input-price and {flag}-output-price"
            )
        return found[0]
    if given_in is None or given_out is None or provider is not None:
        raise InvalidInput(
            f"an API has two prices: give {flag}-input-price and {flag}-output-price, or {flag} PROVIDER alone"
        )
    return ApiPrice(
        provider="user",
        model=model,
        usd_per_million_input=given_in,
        usd_per_million_output=given_out,
        cached_multiple=1.0,
        cache_write_multiple=1.0,
        date="",
        source=f"given with {flag}-input-price and {flag}-output-price",
    )


@dataclass(frozen=True, slots=True)
class _Sides:
    """Sides of a cascade, made of what was asked."""

    asked: Cascade
    traffic: Traffic
    cost: Cost
    profiles: str | Path | None
    download: bool

    def hosted(self, price: ApiPrice, name: str) -> HostedSide:
        """An API by the name of its field."""
        ttft_s, tpot_s = getattr(self.asked, f"{name}_ttft_s"), getattr(self.asked, f"{name}_tpot_s")
        output = self._output_len(name != "api")
        return HostedSide(price, float(self.traffic.input_len or 1), float(output), ttft_s, tpot_s)

    def own(self, model: str | Path | ModelSpec, pool: Pool, *, small: bool = False) -> OwnSide:
        """Engines of a pool. Raises DoesNotFit; InvalidInput without a price, and for lengths that do not fit."""
        resolved = resolve(model, pool, profiles=self.profiles, download=self.download)
        if small and pool.tensor_parallel_size == 1 and self.asked.small_tensor_parallel_size is None:
            resolved = _fewest(resolved)
        resolved.memory.require_fit()
        price = price_of(resolved.profile.name, self.cost)
        if price is None:
            raise InvalidInput(
                "no price: give --price-tier on-demand (reserved-1y, spot, owned, ...), or --price 2.50 for $ per "
                "GPU-hour"
            )
        output = self._output_len(small)
        check_length(resolved, (self.traffic.input_len or 1) + output)
        traffic = build(Traffic, {**self.traffic.model_dump(exclude_unset=True), "output_len": output})
        return OwnSide(resolved, price, traffic, self.asked.target_utilization)

    def small(self, large: Side) -> Side | None:
        """The side of the small model; None without one."""
        asked = self.asked
        if asked.small is None:
            return None
        if (price := _api_price(asked.small, asked, "small_api")) is not None:
            return self.hosted(price, "small_api")
        like = large.resolved.pool if isinstance(large, OwnSide) else None
        gpu = asked.small_gpu or (None if like is None else like.gpu)
        if gpu is None:
            raise InvalidInput(f"no GPU for {asked.small}: give --small-gpu, or --small-api PROVIDER")
        fields: dict[str, object] = {"gpu": gpu} if like is None else {"gpu": gpu, "engine": like.engine}
        given = (
            ("tensor_parallel_size", asked.small_tensor_parallel_size),
            ("quantization", asked.small_quantization),
        )
        fields |= {name: value for name, value in given if value is not None}
        return self.own(asked.small, build(Pool, fields), small=True)

    def _output_len(self, small: bool) -> int:
        return (small and self.asked.small_output_len) or self.traffic.output_len or 1


def _fewest(resolved: ResolvedPool) -> ResolvedPool:
    """The same on the fewest GPUs that hold it; itself where none do."""
    size = None if resolved.memory.fits else resolved.smallest_tensor_parallel_size
    return resolved if size is None else resolved.changed({"tensor_parallel_size": size})


def _arranged(asked: Cascade, traffic: Traffic, large: Side, small: Side | None) -> Arrangement:
    cache = None
    if asked.cache_hit_rate is not None:
        cache = Cache(
            hit_rate=asked.cache_hit_rate,
            lookup_s=asked.cache_lookup_s,
            lookup_usd=asked.embedding_price * (traffic.input_len or 1) / 1e6,
            store_usd_per_hour=asked.cache_store_usd_per_month / HOURS_PER_MONTH,
        )
    return Arrangement(
        requests_per_s=traffic.request_rate or 1.0,
        large=large,
        small=small,
        cache=cache,
        escalation_rate=1.0 if asked.escalation_rate is None else asked.escalation_rate,
        by_answer=asked.escalate_by == "answer",
        judge_s=asked.judge_s,
        judge_usd=asked.judge_usd,
    )


def _answer(model: str, asked: Cascade, traffic: Traffic, arranged: Arrangement) -> CascadeAnswer:
    small, cache, rate = arranged.small, arranged.cache, arranged.requests_per_s
    small_waits = _waits(small, arranged.small_share * rate)
    large_waits = _waits(arranged.large, arranged.large_share * rate)
    alone = arranged.alone
    alone_waits = large_waits if arranged.large_share == 1 else _waits(alone.large, rate)
    tiers = []
    if cache is not None:
        tiers.append(_cache_tier(arranged, cache))
    if small is not None:
        tiers.append(_tier("small", str(asked.small), small, arranged.small_share, rate, small_waits))
    tiers.append(_tier("large", model, arranged.large, arranged.large_share, rate, large_waits))
    whole, before = _whole(arranged, large_waits, small_waits), _whole(alone, alone_waits, None)
    return CascadeAnswer(
        model=model,
        small=asked.small,
        escalate_by=None if small is None else asked.escalate_by,
        escalation_rate=asked.escalation_rate,
        cache_hit_rate=asked.cache_hit_rate,
        requests_per_s=rate,
        input_len=traffic.input_len or 1,
        output_len=traffic.output_len or 1,
        target_utilization=asked.target_utilization,
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
        warnings=tuple(dict.fromkeys(_notes(asked, traffic, arranged))),
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
        model="embedding and store",
        place="as priced",
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


def _whole(arranged: Arrangement, large: Waits | None, small: Waits | None) -> Whole:
    rate, hourly, ways = arranged.requests_per_s, arranged.usd_per_hour(), arranged.ways(large, small)
    gpus = arranged.large.billed_gpus(arranged.large_share * rate) or 0
    if arranged.small is not None:
        gpus += arranged.small.billed_gpus(arranged.small_share * rate) or 0
    first, last = ([], []) if ways is None else ways
    return Whole(
        billed_gpus=gpus,
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
        if "embedding_price" not in asked.model_fields_set:
            yield (
                f"an embedding costs ${EMBEDDING_USD_PER_MILLION:g} per 1M tokens, OpenAI's text-embedding-3-small, "
                "read 2026-11 (--embedding-price is yours)"
            )
    if arranged.small is not None and arranged.by_answer:
        yield (
            "an answer that is judged is shown when that is done: its first token comes with its last; "
            "--escalate-by prompt decides before"
        )
    for side, flag in ((arranged.large, "--api"), (arranged.small, "--small-api")):
        if isinstance(side, HostedSide):
            yield f"{side.price.model}: {side.price.described}"
            if side.ttft_s is None:
                yield (
                    f"no latency: nobody can compute how fast that API is; {flag}-ttft-s and {flag}-tpot-s are what "
                    "you measured"
                )
        elif isinstance(side, OwnSide):
            yield from cautions_of(side.price)
            yield from side.resolved.notes
    if any(isinstance(side, OwnSide) for side in (arranged.large, arranged.small)):
        yield (
            f"engines are given {asked.target_utilization:.0%} of their full load, arrivals dealt at random: "
            "`capacity plan` sizes each to a service level"
        )
