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
    def of(cls, values_ms: npt.NDArray[Any]) -> Distribution | None:
        if not len(values_ms):
            return None
        points = np.percentile(np.sort(values_ms), PERCENTILES)
        return cls(
            mean=float(values_ms.mean()),
            std=float(values_ms.std()),
            percentiles={p: float(v) for p, v in zip(PERCENTILES, points)},
        )
