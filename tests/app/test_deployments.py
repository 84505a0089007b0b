"""The Compare page: its verdict is the library's, and pinned sides get the sidebar's load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from capacity_app.error_display import escape_markdown

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
