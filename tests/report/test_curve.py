"""A curve as tables: its knee, and a day in words."""

from __future__ import annotations

from capacity import curve
from capacity.planning.load.curve import replicas_by_hour
from capacity.report.tables import render
from capacity.report.views.rising_load import day_text


def test_a_day_in_words_has_dollars_only_with_a_price() -> None:
    day = replicas_by_hour([1.0] * 12 + [3.0] * 12, 1.0, replicas=1, gpus_per_replica=1, price=None)
    assert day_text(day) == "48 replica-hours autoscaled, 72 fixed"


def test_a_curve_marks_its_knee_once_and_what_misses_its_slo() -> None:
    answer = curve(
        "llama-3.1-8b", gpu="h100", input_len=300, output_len=20, num_prompts=60, rates=[1.0, 100.0, 400.0],
        slo="ttft:p95:50ms",
    )  # fmt: skip
    lines = render(answer, "table").splitlines()
    assert sum(" knee" in line for line in lines) == 1
    missed = [point for point in answer.points if not point.met]
    assert missed
    assert sum("(missed)" in line for line in lines) == len(missed)
