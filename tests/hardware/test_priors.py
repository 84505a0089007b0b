"""What is known before any run: the spreads, kept within what linear steps bear."""

from __future__ import annotations

import math

import numpy as np
import pytest

from capacity.hardware.adjustment import NAMES
from capacity.hardware.priors import ANEW, MOST, figure_deviation, prior
from capacity.hardware.spreads import spreads


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
    found = figure_deviation("ttft", "vllm", "h100-sxm-80gb", is_moe=False)
    kind = known.dense_ttft
    assert found == pytest.approx(math.hypot(kind.run, kind.deployment * math.sqrt(ANEW)) * seen.ttft)
    whole = math.hypot(kind.run, kind.deployment) * seen.ttft
    place = NAMES.index("ttft")
    shared = math.sqrt(prior("vllm", "h100-sxm-80gb", is_moe=False).covariance_matrix[place, place])
    assert math.hypot(found, shared) == pytest.approx(whole)  # as uncertain as before, only told apart
    tpot = figure_deviation("tpot", "vllm", "h100-sxm-80gb", is_moe=False)
    assert figure_deviation("step", "vllm", "h100-sxm-80gb", is_moe=False) == tpot
    assert figure_deviation("e2el", "vllm", "h100-sxm-80gb", is_moe=False) > tpot
    unseen = figure_deviation("tpot", "never-seen", "h100-sxm-80gb", is_moe=False)
    assert unseen > known.dense_tpot.run * known.unfamiliar
    assert figure_deviation("kv_tokens", "vllm", "h100-sxm-80gb", is_moe=False) < 0.01
