"""Prefix caching: a trace's hit rates by cache size and routing, the saved prefill, and costs at API providers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from capacity.base.checked import validate_arguments
from capacity.base.data_files import read_rows
from capacity.base.errors import InvalidInput, UnknownName
from capacity.base.flags import with_flags
from capacity.base.record import AnswerRecord
from capacity.base.spec import Spec
from capacity.deployment import Pool, build
from capacity.hardware.pricing import find_price
from capacity.model import ModelSpec
from capacity.pool.resolve import resolve
from capacity.techniques.one_pool import TensorParallel
from capacity.techniques.prefix_cache import (
    ROUTINGS,
    PrefillSavings,
    ReuseCurve,
    RoutedReuse,
    prefill_savings,
    reuse_curve,
    routed_reuse,
)
from capacity.workload import Workload, read_trace

TABLE = Path(__file__).with_name("prompt_prices.toml")
CAPACITIES = tuple(2**power for power in range(16, 27, 2))


class PromptCachePlan(Spec):
    """A provider's prices of cached prompt tokens, as multiples of its price of other input tokens."""

    name: str
    write: float = Field(ge=0)
    read: float = Field(ge=0)
    ttl_s: float = Field(ge=0)
    minimum_tokens: int = Field(0, ge=0)  # shorter prompts are not cached
    source: str = "given"
    date: str = ""
    basis: Literal["datasheet", "measured", "fitted", "assumed"] = "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheBill:
    """Cost of a trace's prompts under a provider's plan, relative to the cost without a cache (1.0)."""

    plan: str
    hit_fraction: float  # of prompt tokens, within the time to live
    relative_cost: float
    worth_it: bool
    break_even_hit_fraction: float | None  # None: no hit rate is enough
    break_even_reuses: float | None  # of one written prefix; None: no number is enough


@lru_cache(maxsize=1)
def prompt_cache_plans() -> dict[str, PromptCachePlan]:
    """Return the prompt-cache prices of all providers in the package, by plan name. Raises MalformedFile."""
    return read_rows(TABLE, PromptCachePlan)


def find_plan(name: str) -> PromptCachePlan:
    """Return the prompt-cache prices of this plan. Raises UnknownName."""
    plans = prompt_cache_plans()
    if name not in plans:
        raise UnknownName("prompt-cache plan", name, plans)
    return plans[name]


def break_even_reuses(write: float, read: float) -> float:
    """Return the number of reads of a written prefix above which caching pays off: (write - 1) / (1 - read).

    One write and n reads cost `write` + n · `read`; without a cache the same prompts cost 1 + n. For Anthropic's
    published prices of 1.25 and 0.1: 0.25/0.9 = 0.28, so the first reuse pays off; for its one-hour cache, 1/0.9 = 1.1,
    so the second one does. Raises InvalidInput if a read is not cheaper than sending the prompt again.
    """
    if not 0 <= read < 1:
        raise InvalidInput(
            f"cached reads at {read} of the input price never pay off: must be at least 0 and below 1"
        )
    return max(0.0, (write - 1) / (1 - read))


def relative_input_cost(hit_fraction: float, write: float, read: float) -> float:
    """Return the input cost relative to that without a cache: hits cost `read`, all other tokens cost `write`.

    Every token that is not a hit is written to the cache, as with automatic caching. Marking only reused prefixes is
    cheaper.
    """
    if not 0 <= hit_fraction <= 1:
        raise InvalidInput(f"hit fraction {hit_fraction}: must be from 0 to 1")
    return hit_fraction * read + (1 - hit_fraction) * write


def break_even_hit_fraction(write: float, read: float) -> float | None:
    """Return the hit fraction at which the cost equals that without a cache: (write - 1) / (write - read); None if
    caching never pays off."""
    if read >= 1 and write >= 1:
        return None
    return max(0.0, (write - 1) / (write - read))


def prompt_cache_bill(curve: ReuseCurve, plan: PromptCachePlan) -> PromptCacheBill:
    """Return the cost of a trace's prompts under `plan`, with the plan's time to live and minimum prompt length."""
    long_enough = curve.prompt_tokens >= plan.minimum_tokens
    kept = (curve.depth >= 0) & (curve.gap_s <= plan.ttl_s) & long_enough[curve.request]
    total = float(curve.prompt_tokens.sum())
    hit = float(curve.tokens[kept].sum()) / total
    uncached = float(curve.prompt_tokens[~long_enough].sum()) / total
    cached = 1 - uncached  # the share of tokens that takes part
    cost = uncached + (
        cached * relative_input_cost(hit / cached, plan.write, plan.read) if cached > 0 else 0.0
    )
    return PromptCacheBill(
        plan=plan.name,
        hit_fraction=hit,
        relative_cost=cost,
        worth_it=cost < 1,
        break_even_hit_fraction=break_even_hit_fraction(plan.write, plan.read),
        break_even_reuses=break_even_reuses(plan.write, plan.read) if plan.read < 1 else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCurveRow:
    """Prefix-cache hit rates at one cache size; `capacity_tokens` None: unlimited."""

    capacity_tokens: int | None
    block_hit_fraction: float
    token_hit_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCurve(AnswerRecord):
    """Hit rates of a trace by cache size and routing, prefill time saved on a GPU, and cost at API providers."""

    SCHEMA: ClassVar[str] = "capacity/cache-curve/v1"

    workload: str
    requests: int
    prompt_tokens: int
    block_tokens: int
    knee_tokens: int
    rows: tuple[CacheCurveRow, ...]
    routing: tuple[RoutedReuse, ...]
    savings: PrefillSavings | None
    plans: tuple[PromptCacheBill, ...]
    warnings: tuple[str, ...]


def _compute_savings(
    curve: ReuseCurve, model: str | ModelSpec, pool: Pool | Mapping[str, object], price: str | None
) -> PrefillSavings:
    served = pool if isinstance(pool, Pool) else build(Pool, pool)
    quote = None if price is None else find_price(served.gpu, override=price)
    usd = None if quote is None else quote.usd_per_gpu_hour
    return prefill_savings(resolve(model, served), curve, usd_per_gpu_hour=usd)


def _hit_rates(curve: ReuseCurve, capacity_tokens: int | None) -> CacheCurveRow:
    blocks = None if capacity_tokens is None else capacity_tokens // curve.block_tokens
    return CacheCurveRow(
        capacity_tokens=capacity_tokens,
        block_hit_fraction=curve.block_hit_fraction(blocks),
        token_hit_fraction=curve.token_hit_fraction(blocks),
    )


@validate_arguments
@with_flags
def cache_curve(
    trace: str,
    *,
    capacities_tokens: Sequence[int] = CAPACITIES,
    block_tokens: int | None = None,
    as_engine: bool = False,
    replicas: int = 1,
    model: str | None = None,
    gpu: str | None = None,
    tensor_parallel_size: TensorParallel = 1,
    price: str | None = None,
    plans: Sequence[str] | None = None,
    limit: int | None = None,
    served_by: tuple[str | ModelSpec, Pool | Mapping[str, object]] | None = None,
) -> CacheCurve:
    """Return a trace's hit rates by cache size and by routing over `replicas`, saved prefill, and API costs.

    The saved prefill is computed if `model` and `gpu` are given, or `served_by` (a model, and a Pool or its fields).

    `price`: $ per GPU-hour of that pool; `plans`: names of providers' plans (None: all). Raises InvalidInput.
    """
    if (model is None) != (gpu is None):
        raise InvalidInput("--model and --gpu belong together: give both or neither")
    if model is not None:
        if served_by is not None:
            raise InvalidInput("model and served_by both name the model: use one of them")
        fields = {"gpu": gpu, "tensor_parallel_size": tensor_parallel_size}
        served_by = (model, build(Pool, fields, flags=True))
    if price is not None and served_by is None:
        raise InvalidInput("--price is the price of a GPU: add --model and --gpu")
    workload = read_trace(trace, limit=limit)
    size = block_tokens or _block_tokens(workload)
    curve = reuse_curve(workload, size, as_engine=as_engine)
    return CacheCurve(
        workload=workload.name,
        requests=len(workload),
        prompt_tokens=int(workload.prompt_tokens.sum()),
        block_tokens=size,
        knee_tokens=curve.knee_blocks * size,
        rows=tuple(_hit_rates(curve, capacity) for capacity in (*capacities_tokens, None)),
        routing=tuple(
            routed_reuse(
                workload,
                size,
                replicas=replicas,
                routing=routing,
                capacity_blocks=capacities_tokens[-1] // size,
                as_engine=as_engine,
            )
            for routing in (ROUTINGS if replicas > 1 else ())
        ),
        savings=None if served_by is None else _compute_savings(curve, *served_by, price),
        plans=tuple(
            prompt_cache_bill(curve, find_plan(name))
            for name in (prompt_cache_plans() if plans is None else plans)
        ),
        warnings=workload.notices,
    )


def _block_tokens(workload: Workload) -> int:
    """Return the block size of the trace's hashes if the trace shows it (a power of two up to 4,096), else 16."""
    content = workload.content
    if content is None:
        return 16
    largest = int(content.segment_tokens.max())
    return largest if (largest & (largest - 1)) == 0 and largest <= 4096 else 16
