"""Difference in cost between two compared deployments, with an interval from the errors of the step model.

The interval comes from random draws of the errors of the step model, which deployments on the same GPU and engine
share. Errors on different GPUs or engines are drawn independently, which gives wider intervals.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from zlib import crc32

import numpy as np

from capacity.answers.interval_parts import Z_90
from capacity.base.quantity import Quantity
from capacity.planning.evaluation.step_error import error_parts
from capacity.planning.variations.compared_side import ComparedSide, Floats, SizedSide

DRAWS = 2000
BREAK_EVEN_RANGE = 10.0  # the break-even is searched from 1/10 to 10 times the load


@dataclass(frozen=True, slots=True, kw_only=True)
class CostDifference:
    """Cost of `second` divided by that of `first`, minus 1, with the 90 % interval.

    `bill` compares the bills for the load, in whole replicas. `per_request` compares the cost per request of fully used
    replicas, so rounding to whole replicas has no effect; for a closed loop, the cost per request at the load. `bill`
    has no interval if a deployment may miss the SLO with step times at the slow end of their interval; neither has
    `per_request`, except for a closed loop.
    `cheaper_probability` and `equal_probability`: fractions of the draws in which the bill of `second` is lower or the
    same. `break_even_below` and `break_even_above`: the nearest loads (requests/s, or requests in flight of a closed
    loop) at which the other deployment becomes cheaper, within a factor of 10.
    """

    first: str
    second: str
    bill: Quantity
    per_request: Quantity
    cheaper_probability: float
    equal_probability: float
    break_even_below: float | None
    break_even_above: float | None

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


def cost_difference(first: SizedSide, second: SizedSide, load: float) -> CostDifference:
    """Return the difference in cost at `load`, in requests/s or, for a closed loop, requests in flight."""
    sides = first.found, second.found
    draws = [_load_per_replica(side, _error_draws(side)) for side in (first, second)]
    rates = [_requests_per_s(side, _error_draws(side)) for side in (first, second)]

    def bill_change(capacities: Sequence[Floats | float]) -> Floats:
        return _change([side.usd_per_hour_at(load, at) for side, at in zip(sides, capacities, strict=True)])

    def request_change(per_s: Sequence[Floats | float]) -> Floats:
        return _change([side.usd_per_request_at(at) for side, at in zip(sides, per_s, strict=True)])

    bills = bill_change(draws)
    below, above = _break_even(*sides, load)
    return CostDifference(
        first=sides[0].name,
        second=sides[1].name,
        bill=_with_interval(bill_change([side.load_per_replica for side in sides]), bills),
        per_request=_with_interval(
            request_change([side.costed_per_s or 0.0 for side in sides]), request_change(rates)
        ),
        cheaper_probability=float((bills < 0).mean()),
        equal_probability=float((bills == 0).mean()),
        break_even_below=below,
        break_even_above=above,
    )


def _error_draws(side: SizedSide) -> Floats:
    """Return random draws of the error of a deployment's step times, in standard deviations; positive is slower.

    Each independent part of the error (`error_parts`) is drawn with a seed from its name, the GPU and the engine.
    """
    assert side.resolved is not None
    parts = error_parts(side.resolved)
    place = f"{side.resolved.profile.name} {side.resolved.pool.engine}"
    total = np.zeros(DRAWS)
    for name, deviation in parts.items():
        total += deviation * np.random.default_rng(crc32(f"{place} {name}".encode())).standard_normal(DRAWS)
    return np.asarray(total / (math.hypot(*parts.values()) or 1.0))


def _factors(values: Mapping[float, float], draws: Floats) -> Floats:
    """Return the values at the draws of the error, divided by the predicted value.

    `values` has the simulated values by error in standard deviations; values between them are interpolated.
    """
    places = sorted(values)
    found = np.interp(draws, places, [values[each] for each in places])
    return np.asarray(found / (values[0.0] or math.inf))


def _load_per_replica(side: SizedSide, draws: Floats) -> Floats:
    highest = side.found.highest
    assert highest is not None
    loads = {
        -Z_90: highest.high,
        0.0: highest.predicted,
        NormalDist().inv_cdf(highest.confidence): highest.at_confidence,
        Z_90: highest.low,
    }
    return side.found.load_per_replica * _factors(loads, draws)


def _requests_per_s(side: SizedSide, draws: Floats) -> Floats:
    """Return the requests/s by which a bill is divided: at full load or, for a closed loop, those served."""
    if side.loop_rates:
        return (side.found.costed_per_s or 0.0) * _factors(side.loop_rates, draws)
    each = _load_per_replica(side, draws) / side.found.load_per_replica
    return (side.found.costed_per_s or 0.0) * each


def _change(costs: Sequence[Floats]) -> Floats:
    """Return the second cost relative to the first, minus 1; 0 if both are infinite."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nan_to_num(costs[1] / costs[0] - 1, nan=0.0, posinf=np.inf))


def _with_interval(value: Floats, draws: Floats) -> Quantity:
    low, high = (float(each) for each in np.percentile(draws, (5, 95), method="nearest"))
    finite = math.isfinite(low) and math.isfinite(high)
    return Quantity(value=float(value), low=low if finite else None, high=high if finite else None)


def _break_even(first: ComparedSide, second: ComparedSide, load: float) -> tuple[float | None, float | None]:
    """Return the nearest loads below and above `load` at which the cheaper deployment changes; None without one.

    Bills change only at multiples of the capacity of a replica, so each interval between two multiples has one sign.
    """
    lowest, highest = load / BREAK_EVEN_RANGE, load * BREAK_EVEN_RANGE
    ends = {lowest, highest}
    for each in (first.load_per_replica, second.load_per_replica):
        ends |= {each * count for count in range(math.ceil(lowest / each), math.floor(highest / each) + 1)}
    marks = sorted(ends)

    def sign(at: float) -> float:
        before, after = (side.usd_per_hour_at(at, side.load_per_replica) for side in (first, second))
        return float(np.sign(after - before))

    # an equal bill changes nothing
    here = sign(load)
    signs = [sign((low + high) / 2) for low, high in itertools.pairwise(marks)]
    changed = [index for index, each in enumerate(signs) if here and each == -here]
    above = next((marks[index] for index in changed if marks[index] >= load), None)
    below = next((marks[index + 1] for index in reversed(changed) if marks[index + 1] <= load), None)
    return below, above
