"""Speculative decoding as pictures: where it pays is where its lines cross one."""

from __future__ import annotations

import capacity
from capacity.report.figures.speculation import acceptance_chart, methods_chart, speedup_chart

METHODS = ("eagle3", "ngram")


def asked(method: str = "eagle3", **options: str) -> capacity.Speculating:
    return capacity.speculate("llama-3.1-8b", gpu="h100", method=method, batches=(1, 512), **options)


def test_the_lines_are_the_answers_rows() -> None:
    answer = asked()
    chart = speedup_chart(answer)
    assert [list(trace.y) for trace in chart.figure.data[:2]] == [
        [row.speedup for row in answer.rows],
        [row.best_speedup for row in answer.rows],
    ]
    stops = answer.break_even_batch
    assert ("at every batch" if stops is None else f"at batch {stops:,}") in chart.alt


def test_acceptance_pays_from_the_first_rate_above_one() -> None:
    rows = [(rate, asked(acceptance=str(rate)).rows[0]) for rate in (0.0, 0.8)]
    assert rows[0][1].speedup < 1 < rows[1][1].speedup
    assert acceptance_chart({3: rows}).alt == "k = 3 pays from 80%."
    assert acceptance_chart({3: rows[:1]}).alt == "k = 3 never pays here."


def test_the_fastest_way_to_draft_stands_first() -> None:
    chart = methods_chart({method: asked(method) for method in METHODS})
    speedups = [row["times as fast"] for row in chart.rows]
    assert speedups == sorted(speedups, reverse=True)
    assert chart.alt.startswith(str(chart.rows[0]["method"]))
