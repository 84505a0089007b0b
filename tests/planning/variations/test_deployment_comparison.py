"""Deployments at equal load within the SLO: unlike loads, sides that cannot serve, and the interactive page."""

from __future__ import annotations

import pytest
from compared_sides import SLO, TRAFFIC, side

from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.planning.variations.deployment_comparison import (
    DeploymentComparison,
    compare_deployments,
)
from capacity.report.figures.interactive import interactive_page


def test_sides_that_cannot_serve_have_the_reason_and_the_others_are_compared() -> None:
    sides = [side(gpu="l4"), side(), side("l4", max_model_len=8192), side(price="2")]
    found = compare_deployments(sides, slo=("ttft:p95:100ms",))
    assert found.sides[0].needed is None
    assert "KV cache" in str(found.sides[0].reason)
    assert found.sides[0].memory_bytes["weights"] > 0
    assert str(found.sides[2].reason).startswith("no number of replicas meets the SLO")
    assert [(each.first, each.second, each.bill.value) for each in found.differences] == [("B", "D", -0.5)]
    assert "A is not compared: llama-3.1-8b (bf16) leaves" in found.verdict
    with pytest.raises(DoesNotFit):
        compare_deployments([side("l4"), side("l4")], slo=SLO)


def test_unlike_loads_and_missing_slo_are_rejected() -> None:
    with pytest.raises(InvalidInput, match="B: different traffic than A"):
        compare_deployments([side(), side(rate=30.0)], slo=SLO)
    with pytest.raises(InvalidInput, match="needs an SLO"):
        compare_deployments([side(), side()])
    with pytest.raises(InvalidInput, match="2 to 4 deployments, not 1"):
        compare_deployments([side()], slo=SLO)
    for loads in (
        {"users": 8, "user_loop": "closed", "think_time_s": 1.0},
        {"concurrency": 8, "request_rate": 60.0},
        {},
    ):
        unclear = {**side(), "traffic": {**TRAFFIC, **loads}}
        with pytest.raises(InvalidInput, match="needs either a request rate or a concurrency"):
            compare_deployments([unclear, unclear], slo=SLO)


def test_interactive_page_has_every_side_and_loads_nothing(four_sides: DeploymentComparison) -> None:
    page = interactive_page(four_sides)
    assert page.count("Plotly.newPlot(") >= 4
    assert "b200" in page
    assert "<script src=" not in page
