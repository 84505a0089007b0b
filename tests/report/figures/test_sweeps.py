"""A sweep's picture: lines by what varies, no line where points stand above each other."""

from __future__ import annotations

from capacity.report.figures.sweeps import answered_numbers, sweep_points_chart, usual_axes
from capacity.report.views.sweep import varied_options

ROWS = [
    {
        "option.model": "m",
        "option.gpu": gpu,
        "option.batch_size": batch,
        "status": "done",
        "kv_capacity_tokens": 7,
        "ttft_s.value": batch / speed,
    }
    for gpu, speed in (("h100", 1.0), ("h200", 2.0))
    for batch in (64, 1, 8)
] + [{"option.model": "m", "option.gpu": "l4", "option.batch_size": 8, "status": "does not fit"}]


def test_options_that_vary_and_numbers_that_are_asked_for_come_first() -> None:
    assert varied_options(ROWS) == ("option.gpu", "option.batch_size")
    assert answered_numbers(ROWS) == ("ttft_s.value", "kv_capacity_tokens")
    assert usual_axes(ROWS) == ("option.batch_size", "option.gpu")


def test_a_line_for_each_value_in_order() -> None:
    chart = sweep_points_chart(ROWS, x="option.batch_size", y="ttft_s.value", by="option.gpu")
    h100, h200 = chart.figure.data
    assert (h100.name, list(h100.x), list(h100.y)) == ("h100", [1, 8, 64], [1.0, 8.0, 64.0])
    assert list(h200.y) == [0.5, 4.0, 32.0]
    assert h100.mode == "lines+markers"
    assert len(chart.rows) == 6
    assert "6 of 7 points" in chart.alt


def test_points_above_each_other_have_no_line() -> None:
    (all_points,) = sweep_points_chart(ROWS, x="option.gpu", y="ttft_s.value").figure.data
    assert all_points.mode == "markers"
