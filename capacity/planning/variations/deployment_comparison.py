"""Compare two to four deployments at equal served load within the SLO: replicas, bill and break-even load.

The capacity of a side is the rate that `curve` finds for one replica at `confidence`. The interval of a cost difference
comes from paired draws: each constant of the step model has one error per draw, which all sides on that GPU and engine
share. Errors on different GPUs or engines are drawn independently, which is the wide case.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import numpy.typing as npt

from capacity.answers.engine_setup import requests_of
from capacity.answers.interval_parts import Z_90
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.record import AnswerRecord
from capacity.deployment import DeploymentFile, Traffic
from capacity.deployment.use_cases import service_levels
from capacity.hardware.pricing import HOURS_PER_MONTH, Price, billed_gpus, find_price_for_cost, usd_per_hour
from capacity.planning.evaluation.step_error import error_parts
from capacity.planning.load.curve import CurvePoint, curve
from capacity.planning.load.highest_rate import HighestRate
from capacity.planning.variations.diff import DeploymentLike, read_single_pool
from capacity.pool.resolve import ResolvedPool, resolve

LETTERS = "ABCD"
MEMORY_PARTS = ("weights", "activations", "overhead", "kv_cache")
DRAWS = 2000
BREAK_EVEN_RANGE = 10.0  # the break-even is searched from 1/10 to 10 times the load
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """One deployment at the load: capacity of a replica within the SLO (requests/s), replicas, bill, utilisation.

    `capacity_per_s` has probability `confidence` given the error of step times. `replicas` and the fields after it are
    None if no rate meets the SLO. `points` is the curve of one replica; `memory_bytes` is the use of each GPU by part.
    """

    name: str
    deployment: str
    capacity_per_s: float
    highest: HighestRate
    gpus_per_replica: int
    usd_per_hour_per_replica: float | None
    replicas: int | None
    usd_per_hour: float | None
    usd_per_month: float | None
    utilization: float | None
    points: tuple[CurvePoint, ...]
    memory_bytes: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostDifference:
    """Bill of `second` relative to that of `first` for the same load, minus 1, with its 90 % interval.

    `low` and `high` are None if a side cannot serve the load at the slow end of its interval. `cheaper_probability`:
    fraction of the draws in which `second` is cheaper. `break_even_below_per_s` and `_above_per_s`: the nearest
    request rates at which the cheaper side changes, within a factor of 10.
    """

    first: str
    second: str
    value: float
    low: float | None
    high: float | None
    cheaper_probability: float
    break_even_below_per_s: float | None
    break_even_above_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentComparison(AnswerRecord):
    """Deployments at equal served load within the SLO; `differences` are those to the first side that has
    a bill."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    resolved: ResolvedPool
    price: Price | None
    found: ComparedSide
    warnings: tuple[str, ...]


@validate_arguments
def compare_deployments(
    deployments: Sequence[DeploymentLike],
    *,
    slo: Sequence[str] | str = (),
    progress: Callable[[int, int], None] | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
) -> DeploymentComparison:
    """Compare 2 to 4 deployments at equal served load within the SLO: replicas, bill, utilisation and break-even.

    A deployment is a file, a DeploymentFile or its fields; its own number of replicas is not used. All must have the
    same traffic; those without traffic take that of the first. `slo` replaces the SLO of the use case. Raises
    DoesNotFit, and InvalidInput for different loads, a closed loop, or a missing SLO.
    """
    if not 2 <= len(deployments) <= len(LETTERS):
        raise InvalidInput(f"a comparison takes 2 to {len(LETTERS)} deployments, not {len(deployments)}")
    read = [read_single_pool(each) for each in deployments]
    traffic = _common_traffic(read)
    levels = service_levels(slo, traffic)
    if not levels:
        raise InvalidInput("a comparison at equal load needs an SLO: add --slo, such as ttft:p95:500ms")
    sides = []
    for index, each in enumerate(read):
        place = (LETTERS[index], each, traffic)
        sides.append(_side(*place, levels, profiles=profiles, download=download))
        if progress is not None:
            progress(index + 1, len(read))
    workload = requests_of(traffic, None, min(each.resolved.max_model_len for each in sides))
    rate = workload.offered_per_s
    if not math.isfinite(rate) or workload.is_closed_loop:
        raise InvalidInput("a comparison at equal load needs a request rate: add --request-rate or --users")
    found = tuple(_size(side, rate) for side in sides)
    differences = _differences(sides, found, rate)
    return DeploymentComparison(
        requests_per_s=rate,
        workload=workload.name,
        slos=tuple(levels),
        confidence=found[0].highest.confidence,
        sides=found,
        differences=differences,
        verdict=_verdict(found, differences, rate),
        warnings=tuple(dict.fromkeys(note for side in sides for note in side.warnings)),
    )


def _common_traffic(deployments: Sequence[DeploymentFile]) -> Traffic:
    """Return the traffic of all sides. Raises InvalidInput if two sides have different traffic."""
    given = {letter: each.traffic for letter, each in zip(LETTERS, deployments, strict=False)}
    known = {letter: traffic for letter, traffic in given.items() if traffic != Traffic()}
    if not known:
        raise InvalidInput("no side has traffic: add input_len, output_len and request_rate to the first")
    first = next(iter(known.values()))
    unlike = [letter for letter, traffic in known.items() if traffic != first]
    if unlike:
        raise InvalidInput(
            f"{' and '.join(unlike)}: a different load than {next(iter(known))}, so the bills are not compared; give "
            "all sides the same traffic"
        )
    return first


def _side(
    letter: str,
    described: DeploymentFile,
    traffic: Traffic,
    slo: Sequence[str],
    **place: Any,
) -> _Side:
    pool = described.pools[0].model_copy(update={"replicas": 1})
    deployment = described.model_copy(update={"pools": (pool,), "traffic": traffic})
    resolved = resolve(deployment.model, pool, **place)
    price = find_price_for_cost(resolved.profile.name, deployment.cost)
    answer = curve(deployment, slo=slo, replications=1, **place)
    if answer.highest is None:
        raise InvalidInput(f"{letter}: {' '.join(answer.warnings)}")
    memory = resolved.memory
    found = ComparedSide(
        name=letter,
        deployment=answer.deployment,
        capacity_per_s=answer.highest.at_confidence,
        highest=answer.highest,
        gpus_per_replica=resolved.pool.num_gpus,
        usd_per_hour_per_replica=_bill(price, resolved.pool.num_gpus),
        replicas=None,
        usd_per_hour=None,
        usd_per_month=None,
        utilization=None,
        points=answer.points,
        memory_bytes={name: getattr(memory, f"{name}_bytes") for name in MEMORY_PARTS},
    )
    return _Side(resolved=resolved, price=price, found=found, warnings=answer.warnings)


def _bill(price: Price | None, gpus: int) -> float | None:
    return None if price is None else usd_per_hour(price, billed_gpus(price, gpus))


def _size(side: _Side, rate: float) -> ComparedSide:
    """Return the side with the fewest replicas that serve `rate`, unless no rate meets its SLO."""
    capacity = side.found.capacity_per_s
    if not capacity:
        return side.found
    replicas = math.ceil(rate / capacity)
    hourly = _bill(side.price, replicas * side.found.gpus_per_replica)
    return replace(
        side.found,
        replicas=replicas,
        usd_per_hour=hourly,
        usd_per_month=None if hourly is None else hourly * HOURS_PER_MONTH,
        utilization=rate / (replicas * capacity),
    )


def _capacity_draws(side: _Side) -> Floats:
    """Return the capacity of a replica for each draw of the errors of its step model, in requests/s.

    The draws of a part of the error depend only on its name, the GPU and the engine. They scale the capacity at
    `confidence` by the ratio of the rates that `curve` found at that quantile of the error and as predicted.
    """
    parts = error_parts(side.resolved)
    place = f"{side.resolved.profile.name} {side.resolved.pool.engine}"
    total = np.zeros(DRAWS)
    for name, deviation in parts.items():
        total += deviation * np.random.default_rng(crc32(f"{place} {name}".encode())).standard_normal(DRAWS)
    total /= math.hypot(*parts.values()) or 1.0
    highest = side.found.highest
    known = {
        -Z_90: highest.high,
        0.0: highest.predicted,
        NormalDist().inv_cdf(highest.confidence): highest.at_confidence,
        Z_90: highest.low,
    }
    places = sorted(known)
    rates = np.interp(total, places, [known[each] for each in places])
    return np.asarray(rates * (highest.at_confidence / highest.predicted))


def _differences(
    sides: Sequence[_Side], found: Sequence[ComparedSide], rate: float
) -> tuple[CostDifference, ...]:
    priced = [each for each in zip(sides, found, strict=True) if each[1].usd_per_hour]
    return tuple(_difference(*priced[0], *each, rate) for each in priced[1:])


def _difference(
    first: _Side, before: ComparedSide, second: _Side, after: ComparedSide, rate: float
) -> CostDifference:
    assert before.usd_per_hour
    assert after.usd_per_hour is not None
    changes = np.array(
        [
            _relative_bill(first, second, rate, *each)
            for each in zip(*map(_capacity_draws, (first, second)), strict=True)
        ]
    )
    low, high = (float(each) for each in np.percentile(changes, (5, 95), method="nearest"))
    finite = math.isfinite(low) and math.isfinite(high)
    below, above = _break_even(first, second, rate)
    return CostDifference(
        first=before.name,
        second=after.name,
        value=after.usd_per_hour / before.usd_per_hour - 1,
        low=low if finite else None,
        high=high if finite else None,
        cheaper_probability=float((changes < 0).mean()),
        break_even_below_per_s=below,
        break_even_above_per_s=above,
    )


def _relative_bill(first: _Side, second: _Side, rate: float, before: float, after: float) -> float:
    """Return the bill of `second` relative to that of `first`, minus 1, at these capacities of a replica."""
    bills = [_bill_at(first, rate, before), _bill_at(second, rate, after)]
    if math.isinf(bills[0]):
        return 0.0 if math.isinf(bills[1]) else -1.0
    return bills[1] / bills[0] - 1


def _bill_at(side: _Side, rate: float, capacity: float) -> float:
    """Return the $ per hour of the replicas that serve `rate`; infinite without capacity."""
    if capacity <= 0:
        return math.inf
    bill = _bill(side.price, math.ceil(rate / capacity) * side.found.gpus_per_replica)
    assert bill is not None
    return bill


def _break_even(first: _Side, second: _Side, rate: float) -> tuple[float | None, float | None]:
    """Return the nearest rates below and above `rate` at which the cheaper side changes; None: none in the range.

    Bills change only at multiples of the capacity of a replica, so each interval between two multiples has one sign.
    """
    capacities = [each.found.capacity_per_s for each in (first, second)]
    lowest, highest = rate / BREAK_EVEN_RANGE, rate * BREAK_EVEN_RANGE
    ends = {lowest, highest}
    for each in capacities:
        ends |= {each * count for count in range(math.ceil(lowest / each), math.floor(highest / each) + 1)}
    marks = sorted(ends)

    def sign(at: float) -> float:
        bills = [_bill_at(side, at, each) for side, each in zip((first, second), capacities, strict=True)]
        return float(np.sign(bills[1] - bills[0]))

    # an equal bill changes nothing
    here = sign(rate)
    signs = [sign((low + high) / 2) for low, high in itertools.pairwise(marks)]
    changed = [index for index, each in enumerate(signs) if here and each == -here]
    above = next((marks[index] for index in changed if marks[index] >= rate), None)
    below = next((marks[index + 1] for index in reversed(changed) if marks[index + 1] <= rate), None)
    return below, above


def _verdict(sides: Sequence[ComparedSide], differences: Sequence[CostDifference], rate: float) -> str:
    """Return one sentence: replicas and bill of each side, and which side is cheaper by how much."""
    texts = [_need(each) for each in sides]
    text = f"At {rate:,.4g} requests/s within the SLO, {', '.join(texts)}"
    changes = [_change(each) for each in differences]
    return "; ".join([text, *changes]) + "."


def _need(side: ComparedSide) -> str:
    if side.replicas is None:
        return f"{side.name} cannot meet the SLO with any number of replicas"
    count = f"{side.replicas:,} replica{'s' * (side.replicas != 1)}"
    bill = "" if side.usd_per_hour is None else f" at ${side.usd_per_hour:,.2f}/h"
    return f"{side.name} needs {count}{bill}"


def _change(each: CostDifference) -> str:
    """Return which side is cheaper, in per cent of the other's bill with the 90 % interval."""
    if each.value == 0:
        text = f"{each.second} costs the same as {each.first}"
    else:
        word = "cheaper" if each.value < 0 else "more expensive"
        text = f"{each.second} is {abs(each.value):.0%} {word} than {each.first}"
    if each.low is None or each.high is None:
        return f"{text} (no interval: a side may not meet the SLO)"
    ends = (-each.high, -each.low) if each.value < 0 else (each.low, each.high)
    return f"{text} (90 % interval: {ends[0]:.0%} to {ends[1]:.0%})".replace("-0%", "0%")
