"""Measured public runs next to their predictions: errors by source, the parity chart, and dots on the frontier."""

from __future__ import annotations

from dataclasses import replace

import pytest

import capacity
from capacity.answers.phases import RequestLengths
from capacity.answers.published_runs import measured_runs, nearest_runs, published_rows
from capacity.answers.records import PublishedRun
from capacity.base.quantity import Quantity
from capacity.deployment import Pool
from capacity.pool.resolve import resolve
from capacity.report.display import STANDARD
from capacity.report.figures.frontiers import frontier_chart
from capacity.report.views.evidence import metric_errors, published_view
from capacity.report.views.view import CustomChart, Table


@pytest.fixture(scope="module")
def run() -> PublishedRun:
    pool = resolve("llama-3.3-70b", Pool(gpu="h100", tensor_parallel_size=2, quantization="fp8"))
    runs = nearest_runs(pool, RequestLengths(input_len=5000, output_len=500), 25)
    return next(run for run in runs if run.tpot_measured_s is not None and run.ttft_measured_s is not None)


def with_tpot(run: PublishedRun, measured_s: float | None) -> PublishedRun:
    """The run with a predicted TPOT of 10 ms (8 to 13) and this measured one."""
    return replace(run, tpot_measured_s=measured_s, tpot_s=Quantity(value=0.010, low=0.008, high=0.013))


def test_errors_are_those_of_predicted_over_measured(run: PublishedRun) -> None:
    runs = [with_tpot(run, measured_s) for measured_s in (0.010, 0.008, 0.020, None)]
    errors = metric_errors("all", runs, "tpot")
    assert errors is not None
    assert errors.runs == 3  # one states no TPOT
    assert errors.median == pytest.approx(0.25)  # of 0, 0.25 and 0.5
    assert errors.p90 == pytest.approx(0.45)
    assert errors.inside == pytest.approx(2 / 3)  # 20 ms is above 13
    assert metric_errors("none", runs[3:], "tpot") is None


def test_the_view_has_a_point_for_each_run_and_a_row_for_each_source(run: PublishedRun) -> None:
    runs = [with_tpot(run, 0.010), replace(with_tpot(run, 0.012), source="another")]
    chart, table = list(published_view(runs).blocks)[:2]
    assert isinstance(chart, CustomChart)
    assert isinstance(table, Table)
    drawn = chart.draw(STANDARD)
    points = [(x, y) for trace in drawn.figure.data[:-1] for x, y in zip(trace.x, trace.y, strict=True)]
    assert points == [(10.0, 10.0), (12.0, 10.0)]
    assert [row["measured, s"] for row in drawn.rows] == [0.010, 0.012]
    assert [(row.source, row.runs) for row in table.rows] == [
        ("all sources", 2),
        (run.source, 1),
        ("another", 1),
    ]


def test_the_frontier_has_a_dot_for_each_measured_run_of_its_model_and_gpus() -> None:
    answer = capacity.frontier("llama-3.3-70b", gpus=["h100"], input_len=1000, output_len=200, loads=(1, 8))
    row = next(
        row
        for row in published_rows()
        if row["model"] == "llama-3.3-70b" and row["gpu"] == "h100-sxm-80gb" and row["output_tok_s"]
    )
    stars = [
        trace for trace in frontier_chart(answer).figure.data if trace.name == "published runs, measured"
    ]
    found = list(measured_runs("llama-3.3-70b", {"h100-sxm-80gb"}))
    assert len(stars) == 1
    assert list(stars[0].y) == [measured.tokens_per_s_per_gpu for measured in found]
    assert 1e3 / float(row["tpot_ms"]) in [measured.tokens_per_s_per_user for measured in found]
    assert list(measured_runs("llama-3.3-70b", {"l4-24gb"})) == []
