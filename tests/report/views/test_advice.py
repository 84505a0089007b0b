"""The changes that help as a picture: bars are the answer's numbers."""

from __future__ import annotations

import pytest

import capacity
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.views.advice import CHART_CHANGES

LENGTHS = {"input_len": 1024, "output_len": 256}


def test_advice_draws_the_changes_that_help() -> None:
    answer = capacity.advise("llama-3.1-8b", gpu="h100", **LENGTHS, request_rate=4.0, num_prompts=30)
    (chart,) = answer_charts(answer)
    assert len(chart.rows) == len([line for line in answer.advice if line.effects is not None])
    changes = chart.figure.data[0].y
    assert 1 <= len(changes) <= len(chart.rows) <= 8
    by_change = {line.change: line.effects for line in answer.advice}
    for bars, field in zip(chart.figure.data, CHART_CHANGES.values(), strict=True):
        drawn = dict(zip(bars.y, bars.x, strict=True))
        for change in changes:
            share = getattr(by_change[change.replace("<br>", " ")], field)
            assert drawn[change] == (None if share is None else pytest.approx(100 * share))
    assert all(set(row) >= {"change", "flags", "$/h"} for row in chart.rows)
