"""Mean, standard deviation and percentiles of one metric, over requests or over gaps between tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

PERCENTILES = (50, 90, 95, 99)
STATISTICS = ("mean", "median", "std", *(f"p{percent}" for percent in PERCENTILES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Mean, standard deviation and percentiles of one metric (ms)."""

    mean: float
    std: float
    percentiles: Mapping[int, float]

    @property
    def statistics(self) -> dict[str, float]:
        """Value of each statistic (ms), by its name in `STATISTICS`, such as p99."""
        values = (self.mean, self.percentiles[50], self.std, *self.percentiles.values())
        return dict(zip(STATISTICS, values, strict=True))

    @classmethod
    def from_values(cls, values_ms: npt.NDArray[Any], *, reorder: bool = False) -> "Distribution | None":
        """Return the distribution of values in ms; None without values. `reorder`: sort the array in place."""
        if not len(values_ms):
            return None
        mean, std = float(values_ms.mean()), float(values_ms.std())
        if reorder:
            values_ms.sort()
        else:
            values_ms = np.sort(values_ms)
        return cls(mean=mean, std=std, percentiles={p: percentile(values_ms, p) for p in PERCENTILES})


def flatten_latencies(
    latencies_ms: Mapping[str, Distribution | None], statistics: Sequence[str] = STATISTICS
) -> dict[str, float | None]:
    """Return latencies as `vllm bench serve` writes them, with one key per statistic, such as `p99_ttft_ms`."""
    flat: dict[str, float | None] = {}
    for key, latency in latencies_ms.items():
        known = {} if latency is None else latency.statistics
        flat |= {f"{name}_{key}_ms": known.get(name) for name in statistics}
    return flat


def percentile(ascending: npt.NDArray[Any], percent: float) -> float:
    """Return a percentile of sorted values, bit-identical to `numpy.percentile` but without sorting again."""
    rank = (len(ascending) - 1) * (percent / 100)
    low = int(rank)
    part = rank - low
    below, above = float(ascending[low]), float(ascending[min(low + 1, len(ascending) - 1)])
    rise = above - below
    return below + rise * part if part < 0.5 else above - rise * (1 - part)
