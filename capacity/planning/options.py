"""From the axes to the options that are worth a simulation: exact exclusion, then bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from capacity.deployment import Pool
from capacity.errors import CapacityError, InvalidInput
from capacity.hardware import load_profile, profile_names
from capacity.planning.arena import Arena
from capacity.planning.bounds import Bound, Load, bound
from capacity.planning.quality import QualityChange, quality_change
from capacity.planning.records import Kind, Rejection
from capacity.planning.space import Candidate, Search, pools
from capacity.planning.step_error import ScaledSteps, factors_at
from capacity.planning.trial import most_replicas
from capacity.pricing import Price, find_price, usd_per_hour
from capacity.resolve import ResolvedPool
from capacity.schedulers import POLICIES
from capacity.serving import policy_name

ROUND_TOKENS = 1024  # a context length that is derived from the traffic is rounded up to this


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An engine that might be an answer, with the replicas that are still open (`least` to `most`)."""

    pool: Pool
    price: Price | None
    watts_per_gpu: float
    quality: QualityChange
    bound: Bound
    least: int
    most: int
    search: Search

    @property
    def family(self) -> tuple[str, str | None]:
        """Answers are given for each GPU and weight format."""
        return (self.pool.gpu, self.pool.quantization)

    @property
    def promise(self) -> float:
        """GPU time of a request at best: what it would cost, up to the price."""
        return self.bound.work_s * self.objective(1)

    def billed_gpus(self, replicas: int) -> int:
        """GPUs of whole instances."""
        instance = self.price.gpus_per_instance if self.price else 1
        return math.ceil(self.pool.num_gpus * replicas / instance) * instance

    def usd_per_hour(self, replicas: int) -> float | None:
        """$ per hour of whole instances; None without a price."""
        return None if self.price is None else usd_per_hour(self.price, self.billed_gpus(replicas))

    def watts(self, replicas: int) -> float:
        """All in, at full use."""
        return self.watts_per_gpu * self.pool.num_gpus * replicas

    def objective(self, replicas: int) -> float:
        """What is minimised, as far as it is known without simulating; rises with replicas."""
        match self.search.objective:
            case "cost":
                found = self.usd_per_hour(replicas)
                assert found is not None
                return found
            case "energy":
                return self.watts(replicas)
            case _:
                return float(self.pool.num_gpus * replicas)

    def most_below(self, objective: float) -> int:
        """The most replicas, of those open, whose objective is below that; 0 where none is."""
        low, high = self.least - 1, self.most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.objective(middle) < objective else (low, middle - 1)
        return 0 if low < self.least else low

    def at(self, replicas: int) -> Candidate:
        """The candidate with so many replicas."""
        return Candidate(pool=self.pool, replicas=replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The options left after exclusion and bounds, and everything that is not among them."""

    options: tuple[Option, ...]
    rejected: tuple[Rejection, ...]
    engines: int
    points: int
    prices: tuple[Price, ...]
    least_ratio: tuple[float, Pool, str] | None  # of the bounds that exclude for good: the nearest miss


def gpu_names(search: Search, profiles: list[str]) -> tuple[str, ...]:
    """The GPUs to choose from by their profiles' names. Raises UnknownName."""
    if [name.lower() for name in search.gpus] == ["all"]:
        return tuple(name for name in profile_names(profiles) if "@" not in name)
    return tuple(dict.fromkeys(load_profile(name, profiles).name for name in search.gpus))


def survey(
    arena: Arena,
    search: Search,
    load: Load,
    *,
    gpus: tuple[str, ...],
    tier: str | None,
    provider: str | None,
    price: str | None,
) -> Survey:
    """Every engine of the space: an option, or turned down with its reason."""
    options: list[Option] = []
    rejected: list[Rejection] = []
    prices: list[Price] = []
    engines = points = 0
    nearest: tuple[float, Pool, str] | None = None
    for gpu in gpus:
        quote, unpriced = _quote(gpu, search, tier, provider, price)
        if quote is not None:
            prices.append(quote)
        for pool in pools(search, gpu, has_experts=arena.model.is_moe):
            engines += 1
            if unpriced is not None:
                rejected.append(Rejection(pool=pool, replicas=None, kind="no price", reason=unpriced))
                continue
            most = _most_replicas(pool, quote, search, arena)
            found = _consider(arena, pool, quote, search, load, most)
            if isinstance(found, Option) or found[0].kind in ("unmeetable", "limit"):
                points += most
            if isinstance(found, Option):
                options.append(found)
                continue
            rejected.append(found[0])
            if found[1] is not None and (nearest is None or found[1] < nearest[0]):
                nearest = (found[1], found[0].pool, found[0].reason)
    return Survey(
        options=tuple(options),
        rejected=tuple(rejected),
        engines=engines,
        points=points,
        prices=tuple(prices),
        least_ratio=nearest,
    )


def _quote(
    gpu: str, search: Search, tier: str | None, provider: str | None, price: str | None
) -> tuple[Price | None, str | None]:
    """The price of a GPU-hour, or why there is none although one is needed."""
    try:
        quote = find_price(gpu, tier=tier, provider=provider, override=price)
    except InvalidInput as error:
        needed = search.objective == "cost" or search.budget is not None
        return None, str(error) if needed else None
    return quote, None


def _most_replicas(pool: Pool, quote: Price | None, search: Search, arena: Arena) -> int:
    """What GPUs, money and the traffic allow; may be 0."""
    most = min(search.max_gpus // pool.num_gpus, min(most_replicas(w) for w in arena.workloads))
    if search.budget is not None and quote is not None:
        instance = quote.gpus_per_instance
        affordable = (
            int(search.budget / quote.usd_per_gpu_hour // instance) * instance
            if quote.usd_per_gpu_hour
            else most
        )
        most = min(most, affordable // pool.num_gpus)
    return most


def _consider(
    arena: Arena, pool: Pool, quote: Price | None, search: Search, load: Load, most: int
) -> Option | tuple[Rejection, float | None]:
    """An option; or a rejection, with the ratio of value to limit where a bound made it."""

    def no(kind: Kind, reason: str, ratio: float | None = None) -> tuple[Rejection, float | None]:
        return Rejection(pool=pool, replicas=None, kind=kind, reason=reason), ratio

    try:
        pool, resolved = _with_context(arena, pool, load)
        quality = quality_change(resolved.scheme, arena.model.checkpoint, resolved.kv_cache_dtype)
        if not quality.within(search.max_quality_loss):
            return no("quality", _quality_reason(quality))
        plan = resolved.memory
        if not plan.fits:
            return no("does not fit", plan.reason or "does not fit")
        if policy_name(resolved) not in POLICIES:
            return no("impossible", f"the scheduler of {resolved.engine.label} is not simulated")
        if resolved.concurrent_requests(load.longest_request_tokens) < 1:
            return no(
                "does not fit", f"one request of {load.longest_request_tokens:,} tokens exceeds the KV cache"
            )
        steps = ScaledSteps(resolved.step_model, factors_at(resolved.step_model, search.confidence))
    except CapacityError as error:
        return no("impossible", str(error))
    found = bound(resolved, steps.step_seconds, load, arena.goal)
    if found.reason is not None:
        return no("unmeetable", found.reason, found.ratio)
    if most < 1:
        return no("limit", f"one replica has {pool.num_gpus} GPUs: {_limits(search)}")
    if found.min_replicas > most:
        gpus = found.min_replicas * pool.num_gpus
        rate = load.requests / max(load.span_s, 1e-9)
        return no(
            "limit",
            f"needs at least {found.min_replicas} replicas ({gpus} GPUs) for {rate:.3g} requests/s; "
            f"{most} are allowed by {_limits(search)}",
        )
    return Option(
        pool=pool,
        price=quote,
        watts_per_gpu=resolved.profile.system_watts_per_gpu,
        quality=quality,
        bound=found,
        least=found.min_replicas,
        most=most,
        search=search,
    )


def _limits(search: Search) -> str:
    budget = "" if search.budget is None else f" and --budget {search.budget:g}"
    return f"--max-gpus {search.max_gpus}{budget}"


def _quality_reason(quality: QualityChange) -> str:
    if quality.worst_loss_fraction is None:
        return f"{quality.what}: its loss is unknown"
    return f"loses up to {quality.worst_loss_fraction:.1%} of task scores ({quality.source})"


def _with_context(arena: Arena, pool: Pool, load: Load) -> tuple[Pool, ResolvedPool]:
    """The pool as asked for; where the model's full context does not fit but the traffic's does, with the latter."""
    resolved = arena.resolved(pool)
    shorter = math.ceil(load.longest_request_tokens / ROUND_TOKENS) * ROUND_TOKENS
    if pool.max_model_len is not None or resolved.memory.fits or shorter >= resolved.max_model_len:
        return pool, resolved
    trimmed = pool.model_copy(update={"max_model_len": shorter})
    retried = arena.resolved(trimmed)
    return (trimmed, retried) if retried.memory.fits else (pool, resolved)


def families(options: tuple[Option, ...]) -> Iterator[tuple[tuple[str, str | None], list[Option]]]:
    """Options by GPU and weight format, the most promising family and option first."""
    groups: dict[tuple[str, str | None], list[Option]] = {}
    for option in options:
        groups.setdefault(option.family, []).append(option)
    for group in groups.values():
        group.sort(key=lambda option: option.promise)
    yield from sorted(groups.items(), key=lambda item: item[1][0].promise)
