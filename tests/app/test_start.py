"""The start page: a use case and people become a rate and service levels, and the Plan page opens with all of it."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from copied_commands import printed

from capacity.deployment import Traffic, build
from capacity.deployment.use_cases import USE_CASES, find_use_case

Open = Callable[..., Any]


def plan_link(opened: Any) -> dict[str, str]:
    """The query of the link to the Plan page."""
    drawn = next(
        str(part.proto.body)
        for part in opened.at.main.get("html")
        if "Find a deployment" in str(part.proto.body)
    )
    href = html.unescape(re.findall(r'href="([^"]*)"', drawn)[0])
    assert urlsplit(href).path == "plan"
    return {name: values[0] for name, values in parse_qs(urlsplit(href).query).items()}


@pytest.mark.parametrize("case", USE_CASES)
def test_a_use_case_fills_the_plan(dashboard: Open, case: str) -> None:
    opened = dashboard("start", start_case=case, start_users="60")
    assert opened.refusals == []
    link = plan_link(opened)
    known = find_use_case(case)
    assert link["isl"] == str(known.input_len.mean)
    assert link["osl"] == str(known.output_len.mean)
    assert link["lengths"] == case
    wait_s = known.think_time_s.mean or 1.0
    assert float(link["rate"]) == pytest.approx(60 / wait_s, rel=1e-4)
    assert opened.kpis["Requests/s"] == f"{60 / wait_s:,.2f}"


def test_the_plan_page_asks_what_the_start_page_said(dashboard: Open) -> None:
    start = dashboard(
        "start", start_case="rag", start_users="90", start_ttft_rag="3000", start_isl_rag="5000"
    )
    link = plan_link(start)
    plan = dashboard("plan", **link)
    assert plan.refusals == []
    command = plan.code("shell")
    traffic = build(Traffic, {"use_case": "rag", "users": 90})
    assert "--slo ttft:p95:3000ms" in command
    assert "--slo tpot:p95:50ms" in command
    for flag in (
        "--use-case rag",
        "--input-len 5000",
        "--output-len 256",
        f"--request-rate {traffic.request_rate:g}",
    ):
        assert flag in command
    assert "--slo ttft:p95:3s" in start.code("shell")
    assert "--input-len 5000" in start.code("shell")


def test_assumptions_say_whose_they_are(dashboard: Open) -> None:
    table = dashboard("start", start_think_chat="12").at.dataframe[0].value.set_index("what")
    assert table.loc["think time", "from"] == "you"
    assert table.loc["prompt", "from"].startswith("measured: Azure")


def test_the_copied_command_finds_a_plan(
    dashboard: Open, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = dashboard("start", start_users="50").code("shell")
    shown = printed(f"{command} --num-prompts 100 --gpus h100 --quantizations default", monkeypatch, capsys)
    assert "Rent 1 x h100-sxm-80gb" in shown
