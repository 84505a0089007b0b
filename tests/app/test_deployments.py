"""The Compare page: its verdict is the library's, and pinned sides get the sidebar's load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from capacity_app.error_display import escape_markdown
from capacity_app.side import Side

import capacity

Open = Callable[..., Any]


@pytest.mark.ci
def test_page_shows_the_verdict_of_the_library(dashboard: Open) -> None:
    opened = dashboard("deployments", rate="40").settled()
    assert opened.refusals == []
    traffic = {"input_len": 1024, "output_len": 256, "request_rate": 40.0}
    sides = [
        {
            "model": "llama-3.1-8b",
            "pools": [{"gpu": gpu}],
            "traffic": traffic,
            "cost": {"price_tier": "on-demand"},
        }
        for gpu in ("h100-sxm-80gb", "b200-sxm-180gb")
    ]
    answer = capacity.compare_deployments(sides, slo=["ttft:p95:1000ms", "tpot:p95:50ms"])
    assert [box.value for box in opened.at.success] == [escape_markdown(answer.verdict)]


@pytest.mark.ci
def test_page_takes_users_as_the_load(dashboard: Open) -> None:
    opened = dashboard("deployments", deps_load="users", deps_users="1200", deps_think="20").settled()
    assert opened.refusals == []
    (verdict,) = (box.value for box in opened.at.success)
    assert verdict.startswith("At 60 requests/s within the SLO, A needs")


@pytest.mark.ci
def test_pinned_side_is_compared_under_the_sidebars_load(dashboard: Open) -> None:
    pin = Side(
        page="estimate", model="llama-3.1-8b", options={"gpu": "b200-sxm-180gb", "request_rate": 9.0}, cost={}
    )
    opened = dashboard("deployments", rate="40", side=pin.link_text).settled()
    assert opened.refusals == []
    (verdict,) = (box.value for box in opened.at.success)
    assert verdict.startswith("At 40 requests/s within the SLO, A needs")
