"""A plan and a curve as one HTML file: it needs nothing else, and nothing of an answer is markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape

from capacity import curve
from capacity.planning.records import Plan
from capacity.report.plan_summary import plan_view
from capacity.report.sheet import answer_html
from capacity.report.tables import render
from capacity.report.views.layout import view_parts


def test_a_report_holds_the_answer_its_charts_and_its_files(small_plan: Plan) -> None:
    page = answer_html(
        small_plan,
        view_parts(plan_view(small_plan), small_plan),
        files=[("Launch <it>", "vllm serve & wait")],
    )
    assert small_plan.best is not None
    assert f"<td>{escape(small_plan.best.label)}</td>" in page
    assert all(escape(f"price of {price}") in page for price in small_plan.prices)
    assert f"{small_plan.counts.points:,} deployments" in page
    assert page.count("<svg") == 2
    assert "Launch &lt;it&gt;" in page
    assert "vllm serve &amp; wait" in page
    assert not re.search(r'src=|href="(?!#)', page)


def test_names_are_text(small_plan: Plan) -> None:
    assert "<script>" not in render(replace(small_plan, model="<script>x</script>"), "html")


def test_an_unmet_plan_says_so(small_plan: Plan) -> None:
    page = render(replace(small_plan, ranked=(), speed_front=(), cost_front=()), "html")
    assert "No deployment in the search space meets the SLO" in page
    assert "<svg" not in page


def test_a_curve_has_its_levels_its_throughput_and_its_day() -> None:
    answer = curve(
        "llama-3.1-8b", gpu="h100", input_len=300, output_len=20, num_prompts=300, rates=[1.0, 8.0],
        slo=("ttft:p95:1s", "tpot:50"), peak_rate=20.0,
    )  # fmt: skip
    page = render(answer, "html", command="capacity curve <it>")
    assert page.count("<svg") == 3
    assert "ttft:p95:1s" in page
    assert "Throughput against load" in page
    assert "capacity curve &lt;it&gt;" in page
    assert '<td class="n">23</td>' in page  # the day's last hour
