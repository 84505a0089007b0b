"""Two plans side by side: the winner of each, its price, how far within the limits, and how far from the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import pytest
from capacity_app import sides
from capacity_app.error_display import escape_markdown
from capacity_app.questions import verb_task
from capacity_app.side import Side, pack_text, read_side

import capacity
from capacity.report.plan import conditional_texts, level_text
from capacity.report.plan_summary import plan_facts

Open = Callable[..., Any]
FEW = {"plan_n": "50", "plan_gpus": "h100-sxm-80gb", "plan_ttft": "2000", "rate": "4"}
ASKED: dict[str, Any] = {
    "gpus": ("h100-sxm-80gb",),
    "slo": ("ttft:p95:2000ms", "tpot:p95:50ms"),
    "input_len": 1024,
    "output_len": 256,
    "num_prompts": 50,
    "price_tier": "on-demand",
    "objective": "cost",
    "max_gpus": 64,
    "time_limit_s": 60.0,
}


@pytest.mark.ci
def test_two_plans_stand_beside_each_other_and_a_link_restores_both(dashboard: Open) -> None:
    opened = dashboard("plan", **FEW)
    opened.at.button(key="run_plan").click().run()
    opened.settled().at.button(key="pin").click().run()
    opened.settled().at.text_input(key="what_if").set_value("l40s").run()
    opened.settled().settled()
    assert opened.refusals == []
    plans = [
        capacity.plan("llama-3.1-8b", **{**ASKED, "gpus": (gpu,)}, request_rate=4.0)
        for gpu in ("h100-sxm-80gb", "l40s-48gb")
    ]
    first, second = (plan.best for plan in plans)
    assert first is not None
    assert second is not None
    assert first.cost is not None
    assert second.cost is not None
    assert opened.kpis["To rent"] == second.candidate.label
    rows = rows_of(opened)
    assert (rows["To rent"]["A"], rows["To rent"]["B"]) == (first.candidate.label, second.candidate.label)
    assert rows["Per hour"]["A"] == f"${first.cost.usd_per_hour:,.2f}"
    dearer = second.cost.usd_per_hour / first.cost.usd_per_hour - 1
    assert rows["Per hour"]["B vs. A"] == f"{100 * dearer:+.0f} %"
    tightest = max(second.trial.levels, key=lambda level: level.ratio)
    assert f"headroom {100 * (1 - tightest.ratio):,.0f} %" in rows["Of the limit"]["B"]
    assert rows["Of the limit"]["B vs. A"].endswith(("outside", "within"))
    for level, expected in zip(second.trial.levels, second.predicted.levels, strict=True):
        name = level.slo.split(":")[0].upper()
        card = next(metric for metric in opened.at.metric if metric.label == f"p95 {name}, expected")
        assert card.value == level_text(expected).partition(" (")[0]
        assert f"at 90% confidence {level_text(level).partition(' (')[0]}" in card.delta
    link = parse_qs(next(code.value for code in opened.at.sidebar.code).partition("?")[2])
    again = dashboard("plan", **{key: values[0] for key, values in link.items()}).settled().settled()
    assert again.kpis == opened.kpis
    assert rows_of(again) == rows


@pytest.mark.slow
def test_plan_page_lists_what_is_not_recommended_with_its_saving(dashboard: Open) -> None:
    """As the command line does, below a recommendation without it; its launch line is the plan's."""
    opened = dashboard("plan", **{**FEW, "plan_n": "60", "plan_tpot": "8", "rate": "40"})
    opened.at.button(key="run_plan").click().run()
    opened.settled()
    asked = {**ASKED, "slo": ("ttft:p95:2000ms", "tpot:p95:8ms"), "num_prompts": 60}
    plan = capacity.plan("llama-3.1-8b", **asked, request_rate=40.0)
    assert plan.best is not None
    assert plan.conditional
    assert opened.kpis["To rent"] == plan.best.label
    shown = [str(each.value) for each in opened.at.markdown]
    for text in conditional_texts(plan):
        assert f"- {escape_markdown(text)}" in shown
    assert any("planned for vllm" in str(caption.value) for caption in opened.at.caption)


def rows_of(opened: Any) -> dict[str, Any]:
    """The sides' table by its figures."""
    shown = next(frame.value for frame in opened.at.dataframe if "A" in frame.value)
    return {row[""].strip(): row for row in shown.to_dict("records")}


PLAN = sides.side_of("plan", {"model": "llama-3.1-8b", **ASKED, "request_rate": 4.0, "use_case": "chat"})
POOL = Side(
    page="estimate",
    model="qwen3-8b",
    options={"gpu": "l40s-48gb", "input_len": 10, "output_len": 20, "request_rate": 9.0},
    cost={"price": "2"},
)


def test_a_plan_in_a_link_is_the_same_search() -> None:
    read = read_side(PLAN.link_text)
    assert read == PLAN
    assert (
        verb_task("plan", "llama-3.1-8b", {**read.options, **read.cost}).key
        == verb_task("plan", "llama-3.1-8b", {**ASKED, "request_rate": 4.0, "use_case": "chat"}).key
    )


def test_what_is_pinned_elsewhere_is_a_plan_of_its_model_and_traffic() -> None:
    asked = POOL.convert_to_page(PLAN)
    assert asked.model == "qwen3-8b"
    assert asked.cost == POOL.cost
    assert asked.options == {**PLAN.options, "input_len": 10, "output_len": 20, "request_rate": 9.0}
    back = PLAN.convert_to_page(POOL)
    assert back.options == {**POOL.options, "input_len": 1024, "output_len": 256, "request_rate": 4.0}
    assert back.model == "llama-3.1-8b"


@pytest.mark.parametrize(
    "options",
    [
        {"gpu": ["h100-sxm-80gb"]},
        {"gpus": ["/etc/passwd"]},
        {"gpus": ["h100-sxm-80gb"], "slo": ["ttft:p95:1ms; rm"]},
        {"gpus": ["h100-sxm-80gb"], "objective": "everything"},
        {"gpus": ["h100-sxm-80gb"], "time_limit_s": 1e300},
        {"gpus": ["h100-sxm-80gb"], "price_file": "/etc/passwd"},
        {"gpus": "h100-sxm-80gb"},
    ],
)
def test_a_hostile_plan_of_a_link_is_refused(options: dict[str, Any]) -> None:
    side = {"page": "plan", "model": "llama-3.1-8b", "options": options, "cost": {}}
    with pytest.raises(capacity.InvalidInput):
        read_side(pack_text(json.dumps(side)))


def test_without_a_winner_it_says_what_is_in_the_way() -> None:
    impossible = {**ASKED, "slo": ("ttft:p95:1ms",), "max_gpus": 2, "quantizations": "default"}
    plan = capacity.plan("llama-3.1-8b", **impossible, request_rate=4.0)
    (only,) = plan_facts(plan)
    assert only.value == "none"
    assert plan.misses[0].best in only.note
