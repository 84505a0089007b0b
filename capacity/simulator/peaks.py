"""When more arrives than a deployment can do: the worst stretch of a run, and the chance in arrivals beside it."""

from __future__ import annotations

import numpy as np

from capacity.workload.columns import FloatArray

LEAST_RESIDENCES = 10  # a stretch, or a run, in times that a request stays


def local_variation(arrival: FloatArray) -> float:
    """Squared coefficient of variation of the gaps, within short stretches: chance, without the changes of the rate."""
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


def peak_load(arrival: FloatArray, capacity: float, stay_s: float) -> tuple[float, float, float] | None:
    """The stretch in which most above capacity arrives: (load, from, to); None: all can be chance, or passes quickly.

    Stretches are halves, quarters, ... down to ten stays of a request; beyond chance is 5 standard errors.
    """
    start_s, end_s = float(arrival[0]), float(arrival[-1])
    variation = max(local_variation(arrival), 1.0)
    worst: tuple[float, float, float] | None = None
    excess = 0.0
    parts = 2
    while (end_s - start_s) / parts > LEAST_RESIDENCES * stay_s and parts <= 1024:
        edges = np.linspace(start_s, end_s, parts + 1)
        counts = np.diff(np.searchsorted(arrival, edges))
        length_s = (end_s - start_s) / parts
        above = counts - capacity * length_s
        certain = (above > 5 * np.sqrt(variation * np.maximum(counts, 1))) & (above > 0.1 * counts)
        at = int(np.argmax(np.where(certain, above, -np.inf)))
        if certain[at] and above[at] > excess:
            excess = float(above[at])
            load = float(counts[at]) / (capacity * length_s)
            worst = (load, float(edges[at]), float(edges[at + 1]))
        parts *= 2
    return worst
