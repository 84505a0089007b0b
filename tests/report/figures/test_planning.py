"""A plan as rows and a picture: the ranking, what was turned down, and the speed front."""

from __future__ import annotations

import pytest

import capacity
from capacity.planning.records import KINDS, Plan
from capacity.report.figures.planning import miss_rows, ranked_rows, rejected_rows, short_label, speed_chart


@pytest.fixture(scope="module")
def plan() -> Plan:
    return capacity.plan(
        "llama-3.1-8b", gpus="h100", tensor_parallel_sizes=(1,), quantizations=(None, "fp8"),
        kv_cache_dtypes=("auto",), max_num_batched_tokens=(None,), speculators="none", serving="aggregated",
        replications=1, price="2", slo="ttft:p95:500ms tpot:p95:40ms", request_rate=20.0, input_len=300,
        output_len=30, num_prompts=60,
    )  # fmt: skip


def test_every_candidate_is_ranked_or_turned_down_for_a_reason(plan: Plan) -> None:
    ranked, rejected = ranked_rows(plan), rejected_rows(plan)
    assert [row[""] for row in ranked] == list(range(1, len(plan.ranked) + 1))
    assert {row["$/h"] for row in ranked} == {2.0 * row["GPUs"] for row in ranked}
    assert all(row["reason"] and row["kind"] in KINDS.values() for row in rejected)
    assert len(rejected) == len(plan.rejected)
    assert miss_rows(plan) == []


def test_the_front_has_a_filled_mark_for_what_meets_the_levels(plan: Plan) -> None:
    chart = speed_chart(plan)
    meeting = [row for row in chart.rows if row["meets the SLO"]]
    assert chart.alt.endswith(f"{len(meeting)} of them meet the service levels.")
    marks = {trace.name: trace for trace in chart.figure.data if "markers" in trace.mode}
    rented = marks.pop("to rent, by cost")
    best = plan.best
    assert best is not None
    assert list(rented.y) == [best.tokens_per_s_per_gpu]
    assert rented.text[0] == f"<b>{short_label(best.candidate.label)}</b>"
    assert len(marks.pop("also meets it").x) == len(plan.ranked) - 1
    drawn = {name: len(trace.x) for name, trace in marks.items()}
    assert drawn[plan.speed_front[0].gpu] == len(meeting)
    assert sum(drawn.values()) == len(chart.rows)
    assert short_label("3 x h100-sxm-80gb TP1") == "3 x h100 TP1"
