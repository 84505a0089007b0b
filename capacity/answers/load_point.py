"""Speed and price of one load on one pool of equal engines, or the reason why the pool cannot run the load."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from capacity.answers.estimate import estimate_of
from capacity.answers.phases import ONE_LOAD
from capacity.answers.records import Quantity
from capacity.base.errors import CapacityError, DoesNotFit, InvalidInput
from capacity.base.record import make_from
from capacity.deployment import Cost, Pool, Traffic
from capacity.hardware import HardwareProfile, load_profile
from capacity.hardware.pricing import SECONDS_PER_HOUR, Price, find_price_for_cost
from capacity.model import ModelSpec
from capacity.pool.drafting.token_steps import TokenSteps
from capacity.pool.parallelism import largest_tensor_parallel_size, tensor_parallel_sizes
from capacity.pool.resolve import ResolvedPool, resolve

LoadField = Literal["batch_size", "concurrency", "request_rate"]
LOAD_FIELDS: tuple[LoadField, ...] = get_args(LoadField)
Profiles = str | None
Progress = Callable[[int, int], None]
EVERY_GPU = "all"  # instead of a GPU's name
LAST_VERDICTS = ("saturated", "overloaded")  # verdicts whose points are sorted last among those that fit


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One load on one pool of equal engines: the metrics of `estimate`, in the same units.

    If the pool cannot run the load, `reason` explains why, and all metrics are None. A load without a steady state has
    the maximum throughput and no latency; `verdict` explains why. `kv_requests`: number of requests of this load that
    the KV cache holds. `seats`: number of requests that the engine runs at once (max_num_seqs). `num_gpus` counts all
    `replicas`, which share the load equally. `misses` explains why no number of replicas meets the SLOs. `price_note`
    explains why a requested price is missing.
    """

    gpu: str
    num_gpus: int | None = None
    replicas: int | None = None
    tensor_parallel_size: int | None = None
    engine: str | None = None
    weight_format: str | None = None
    kv_cache_dtype: str | None = None
    load: float
    reason: str | None = None
    verdict: str | None = None
    verdict_reason: str | None = None
    misses: str | None = None
    kv_requests: int | None = None
    seats: int | None = None
    requests_in_flight: float | None = None
    ttft_s: Quantity | None = None
    tpot_s: Quantity | None = None
    e2e_s: Quantity | None = None
    requests_per_s: Quantity | None = None
    output_tokens_per_s: Quantity | None = None
    output_tokens_per_s_per_gpu: Quantity | None = None
    output_tokens_per_s_per_user: Quantity | None = None
    usd_per_million_output_tokens: Quantity | None = None
    usd_per_thousand_requests: Quantity | None = None
    usd_per_hour: float | None = None
    usd_per_month: float | None = None
    price_note: str | None = None
    basis: str | None = None

    @property
    def fits(self) -> bool:
        """Return whether the pool can run the load."""
        return self.reason is None

    @property
    def steady(self) -> bool:
        """Return whether the load has a steady state and therefore latencies."""
        return self.ttft_s is not None


def load_of(traffic: Traffic) -> tuple[LoadField, float]:
    """Return which field sets the load (batch_size, ...), and its value. Raises InvalidInput unless exactly one does"""
    given = [(name, getattr(traffic, name)) for name in LOAD_FIELDS if getattr(traffic, name) is not None]
    if len(given) != 1:
        raise InvalidInput(ONE_LOAD)
    return given[0]


def lengths_of(traffic: Traffic) -> tuple[int, int]:
    """Return the input and output tokens of a typical request. Raises InvalidInput without them."""
    if traffic.input_len is None or traffic.output_len is None:
        raise InvalidInput("no lengths: give --input-len and --output-len in tokens")
    return traffic.input_len, traffic.output_len


def load_point(
    resolved: ResolvedPool, traffic: Traffic, price: Price | None, *, price_note: str | None = None
) -> LoadPoint:
    """Return the metrics of one load on one pool, or the reason if the load does not fit in memory.

    Raises InvalidInput for invalid options.
    """
    _, load = load_of(traffic)
    tokens = (traffic.input_len or 0) + (traffic.output_len or 0)
    ranks, pool = resolved.pool.data_parallel_size, resolved.pool
    held, seats = ranks * _requests_that_fit(resolved, tokens), ranks * resolved.max_num_seqs
    place: Mapping[str, Any] = {
        "gpu": resolved.profile.name,
        "num_gpus": pool.num_gpus,
        "replicas": 1,
        "tensor_parallel_size": pool.tensor_parallel_size,
        "engine": resolved.engine.label,
        "load": float(load),
        "kv_requests": held,
        "seats": seats,
        "price_note": price_note,
    }
    if traffic.batch_size is not None and traffic.batch_size > seats:
        return LoadPoint(**place, reason=f"a batch of {traffic.batch_size:,} exceeds max_num_seqs {seats:,}")
    try:
        answer = estimate_of(resolved, traffic, price)
    except DoesNotFit as error:
        return LoadPoint(**place, reason=str(error))
    if (bill := answer.cost) is None:
        return make_from(LoadPoint, answer, **place)
    requests_usd = answer.requests_per_s.inverse(bill.usd_per_hour / SECONDS_PER_HOUR * 1e3)
    return make_from(LoadPoint, answer, bill, **place, usd_per_thousand_requests=requests_usd)


def _requests_that_fit(resolved: ResolvedPool, tokens: int) -> int:
    try:
        return TokenSteps(resolved).concurrent_requests(tokens)
    except DoesNotFit:  # the drafter leaves no room
        return 0


def price_or_reason(gpu: str, cost: Cost) -> tuple[Price | None, str | None]:
    """Return the price of a GPU with the price options `cost`, or None and the reason why there is no price."""
    try:
        return find_price_for_cost(gpu, cost), None
    except CapacityError as error:
        return None, str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedPool:
    """A pool with the smallest tensor-parallel size that serves a load, else with the largest size that holds the
    model. `point`: the metrics at this size or, if `pool` is None, the reason."""

    pool: ResolvedPool | None
    point: LoadPoint
    refused: InvalidInput | None = None  # if this pool rejects the question itself


def sizes_to_try(pool: Pool, model: ModelSpec, profile: HardwareProfile) -> tuple[int, ...]:
    """Return the tensor-parallel sizes to try, smallest first: the given size, else all sizes within a node."""
    if "tensor_parallel_size" in pool.model_fields_set:
        return (pool.tensor_parallel_size,)
    return tensor_parallel_sizes(model, largest_tensor_parallel_size(profile))


def smallest_pool(
    model: ModelSpec, pool: Pool, traffic: Traffic, cost: Cost, *, profiles: Profiles = None
) -> SizedPool:
    """Return `pool` with the smallest tensor-parallel size within a node at which the load has a steady state, else
    with the largest size that holds the model. If `pool` sets a size, only that size is tried."""
    _, load = load_of(traffic)
    profile = load_profile(pool.gpu, [profiles] if profiles else [])
    price, price_note = price_or_reason(profile.name, cost)
    tried: LoadPoint | None = None
    # the last size if it does not hold the model, because its reason is slow to compute
    short: ResolvedPool | None = None
    held: SizedPool | None = None
    refused: InvalidInput | None = None
    for size in sizes_to_try(pool, model, profile):
        sized = pool.model_copy(update={"tensor_parallel_size": size})
        try:
            resolved = resolve(model, sized, profiles=profiles)
            if not resolved.memory_without_advice.fits:
                short = resolved
                continue
            tried, short = load_point(resolved, traffic, price, price_note=price_note), None
        except InvalidInput as error:
            refused = refused or error
            continue
        if tried.fits:
            held = SizedPool(pool=resolved, point=tried)
            if tried.steady:
                return held
    if held is not None:
        return held
    if short is not None:
        try:
            tried = load_point(short, traffic, price, price_note=price_note)
        except InvalidInput as error:
            refused = refused or error
    if tried is not None:
        return SizedPool(pool=None, point=tried)
    reason = "no tensor-parallel size divides the model evenly" if refused is None else str(refused)
    point = LoadPoint(gpu=profile.name, load=float(load), reason=reason)
    return SizedPool(pool=None, point=point, refused=refused)


def smallest_pools(
    model: ModelSpec,
    pools: Sequence[Pool],
    traffic: Traffic,
    cost: Cost,
    *,
    profiles: Profiles = None,
    progress: Progress | None = None,
) -> list[SizedPool]:
    """Return `smallest_pool` of each pool. Raises InvalidInput if all pools raise the same error."""
    found = []
    for done, pool in enumerate(pools):
        if progress is not None:
            progress(done, len(pools))
        found.append(smallest_pool(model, pool, traffic, cost, profiles=profiles))
    raise_common_refusal([each.refused for each in found])
    return found


def raise_common_refusal(refused: Sequence[InvalidInput | None]) -> None:
    """Raise the error if every pool was refused with the same one, because then the options are wrong."""
    if refused and refused[0] is not None and len({str(error) for error in refused}) == 1:
        raise refused[0]


class Order(NamedTuple):
    """Sort order of load points: a metric, its description, and whether the largest value is first."""

    field: str
    words: str
    most_first: bool = False


ORDERS = {
    "price": Order("usd_per_thousand_requests", "$ per 1k requests"),
    "month": Order("usd_per_month", "$ a month"),
    "ttft": Order("ttft_s", "TTFT"),
    "tpot": Order("tpot_s", "TPOT"),
    "throughput": Order("output_tokens_per_s", "output tokens/s", most_first=True),
    "throughput-per-gpu": Order("output_tokens_per_s_per_gpu", "output tokens/s per GPU", most_first=True),
    "gpus": Order("num_gpus", "GPUs"),
}


def sort_points(points: Iterable[LoadPoint], order: str) -> tuple[LoadPoint, ...]:
    """Return the points sorted by the metric of `order`, the best first. Last come, in this order, points without the
    metric, points that miss the SLOs, saturated and overloaded points, and points that do not fit.

    Raises InvalidInput for an unknown order.
    """
    if order not in ORDERS:
        raise InvalidInput(f"unknown order {order!r}: must be one of {', '.join(ORDERS)}")
    field, _, most_first = ORDERS[order]

    def key(point: LoadPoint) -> tuple[bool, bool, bool, bool, float, str]:
        found = getattr(point, field)
        value = found.value if isinstance(found, Quantity) else found
        least = math.inf
        if point.fits and value is not None:
            least = -value if most_first else value
        return (
            not point.fits,
            not point.steady,
            point.verdict in LAST_VERDICTS,
            point.misses is not None,
            least,
            point.gpu,
        )

    return tuple(sorted(points, key=key))
