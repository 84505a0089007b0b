"""A plan as tables: levels with their intervals, losses of quality, and what was turned down."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planned_options import level

from capacity.planning.quality import AS_PUBLISHED, QualityChange
from capacity.planning.records import Miss, Plan
from capacity.report.layout import render_text
from capacity.report.plan import (
    level_text,
    quality_sources,
    quality_text,
    rejection_rows,
)
from capacity.report.plan_summary import plan_view
from capacity.report.views.layout import view_parts


def flat(plan: Plan) -> str:
    return " ".join(render_text(view_parts(plan_view(plan), plan)).split())


def test_a_level_has_its_interval_where_it_is_known() -> None:
    assert level_text(None) == "-"
    assert level_text(level(1.234)) == "1,234 ms"
    assert level_text(level(1.234, low_s=1.2, high_s=1.3)) == "1,230 ms (1,200 to 1,300)"
    assert level_text(level(None, good_fraction=0.991)) == "99.10%"


@pytest.mark.parametrize(
    ("typical", "worst", "text"),
    [(None, None, "unknown"), (0.0, 0.0, "none"), (0.004, 0.012, "0.4 to 1.2%")],
)
def test_a_loss_of_quality_in_words(
    small_plan: Plan, typical: float | None, worst: float | None, text: str
) -> None:
    quality = QualityChange(typical_loss_fraction=typical, worst_loss_fraction=worst, what="w", source="s")
    answer = replace(small_plan.ranked[0], quality=quality)
    assert quality_text(answer) == text
    assert quality_sources([answer]) == ({} if worst == 0 else {"w": "s"})
    assert quality_sources([replace(answer, quality=AS_PUBLISHED)]) == {}


def test_without_a_price_there_is_a_dash(small_plan: Plan) -> None:
    best = small_plan.ranked[0]
    assert best.cost is not None
    assert f"{best.cost.usd_per_hour:,.2f} {best.cost.usd_per_month:,.0f}" in flat(small_plan)
    unpriced = replace(best, cost=None, joules_per_output_token=None)
    assert f"{best.num_gpus} - - - -" in flat(replace(small_plan, ranked=(unpriced,)))


def test_every_rejection_is_counted_under_its_reason(small_plan: Plan) -> None:
    rows = rejection_rows(small_plan)
    counts = [count for count, _, _ in rows]
    assert sum(counts) == len(small_plan.rejected) > 0
    assert counts == sorted(counts, reverse=True)


def test_what_is_not_proved_and_what_is_missed_are_said(small_plan: Plan) -> None:
    assert "not proved" not in flat(small_plan)
    assert "better deployments may exist" in flat(replace(small_plan, proved=False))
    miss = Miss(
        slo="capacity", limit="--max-gpus", best="needs 9", factor=float("inf"), candidate="1 x h100 TP1"
    )
    unmet = flat(replace(small_plan, ranked=(), misses=(miss,)))
    assert "No deployment in the search space meets the SLO" in unmet
    assert "needs 9 - 1 x h100 TP1" in unmet
