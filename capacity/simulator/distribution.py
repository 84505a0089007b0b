"""Mean, standard deviation and percentiles of one metric over requests or gaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Mean, standard deviation and percentiles of one metric (ms)."""

    mean: float
    std: float
    percentiles: Mapping[int, float]

    @property
    def median(self) -> float:
        return self.percentiles[50]

    @classmethod
    def of(cls, values_ms: npt.NDArray[Any], *, reorder: bool = False) -> Distribution | None:
        """None of no values. With `reorder` they lose their order, and no copy is made of them."""
        if not len(values_ms):
            return None
        mean, std = float(values_ms.mean()), float(values_ms.std())
        if reorder:
            values_ms.sort()
        else:
            values_ms = np.sort(values_ms)
        points = np.percentile(values_ms, PERCENTILES, overwrite_input=True)
        return cls(mean=mean, std=std, percentiles={p: float(v) for p, v in zip(PERCENTILES, points)})
