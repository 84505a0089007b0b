"""Compare two to four deployments at equal served load within the SLO: replicas, bill and break-even load.

The replicas are those of `replicas_needed`, as in `plan` and `cost`. The interval of a cost difference comes from
random draws of the errors of the step model, which deployments on the same GPU and engine share. Errors on different
GPUs or engines are drawn independently, which gives wider intervals.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import numpy.typing as npt

from capacity.answers.engine_setup import requests_of
from capacity.answers.interval_parts import Z_90
from capacity.answers.records import ReplicaCount
from capacity.base.checked import validate_arguments
from capacity.base.errors import CapacityError, InvalidInput
from capacity.base.money import usd_text
from capacity.base.quantity import Quantity
from capacity.base.record import AnswerRecord
from capacity.deployment import DeploymentFile, Traffic
from capacity.deployment.use_cases import service_levels
from capacity.hardware.pricing import Price, find_price_for_cost
from capacity.planning.evaluation.evaluate import deployment_label
from capacity.planning.evaluation.step_error import error_parts
from capacity.planning.load.curve import CurvePoint, curve
from capacity.planning.load.highest_rate import HighestRate
from capacity.planning.sizing.replicas_needed import replicas_needed
from capacity.planning.variations.diff import DeploymentLike, read_single_pool
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.workload.request_generation import DEFAULT_NUM_PROMPTS

LETTERS = "ABCD"
MEMORY_PARTS = ("weights", "activations", "overhead", "kv_cache")
CONFIDENCE = 0.9  # that the replicas meet the SLO, as in `plan` and `cost`
DRAWS = 2000
BREAK_EVEN_RANGE = 10.0  # the break-even is searched from 1/10 to 10 times the load
MOST_SIMULATED = 8  # replicas in the curve of a side; more barely change the capacity of each
REQUESTS_PER_REPLICA = 500  # in that curve, at least
ROUNDING = 1e-9  # relative, so that the load divided by the capacity rounds up to the replicas
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """One of the compared deployments; `reason`: why it has no replicas (does not fit, or no number meets the SLO).

    `needed` has its replicas and bill for the common load, as in `plan` and `cost`. `carried_per_s`: requests/s that
    these replicas serve within the SLO, scaled from the `highest` rate of `simulated_replicas` replicas, whose curve is
    `points`. `capacity_per_s`: requests/s that one replica serves within the SLO, limited so that the load needs the
    replicas of `needed`. `utilization`: fraction of the throughput under a backlog, as in `cost`. `memory_bytes`: use
    of each GPU by part.
    """

    name: str
    deployment: str
    reason: str | None = None
    needed: ReplicaCount | None = None
    price: Price | None = None
    gpus_per_replica: int = 0
    carried_per_s: float | None = None
    capacity_per_s: float = 0.0
    utilization: float | None = None
    simulated_replicas: int = 0
    highest: HighestRate | None = None
    points: tuple[CurvePoint, ...] = ()
    memory_bytes: dict[str, float] = field(default_factory=dict)

    def usd_per_hour_at(self, rate: float, capacity_per_s: Floats | float) -> Floats:
        """Return the bill ($/h) for `rate` requests/s if a replica serves `capacity_per_s`; infinite if that is 0."""
        assert self.price is not None
        unit = self.price.gpus_per_instance
        with np.errstate(divide="ignore"):
            gpus = np.ceil(rate / np.asarray(capacity_per_s, float)) * self.gpus_per_replica
        return np.asarray(np.ceil(gpus / unit) * unit * self.price.usd_per_gpu_hour)

    def usd_per_request_at(self, factor: Floats | float = 1.0) -> Floats:
        """Return $ per request if the replicas are full and serve `factor` times `carried_per_s`."""
        assert self.price is not None
        assert self.needed is not None
        assert self.carried_per_s is not None
        hourly = self.price.usd_per_gpu_hour * self.needed.num_gpus
        with np.errstate(divide="ignore"):
            return np.asarray(hourly / 3600 / (self.carried_per_s * np.asarray(factor, float)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CostDifference:
    """Cost of `second` divided by that of `first`, minus 1, with the 90 % interval.

    `bill` compares the bills for the load, in whole replicas; `per_request` compares the cost per request of fully used
    replicas, so rounding to whole replicas has no effect. Both have no interval if a deployment may miss the SLO with
    step times at the slow end of their interval. `cheaper_probability` and `equal_probability`: fractions of the draws
    in which the bill of `second` is lower or the same. `break_even_below_per_s` and `_above_per_s`: the nearest request
    rates at which the other deployment becomes cheaper, within a factor of 10.
    """

    first: str
    second: str
    bill: Quantity
    per_request: Quantity
    cheaper_probability: float
    equal_probability: float
    break_even_below_per_s: float | None
    break_even_above_per_s: float | None

    def text(self, change: Quantity) -> str:
        """Return text: which deployment is cheaper and by how much; `change` is the field `bill` or `per_request`."""
        if change.value == 0:
            text = f"{self.second} costs the same as {self.first}"
        else:
            word = "cheaper" if change.value < 0 else "more expensive"
            text = f"{self.second} is {abs(change.value):.0%} {word} than {self.first}"
        if change.low is None or change.high is None:
            return f"{text} (no interval: a deployment may miss the SLO)"
        ends = (-change.high, -change.low) if change.value < 0 else (change.low, change.high)
        return f"{text} (90 % interval: {ends[0]:.0%} to {ends[1]:.0%})".replace("-0%", "0%")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentComparison(AnswerRecord):
    """Deployments at equal served load; `differences` compare each with the first deployment that has a bill."""

    SCHEMA: ClassVar[str] = "capacity/deployment-comparison/v1"
    ROWS: ClassVar[str] = "sides"

    requests_per_s: float
    workload: str
    slos: tuple[str, ...]
    confidence: float
    sides: tuple[ComparedSide, ...]
    differences: tuple[CostDifference, ...]
    verdict: str
    warnings: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Side:
    found: ComparedSide
    resolved: ResolvedPool | None = None
    error: CapacityError | None = None
    warnings: tuple[str, ...] = ()


@validate_arguments
def compare_deployments(
    deployments: Sequence[DeploymentLike],
    *,
    slo: Sequence[str] | str = (),
    progress: Callable[[int, int], None] | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
) -> DeploymentComparison:
    """Compare 2 to 4 deployments at equal served load within the SLO: replicas, bill, utilization and break-even.

    A deployment is a file, a DeploymentFile or its fields; its own number of replicas is not used. All must have the
    same traffic; those without traffic take that of the first. `slo` replaces the SLO of the use case. A
    deployment that does not fit or cannot run has a reason instead of results. Raises InvalidInput for different
    loads, a closed loop, or a missing SLO, and the error of the first deployment if none can run.
    """
    if not 2 <= len(deployments) <= len(LETTERS):
        raise InvalidInput(f"a comparison takes 2 to {len(LETTERS)} deployments, not {len(deployments)}")
    read = [read_single_pool(each) for each in deployments]
    traffic = _common_traffic(read)
    levels = service_levels(slo, traffic)
    if not levels:
        raise InvalidInput("a comparison at equal load needs an SLO: add --slo, such as ttft:p95:500ms")
    workload = requests_of(traffic, None)
    rate = workload.offered_per_s
    if workload.is_closed_loop or not math.isfinite(rate):
        raise InvalidInput("a comparison at equal load needs a request rate: add --request-rate or --users")
    place = {"profiles": profiles, "download": download}
    sides = []
    for letter, each in zip(LETTERS, read, strict=False):
        sides.append(_side(letter, each, traffic, levels, rate, **place))
        if progress is not None:
            progress(len(sides), len(read))
    if all(side.error for side in sides):
        raise next(side.error for side in sides if side.error)
    priced = [side for side in sides if side.found.needed and side.found.needed.usd_per_hour]
    differences = tuple(_difference(priced[0], each, rate) for each in priced[1:])
    found = tuple(side.found for side in sides)
    return DeploymentComparison(
        requests_per_s=rate,
        workload=workload.name,
        slos=tuple(levels),
        confidence=CONFIDENCE,
        sides=found,
        differences=differences,
        verdict=_verdict(found, differences, rate),
        warnings=tuple(dict.fromkeys(note for side in sides for note in side.warnings)),
    )


def _common_traffic(deployments: Sequence[DeploymentFile]) -> Traffic:
    """Return the traffic of all deployments. Raises InvalidInput if two of them have different traffic."""
    given = {letter: each.traffic for letter, each in zip(LETTERS, deployments, strict=False)}
    known = {letter: traffic for letter, traffic in given.items() if traffic != Traffic()}
    if not known:
        raise InvalidInput(
            "no deployment has traffic: add input_len, output_len and request_rate to the first"
        )
    first = next(iter(known.values()))
    unlike = [letter for letter, traffic in known.items() if traffic != first]
    if unlike:
        raise InvalidInput(
            f"{' and '.join(unlike)}: different traffic than {next(iter(known))}, but a comparison needs equal loads; "
            "give all deployments the same traffic"
        )
    return first


def _side(
    letter: str, described: DeploymentFile, traffic: Traffic, slo: Sequence[str], rate: float, **place: Any
) -> _Side:
    """Return one deployment of the comparison with its replicas and latency curve, or why it cannot run."""
    pool = described.pools[0].model_copy(update={"replicas": 1})
    deployment = described.model_copy(update={"pools": (pool,), "traffic": traffic})
    model = getattr(deployment.model, "name", deployment.model)
    side = _Side(found=ComparedSide(name=letter, deployment=f"{model} on {pool.num_gpus} x {pool.gpu}"))
    try:
        resolved = side.resolved = resolve(deployment.model, pool, **place)
        side.found = replace(
            side.found,
            deployment=deployment_label(resolved),
            gpus_per_replica=resolved.pool.num_gpus,
            memory_bytes={name: getattr(resolved.memory, f"{name}_bytes") for name in MEMORY_PARTS},
        )
        resolved.memory.require_fit()
        _size(side, resolved, deployment, slo, rate, **place)
    except CapacityError as error:
        side.error = None if side.found.reason else error
        side.found = replace(side.found, needed=None, reason=side.found.reason or str(error))
    return side


def _size(
    side: _Side,
    resolved: ResolvedPool,
    deployment: DeploymentFile,
    slo: Sequence[str],
    rate: float,
    **place: Any,
) -> None:
    """Set the replicas of a deployment that the load needs, and the curve of at most `MOST_SIMULATED` replicas."""
    price = find_price_for_cost(resolved.profile.name, deployment.cost)
    traffic, profiles = deployment.traffic, place["profiles"]
    answer = replicas_needed(
        resolved, traffic, slo=slo, price=price, confidence=CONFIDENCE, profiles=profiles
    )
    assert answer is not None  # of an open loop
    needed = answer.within_slo
    reason = None if needed else f"no number of replicas meets the SLO ({answer.reason})"
    side.found = replace(side.found, price=price, needed=needed, reason=reason)
    simulated = min(needed.replicas if needed else 1, MOST_SIMULATED)
    pool = deployment.pools[0].model_copy(update={"replicas": simulated})
    asked = deployment.model_copy(update={"pools": (pool,), "traffic": _curve_traffic(traffic, simulated)})
    rising = curve(asked, slo=slo, replications=1, confidence=CONFIDENCE, **place)
    if rising.highest is None:
        raise InvalidInput(" ".join(rising.warnings))
    side.warnings = rising.warnings
    side.found = replace(
        side.found,
        simulated_replicas=simulated,
        highest=rising.highest,
        points=rising.points,
    )
    if needed is None:
        return
    throughput = answer.stable
    busy = rate / (answer.busiest_requests_per_s or rate)
    least, most = rate / needed.replicas, rate / max(needed.replicas - 1, ROUNDING)
    each = rising.highest.at_confidence / simulated * busy
    side.found = replace(
        side.found,
        carried_per_s=max(each, least) * needed.replicas,
        capacity_per_s=min(max(each, least * (1 + ROUNDING)), most * (1 - ROUNDING)),
        utilization=None if throughput is None else least / busy / throughput.requests_per_s_per_replica,
    )


def _curve_traffic(traffic: Traffic, replicas: int) -> Traffic:
    """Return the traffic with enough requests for the curve of this many replicas, if its length is not fixed."""
    steady = traffic.num_prompts is None and traffic.trace is None and traffic.arrivals == "steady"
    if replicas == 1 or not steady:
        return traffic
    requests = max(DEFAULT_NUM_PROMPTS, REQUESTS_PER_REPLICA * replicas)
    return traffic.model_copy(update={"num_prompts": requests})


def _capacity_factors(side: _Side) -> Floats:
    """Return, for each random draw of the error of a deployment's step times, the factor on its replicas' capacity.

    Each independent part of the error (`error_parts`) is drawn with a seed from its name, the GPU and the engine. The
    factor is the ratio of the highest rate that `curve` found at that quantile of the error to the predicted one.
    """
    highest = side.found.highest
    assert side.resolved is not None
    assert highest is not None
    parts = error_parts(side.resolved)
    place = f"{side.resolved.profile.name} {side.resolved.pool.engine}"
    total = np.zeros(DRAWS)
    for name, deviation in parts.items():
        total += deviation * np.random.default_rng(crc32(f"{place} {name}".encode())).standard_normal(DRAWS)
    total /= math.hypot(*parts.values()) or 1.0
    known = {
        -Z_90: highest.high,
        0.0: highest.predicted,
        NormalDist().inv_cdf(highest.confidence): highest.at_confidence,
        Z_90: highest.low,
    }
    places = sorted(known)
    rates = np.interp(total, places, [known[each] for each in places])
    return np.asarray(rates / (highest.predicted or math.inf))


def _difference(first: _Side, second: _Side, rate: float) -> CostDifference:
    sides = first.found, second.found
    draws = _capacity_factors(first), _capacity_factors(second)
    as_planned = np.ones(1), np.ones(1)

    def bill_change(factors: Sequence[Floats]) -> Floats:
        capacities = [side.capacity_per_s * each for side, each in zip(sides, factors, strict=True)]
        return _change([side.usd_per_hour_at(rate, at) for side, at in zip(sides, capacities, strict=True)])

    def full_change(factors: Sequence[Floats]) -> Floats:
        return _change([side.usd_per_request_at(each) for side, each in zip(sides, factors, strict=True)])

    bills = bill_change(draws)
    below, above = _break_even(*sides, rate)
    return CostDifference(
        first=sides[0].name,
        second=sides[1].name,
        bill=_with_interval(bill_change(as_planned), bills),
        per_request=_with_interval(full_change(as_planned), full_change(draws)),
        cheaper_probability=float((bills < 0).mean()),
        equal_probability=float((bills == 0).mean()),
        break_even_below_per_s=below,
        break_even_above_per_s=above,
    )


def _change(costs: Sequence[Floats]) -> Floats:
    """Return the second cost relative to the first, minus 1; 0 if both are infinite."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nan_to_num(costs[1] / costs[0] - 1, nan=0.0, posinf=np.inf))


def _with_interval(value: Floats, draws: Floats) -> Quantity:
    low, high = (float(each) for each in np.percentile(draws, (5, 95), method="nearest"))
    finite = math.isfinite(low) and math.isfinite(high)
    return Quantity(value=float(value[0]), low=low if finite else None, high=high if finite else None)


def _break_even(first: ComparedSide, second: ComparedSide, rate: float) -> tuple[float | None, float | None]:
    """Return the nearest rates below and above `rate` at which the cheaper deployment changes; None without one.

    Bills change only at multiples of the capacity of a replica, so each interval between two multiples has one sign.
    """
    lowest, highest = rate / BREAK_EVEN_RANGE, rate * BREAK_EVEN_RANGE
    ends = {lowest, highest}
    for each in (first.capacity_per_s, second.capacity_per_s):
        ends |= {each * count for count in range(math.ceil(lowest / each), math.floor(highest / each) + 1)}
    marks = sorted(ends)

    def sign(at: float) -> float:
        before, after = (side.usd_per_hour_at(at, side.capacity_per_s) for side in (first, second))
        return float(np.sign(after - before))

    # an equal bill changes nothing
    here = sign(rate)
    signs = [sign((low + high) / 2) for low, high in itertools.pairwise(marks)]
    changed = [index for index, each in enumerate(signs) if here and each == -here]
    above = next((marks[index] for index in changed if marks[index] >= rate), None)
    below = next((marks[index + 1] for index in reversed(changed) if marks[index + 1] <= rate), None)
    return below, above


def _verdict(sides: Sequence[ComparedSide], differences: Sequence[CostDifference], rate: float) -> str:
    """Return one sentence: replicas and bill of each deployment, and which one is cheaper by how much."""
    text = f"At {rate:,.4g} requests/s within the SLO, {', '.join(map(_need, sides))}"
    changes = [each.text(each.bill) for each in differences]
    return "; ".join([text, *changes]) + "."


def _need(side: ComparedSide) -> str:
    if side.needed is None:
        return f"{side.name} is not compared: {str(side.reason).partition('. ')[0]}"
    count = f"{side.needed.replicas:,} replica{'s' * (side.needed.replicas != 1)}"
    hourly = side.needed.usd_per_hour
    return f"{side.name} needs {count}" + ("" if hourly is None else f" at {usd_text(hourly)}/h")
