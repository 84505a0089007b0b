"""Loads at which a deployment was measured, and the prediction error at a load that remains after calibration.

Calibration corrects the error that all loads share. The error that remains is modelled as a smooth function of the load
(requests in flight, prompt and output lengths), by a Gaussian process on the logarithms. Near a measured load it is
known up to the scatter of repeated runs; far from all measured loads it is as uncertain as before.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from capacity.base.spec import Spec

LoadMetric = Literal["ttft", "tpot"]
Positive = Annotated[float, Field(gt=0)]

REACH = 0.5
"""Distance of two loads, as a logarithm (a factor of 1.6), at which the correlation of their errors falls to 0.6; at
twice the concurrency the correlation is 0.38. In public runs of one deployment whose loads differ by a factor of 1.4 to
2, the correlation is 0.64 for TPOT (273 pairs, by medians) and 0.57 for TTFT. The constant is chosen to stay below
both, 2026-11-28."""
REPEATED: Mapping[LoadMetric, float] = {"ttft": 0.05, "tpot": 0.02}
"""Standard deviation of the logarithm of a mean between repeated runs of one server at one load. Of 41 public pairs of
runs at one load, 90 % differ by less than 0.5 % in TPOT and 5 % in TTFT; the values here are larger, because hours and
clients differ. Assumed, 2026-11-28."""


class MeasuredLoad(Spec):
    """A load at which a deployment was measured: mean requests in flight and mean lengths in tokens. `errors`:
    logarithms of measured over predicted mean TTFT and TPOT after calibration. `scatter`: standard deviations of these
    errors between repeated runs."""

    deployment: str
    in_flight: Positive
    input_len: Positive
    output_len: Positive
    errors: dict[LoadMetric, float]
    scatter: dict[LoadMetric, Positive]

    def correlation(self, place: Sequence[float]) -> float:
        """Return the correlation of the errors at this load and at `place` (requests in flight, lengths)."""
        apart = sum(math.log(a / b) ** 2 for a, b in zip(self.place, place, strict=True))
        return math.exp(-apart / (2 * REACH**2))

    @property
    def place(self) -> tuple[float, float, float]:
        return self.in_flight, self.input_len, self.output_len


def remaining_error(
    loads: Sequence[MeasuredLoad], metric: LoadMetric, place: Sequence[float], deviation: float
) -> tuple[float, float]:
    """Return the expected error (logarithm) of a metric at a load, and the fraction of `deviation` that remains.

    `deviation`: standard deviation of the error (logarithm) without measured loads. Without measured loads, the result
    is (0, 1).
    """
    import numpy as np

    own = [load for load in loads if metric in load.errors]
    if not own or not deviation:
        return 0.0, 1.0
    near = np.array([load.correlation(place) for load in own])
    noise = np.diag([(load.scatter[metric] / deviation) ** 2 for load in own])
    among = np.array([[a.correlation(b.place) for b in own] for a in own]) + noise
    weights = np.linalg.solve(among, near)
    expected = float(weights @ np.array([load.errors[metric] for load in own]))
    return expected, math.sqrt(max(1.0 - float(weights @ near), 0.0))
