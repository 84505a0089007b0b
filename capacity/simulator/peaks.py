"""Time intervals of a run in which significantly more requests arrive than the deployment can serve."""

from dataclasses import dataclass

import numpy as np

from capacity.workload.columns import FloatArray

MIN_RESIDENCES = 10  # minimum length of a stretch or run, in residence times of a request


def local_variation(arrival: FloatArray) -> float:
    """Return the squared coefficient of variation of the gaps between arrivals. It is the median over parts of 25
    gaps, so slow changes of the rate have no effect."""
    gaps = np.diff(arrival)
    size = 25
    stretches = len(gaps) // size
    if not stretches:
        return 1.0
    parts = gaps[: stretches * size].reshape(stretches, size)
    means = parts.mean(axis=1)
    usual = means > 0
    if not usual.any():
        return 1.0
    return float(np.median(parts[usual].var(axis=1, ddof=1) / means[usual] ** 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Time interval in which the arrival rate is `load` times the capacity: `excess` requests cannot be served in it.

    `all_s` and `all_excess`: totals over all intervals of this length in which the rate exceeds the capacity.
    """

    load: float
    start_s: float
    end_s: float
    excess: float
    all_s: float
    all_excess: float


def peak_load(arrival: FloatArray, capacity: float, stay_s: float) -> Peak | None:
    """Return the time interval with the most arrivals above capacity; None if no excess is significant.

    Candidates are halves, quarters, ... of the run that are longer than ten residence times (`stay_s`). An excess is
    significant above 5 standard errors and 10 % of the arrivals.
    """
    start_s, end_s = float(arrival[0]), float(arrival[-1])
    variation = max(local_variation(arrival), 1.0)
    worst: Peak | None = None
    parts = 2
    while (end_s - start_s) / parts > MIN_RESIDENCES * stay_s and parts <= 1024:
        edges = np.linspace(start_s, end_s, parts + 1)
        counts = np.diff(np.searchsorted(arrival, edges))
        length_s = (end_s - start_s) / parts
        above = counts - capacity * length_s
        certain = (above > 5 * np.sqrt(variation * np.maximum(counts, 1))) & (above > 0.1 * counts)
        at = int(np.argmax(np.where(certain, above, -np.inf)))
        if certain[at] and (worst is None or above[at] > worst.excess):
            worst = Peak(
                load=float(counts[at]) / (capacity * length_s),
                start_s=float(edges[at]),
                end_s=float(edges[at + 1]),
                excess=float(above[at]),
                all_s=length_s * int(certain.sum()),
                all_excess=float(above[certain].sum()),
            )
        parts *= 2
    return worst
