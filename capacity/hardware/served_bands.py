"""How far served TTFT and TPOT have been from simulated ones: bands for whole runs, by kind of model and metric.

A simulated mean is off by more than its steps are: schedulers, clients and launch settings are inferred too. The
bands are quantiles of measured / simulated - 1 over public served rows, each group of rows (campaign, GPU, engine,
model, format) counting the same; `benchmarks/served_rows.py` computes them, and how often a band that was
made without a group held for it.
"""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path

from capacity.base.errors import UnknownName
from capacity.base.spec import Spec
from capacity.hardware.coefficients import Residuals


class MetricBands(Spec):
    """Bands of one kind of model."""

    ttft: Residuals
    tpot: Residuals


class ServedBands(Spec):
    """Bands of dense models and of mixtures of experts."""

    dense: MetricBands
    moe: MetricBands


@lru_cache(maxsize=1)
def _bands() -> ServedBands:
    path = Path(__file__).with_name("served_bands.toml")
    return ServedBands.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))


def served_band(metric: str, *, is_moe: bool) -> Residuals:
    """The 90 % band of measured over simulated, minus one, of a run's mean `metric` ("ttft", "tpot").

    Raises UnknownName for another metric.
    """
    kind = _bands().moe if is_moe else _bands().dense
    if metric == "ttft":
        return kind.ttft
    if metric == "tpot":
        return kind.tpot
    raise UnknownName("metric with a band", metric, ("ttft", "tpot"))
