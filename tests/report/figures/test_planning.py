"""A plan as rows and a picture: the ranking, what was turned down, and the speed front."""

from __future__ import annotations

from dataclasses import replace

import pytest

import capacity
from capacity.planning.records import KINDS, Plan
from capacity.report.figures.planning import (
    MAX_RATIO_SHOWN,
    front_chart,
    short_label,
    speed_chart,
    whisker_caption,
)
from capacity.report.plan import ranked_table, rejected_table
from capacity.report.views.layout import table_records


@pytest.fixture(scope="module")
def plan() -> Plan:
    return capacity.plan(
        "llama-3.1-8b", gpus="h100", tensor_parallel_sizes=(1,), quantizations=(None, "fp8"),
        kv_cache_dtypes=("auto",), max_num_batched_tokens=(None,), speculators="none", serving="aggregated",
        replications=1, price="2", slo="ttft:p95:500ms tpot:p95:40ms", request_rate=20.0, input_len=300,
        output_len=30, num_prompts=60,
    )  # fmt: skip


def test_every_candidate_is_ranked_or_turned_down_for_a_reason(plan: Plan) -> None:
    ranked, rejected = table_records(ranked_table(plan)), table_records(rejected_table(plan))
    assert [row[""] for row in ranked] == list(range(1, len(plan.ranked) + 1))
    assert {row["$/h"] for row in ranked} == {2.0 * row["GPUs"] for row in ranked}
    assert all(row["reason"] and row["kind"] in KINDS.values() for row in rejected)
    assert len(rejected) == len(plan.rejected)


def test_the_front_has_a_filled_mark_for_what_meets_the_levels(plan: Plan) -> None:
    chart = speed_chart(plan)
    meeting = [row for row in chart.rows if row["meets the SLO"]]
    assert f"{len(meeting)} of them meet the SLO. {whisker_caption(plan)}" in chart.alt
    assert f"{plan.confidence:.0%} confidence" in whisker_caption(plan)
    marks = {trace.name: trace for trace in chart.figure.data if "markers" in trace.mode}
    best = plan.best
    assert best is not None
    rented = marks.pop(f"1: {short_label(best.candidate.label)}, best by cost")
    assert list(rented.y) == [best.tokens_per_s_per_gpu]
    assert len(marks.pop("others that meet the SLO").x) == len(plan.ranked) - 1
    assert list(marks) == [
        f"{row['mark']}: {short_label(row['deployment'])}{'' if row['meets the SLO'] else ', misses the SLO'}"
        for row in chart.rows
    ]
    ranked = [answer.candidate.label for answer in plan.ranked]
    for row in chart.rows:
        place = ranked.index(row["deployment"]) + 1 if row["deployment"] in ranked else None
        assert row["mark"] == str(place) if place else row["mark"].isalpha()
    filled = [trace.marker.color != "rgba(0,0,0,0)" for trace in marks.values()]
    assert filled == [row["meets the SLO"] for row in chart.rows]
    assert short_label("3 x h100-sxm-80gb TP1") == "3 x h100 TP1"


def test_a_whisker_ends_where_step_times_as_predicted_are(plan: Plan) -> None:
    """Of what was simulated with both; slower steps make a slower answer."""
    best = plan.best
    assert best is not None
    assert best.predicted is not None
    star = next(trace for trace in speed_chart(plan).figure.data if str(trace.name).endswith("best by cost"))
    assert star.x[0] + star.error_x.array[0] == pytest.approx(best.predicted.tokens_per_s_per_user)
    assert star.error_x.array[0] > 0
    rest = next(trace for trace in speed_chart(plan).figure.data if trace.name == "others that meet the SLO")
    for answer, x, off in zip(plan.ranked[1:], rest.x, rest.error_x.array, strict=True):
        assert (off > 0) == (answer.predicted is not None)
        assert answer.predicted is None or x + off == pytest.approx(answer.predicted.tokens_per_s_per_user)
    ranked = {answer.candidate.label for answer in plan.ranked if answer.predicted is not None}
    for row in speed_chart(plan).rows:
        assert (row["predicted"] is not None) == (row["deployment"] in ranked)


def test_prices_stand_over_the_worst_level_with_the_chance_of_the_traffic(plan: Plan) -> None:
    first, *rest = plan.cost_front
    worst = max(first.levels, key=lambda level: level.ratio)
    sampled = replace(
        worst, low_s=0.5 * worst.limit_s * worst.ratio, high_s=1.25 * worst.limit_s * worst.ratio
    )
    levels = tuple(sampled if level is worst else replace(level, low_s=None) for level in first.levels)
    chart = front_chart(replace(plan, cost_front=(replace(first, levels=levels), *rest)))
    trace = chart.figure.data[0]
    ratio = min(worst.ratio, MAX_RATIO_SHOWN)
    assert trace.y[0] == ratio
    assert trace.error_y.arrayminus[0] == pytest.approx(0.5 * ratio)
    assert trace.error_y.array[0] == pytest.approx(0.25 * ratio)
    bare = replace(first, levels=tuple(replace(level, low_s=None) for level in first.levels))
    bars = front_chart(replace(plan, cost_front=(bare,))).figure.data[0].error_y
    assert list(bars.array) == list(bars.arrayminus) == [0.0]
