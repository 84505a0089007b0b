"""The view of compared deployments: sides as columns, and every chart has every side and the limit of its SLO."""

from __future__ import annotations

import pytest

import capacity
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.views.deployment_comparison import JOULES, comparison_view
from capacity.report.views.layout import table_records
from capacity.report.views.view import Table


def test_table_and_charts_have_every_side() -> None:
    traffic = {"input_len": 1024, "output_len": 256, "request_rate": 40.0, "num_prompts": 200}
    sides = [
        {"model": "llama-3.1-8b", "pools": [{"gpu": gpu}], "traffic": traffic, "cost": {"price": "4"}}
        for gpu in ("h100", "b200")
    ]
    answer = capacity.compare_deployments(sides, slo=["ttft:p95:500ms"])
    view = comparison_view(answer)
    assert view.title == answer.verdict
    (table,) = (block for block in comparison_view(answer).blocks if isinstance(block, Table))
    rows = {row[""]: row for row in table_records(table)}
    assert answer.sides[1].needed is not None
    assert rows["replicas"]["B"] == str(answer.sides[1].needed.replicas)
    text = str(next(block for block in comparison_view(answer).blocks if "per request" in str(block)))
    assert answer.differences[0].text(answer.differences[0].per_request) in text
    frontier, level, bills, memory = answer_charts(answer)
    assert all(len(chart.figure.data) == 2 for chart in (frontier, level, bills))
    assert level.figure.layout.shapes[0].y0 == 500
    assert all(list(trace.y) == ["A", "B"] for trace in memory.figure.data)


@pytest.mark.ci
def test_day_and_energy_have_rows_a_table_and_a_chart() -> None:
    traffic = {
        "input_len": 1024,
        "output_len": 256,
        "request_rate": 0.05,
        "arrivals": "diurnal",
        "day_peak_to_mean": 2.0,
    }
    sides = [
        {"model": "llama-3.1-8b", "pools": [{"gpu": gpu}], "traffic": traffic, "cost": {"price": "4"}}
        for gpu in ("h100", "b200")
    ]
    answer = capacity.compare_deployments(sides, slo=["ttft:p95:500ms"])
    blocks = list(comparison_view(answer).blocks)
    summary, hours = (table_records(block) for block in blocks if isinstance(block, Table))
    rows = {row[""]: row for row in summary}
    assert answer.sides[0].drawn is not None
    assert answer.sides[0].window is not None
    assert rows["worst SLO window"]["A"] == answer.sides[0].window.text
    joules = answer.sides[0].drawn.joules_per_output_token
    assert rows["drawn J per output token, GPUs only"]["A"] == JOULES.text_with_interval(joules)
    assert [row["requests/s"] for row in hours][12] == 0.1
    assert {row["replicas of B"] for row in hours} == {1}
    (chart,) = (chart for chart in answer_charts(answer) if chart.name == "replicas_by_hour")
    assert len(chart.figure.data) == 2
    assert any("replica-hours autoscaled" in block for block in blocks if isinstance(block, str))
