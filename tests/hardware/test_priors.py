"""What is known before any run: the spreads, kept within what linear steps bear."""

from __future__ import annotations

import math

import numpy as np
import pytest

from capacity.hardware.adjustment import NAMES
from capacity.hardware.spreads import ANEW, MOST, figure_deviation, prior, spreads


@pytest.mark.parametrize("is_moe", [False, True])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "never-seen"])
def test_a_prior_is_the_spreads_of_such_deployments(engine: str, is_moe: bool) -> None:
    found = prior(engine, "h200-sxm-141gb", is_moe=is_moe)
    assert not found.means
    deviations = dict(zip(NAMES, np.sqrt(np.diag(found.covariance_matrix)), strict=True))
    known = spreads()
    assert deviations["memory"] == pytest.approx(min(known.classes["memory"], MOST))
    assert all(0 < deviations[name] <= MOST for name in NAMES if name not in ("front_end", "kv_overhead"))
    assert np.count_nonzero(found.covariance_matrix) == len(NAMES)


def test_figures_scatter_as_runs_of_a_deployment_do() -> None:
    known = spreads()
    seen = known.familiarity("vllm", "h100-sxm-80gb", is_moe=False)
    assert seen is not None
    kind = known.dense_ttft
    assert figure_deviation("ttft", is_moe=False) == pytest.approx(
        math.hypot(kind.run, kind.deployment * math.sqrt(ANEW))
    )
    place = NAMES.index("ttft")
    shared = math.sqrt(prior("vllm", "h100-sxm-80gb", is_moe=False).covariance_matrix[place, place])
    assert shared == pytest.approx(kind.deployment * seen.ttft * math.sqrt(1 - ANEW))  # how far off such are
    tpot = figure_deviation("tpot", is_moe=False)
    assert figure_deviation("step", is_moe=False) == tpot
    assert figure_deviation("e2el", is_moe=False) > tpot
    assert figure_deviation("kv_tokens", is_moe=False) < 0.01


def test_other_spreads_than_those_that_ship_can_be_asked() -> None:
    """As those of all sources but the one that is judged."""
    wide = spreads().model_copy(update={"classes": {**spreads().classes, "memory": 0.5}})
    place = NAMES.index("memory")
    found = prior("vllm", "h100-sxm-80gb", is_moe=False, known=wide).covariance_matrix
    assert found[place, place] == pytest.approx(0.25)
