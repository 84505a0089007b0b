"""What is known before any run: the spreads, kept within what linear steps bear."""

from __future__ import annotations

import math

import numpy as np
import pytest

from capacity.hardware.adjustment import NAMES
from capacity.hardware.spreads import (
    MAX_DEVIATION,
    RUN_TO_RUN,
    load_spreads,
    metric_deviation,
    prior_adjustment,
)


@pytest.mark.parametrize("is_moe", [False, True])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "never-seen"])
def test_a_prior_is_the_spreads_of_such_deployments(engine: str, is_moe: bool) -> None:
    found = prior_adjustment(engine, "h200-sxm-141gb", is_moe=is_moe)
    assert not found.means
    deviations = dict(zip(NAMES, np.sqrt(np.diag(found.covariance_matrix)), strict=True))
    known = load_spreads()
    assert deviations["memory"] == pytest.approx(min(known.classes["memory"], MAX_DEVIATION))
    assert all(
        0 < deviations[name] <= MAX_DEVIATION for name in NAMES if name not in ("front_end", "kv_overhead")
    )
    assert np.count_nonzero(found.covariance_matrix) == len(NAMES)


def test_figures_scatter_as_runs_of_a_deployment_do() -> None:
    known = load_spreads()
    seen = known.find_evidence("vllm", "h100-sxm-80gb", is_moe=False)
    assert seen is not None
    kind = known.dense_ttft
    assert metric_deviation("ttft", is_moe=False) == pytest.approx(
        math.hypot(kind.run, kind.deployment * math.sqrt(RUN_TO_RUN))
    )
    place = NAMES.index("ttft")
    shared = math.sqrt(
        prior_adjustment("vllm", "h100-sxm-80gb", is_moe=False).covariance_matrix[place, place]
    )
    assert shared == pytest.approx(
        kind.deployment * seen.ttft * math.sqrt(1 - RUN_TO_RUN)
    )  # how far off such are
    tpot = metric_deviation("tpot", is_moe=False)
    assert metric_deviation("step", is_moe=False) == tpot
    assert metric_deviation("e2el", is_moe=False) > tpot
    assert metric_deviation("kv_tokens", is_moe=False) < 0.01


def test_other_spreads_than_those_that_ship_can_be_asked() -> None:
    """As those of all sources but the one that is judged."""
    wide = load_spreads().model_copy(update={"classes": {**load_spreads().classes, "memory": 0.5}})
    place = NAMES.index("memory")
    found = prior_adjustment("vllm", "h100-sxm-80gb", is_moe=False, known=wide).covariance_matrix
    assert found[place, place] == pytest.approx(0.25)
