"""The start page: a use case and people become a rate and service levels, and the Plan page opens with all of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from capacity.deployment import Traffic, build
from capacity.deployment.use_cases import USE_CASES, find_use_case, service_levels
from capacity.workload import parse_slos

Open = Callable[..., Any]


def started(dashboard: Open, text: str) -> Any:
    """The start page with this text in its box."""
    opened = dashboard("start")
    opened.at.text_area(key="question").set_value(text).run()
    return opened


def plan_of(opened: Any) -> Any:
    """The plan page, opened from here."""
    opened.at.switch_page("capacity_app/app_pages/plan.py").run()
    return opened


@pytest.mark.parametrize("case", USE_CASES)
def test_a_use_case_fills_the_plan(dashboard: Open, case: str) -> None:
    opened = dashboard("start")
    pills = next(group for group in opened.at.get("button_group") if group.key == "question_case")
    pills.set_value(case).run()
    assert opened.refusals == []
    assert opened.at.text_area(key="question").value.startswith(f"{case}, 100 users")
    known = find_use_case(case)
    inputs = opened.inputs()
    lengths = (known.input_len.mean, known.output_len.mean)
    assert (inputs["isl"].value, inputs["osl"].value) == lengths
    assert inputs["lengths"].value == case
    assert inputs["rate"].value == pytest.approx(100 / (known.think_time_s.mean or 1.0))
    asked = parse_slos(re.findall(r"--slo (\S+)", plan_of(opened).code("shell")))
    assert set(parse_slos(service_levels((), Traffic(use_case=case)))) <= set(asked)


def test_the_plan_page_asks_what_the_start_page_said(dashboard: Open) -> None:
    start = started(dashboard, "rag, 90 users, isl 5000, ttft 3s")
    plan = plan_of(start)
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


def test_assumptions_say_whose_they_are(dashboard: Open) -> None:
    opened = started(dashboard, "chat, 100 users --think-time-s 12")
    assert opened.inputs()["rate"].value == pytest.approx(100 / 12)
    table = opened.at.dataframe[0].value.set_index("what")
    assert table.loc["think time", "from"] == "you"
    assert table.loc["prompt", "from"].startswith("measured: Azure")
    assert table.loc["target", "from"].startswith("published: ")
    opened.at.number_input(key="slo_ttft").set_value(300.0).run()
    assert opened.at.dataframe[0].value.set_index("what").loc["target", "from"] == "you"


def test_another_use_case_removes_the_limit_of_the_one_before(dashboard: Open) -> None:
    opened = started(dashboard, "batch, 10 users --response-s 1")
    opened.at.text_area(key="question").set_value("rag, 10 users").run()
    assert "e2el" not in plan_of(opened).code("shell")
