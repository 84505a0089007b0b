"""Numbers as people read them, commands to paste, the grid of fits, and charts that do not speak by colour alone."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capacity
from capacity.answers.grid import fit_grid
from capacity.answers.records import Quantity
from capacity.base.command_text import command_line, python_call
from capacity.cli.main import main
from capacity.deployment import read_deployment
from capacity.hardware import load_profile
from capacity.report.display import STANDARD, Units, between
from capacity.report.figures.estimates import responses_chart, roofline_chart, shares_chart, step_chart
from capacity.report.figures.memory import cell_text, grid_rows, memory_chart

ASKED: dict[str, Any] = {"gpu": "h100", "input_len": 1000, "output_len": 200, "batch_size": 16}


@given(st.floats(0, 1e15))
def test_units_change_the_unit_alone(value: float) -> None:
    other = Units(memory="GB", time="s")
    assert STANDARD.of_bytes(value) * 2**30 == pytest.approx(other.of_bytes(value) * 1e9)
    assert STANDARD.of_seconds(value) / 1e3 == pytest.approx(other.of_seconds(value))


def test_numbers_carry_their_unit_and_interval() -> None:
    assert STANDARD.memory_text(2**30) == "1.00 GiB"
    assert Units(memory="GB").memory_text(2**30) == "1.07 GB"
    assert (STANDARD.time_text(0.01234), Units(time="s").time_text(0.01234)) == ("12.3 ms", "0.0123 s")
    quantity = Quantity(value=2.0, low=1.0, high=4.0)
    assert STANDARD.time_interval(quantity) == "1,000.0 to 4,000.0 ms"
    assert between(quantity.inverse(8.0), 1, 1, "") == "2.0 to 8.0"
    assert between(Quantity(value=2.0), 1, 1, "") == ""


POOLS = st.fixed_dictionaries(
    {"gpu": st.sampled_from(("h100", "a100"))},
    optional={
        "tensor_parallel_size": st.integers(1, 16),
        "enable_expert_parallel": st.booleans(),
        "enable_prefix_caching": st.booleans(),
        "quantization": st.sampled_from(("fp8", "awq")),
        "gpu_memory_utilization": st.floats(0.01, 1),
        "max_model_len": st.integers(1, 10_000),
    },
)


@settings(max_examples=15)
@given(pool=POOLS)
def test_a_command_says_what_the_keywords_say(
    pool: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("command") / "written.toml"
    words = (
        command_line("fit", "llama-3.1-8b", pool | {"write_deployment": str(file)})
        .replace("\\\n", " ")
        .split()
    )
    before, sys.argv = sys.argv, words
    try:
        with pytest.raises(SystemExit):
            main()
    finally:
        sys.argv = before
    written = read_deployment(file)
    assert written.model == "llama-3.1-8b"
    assert {name: getattr(written.pools[0], name) for name in pool} == pytest.approx(pool)


def test_lists_and_odd_names_are_quoted_as_a_shell_reads_them() -> None:
    options = {
        "gpus": ("h100", "l40s"),
        "slo": ("ttft:p95:1s", "tpot:50"),
        "quantizations": (None, "fp8"),
        "seed": None,
    }
    command = command_line("plan", "my model.json", options)
    assert command.startswith("capacity plan 'my model.json'")
    assert "--gpus h100,l40s" in command
    assert "--slo ttft:p95:1s" in command
    assert "--slo tpot:50" in command
    assert "--quantizations default,fp8" in command
    assert "seed" not in command
    assert "    gpus=('h100', 'l40s'),\n" in python_call("plan", "my model.json", options)


def test_the_grid_is_fit_at_every_place() -> None:
    grid = fit_grid(
        "llama-3.1-70b", gpus=("h100-sxm-80gb", "l4-24gb"), tensor_parallel_sizes=(2, 4), quantization="fp8"
    )
    for cell in grid.cells:
        place = {"gpu": cell.gpu, "tensor_parallel_size": cell.tensor_parallel_size}
        answer = capacity.fit("llama-3.1-70b", quantization="fp8", **place)
        assert cell.fits is answer.fits
        assert cell.reason == answer.reason
        assert cell_text(cell) == (f"✓ {answer.max_concurrency:,.1f}" if answer.fits else "✗")
    assert [row["GPU"] for row in grid_rows(grid)] == ["h100-sxm-80gb", "l4-24gb"]


def test_what_cannot_be_on_a_gpu_is_a_cell_with_its_reason() -> None:
    (cell,) = fit_grid("llama-3.1-8b", gpus=("h100",), tensor_parallel_sizes=(7,)).cells
    assert not cell.fits
    assert cell.reason
    with pytest.raises(capacity.InvalidInput, match="no model"):
        fit_grid("llama-9")


@pytest.fixture(scope="module")
def estimate() -> capacity.Estimate:
    return capacity.estimate("llama-3.1-8b", **ASKED)


def test_the_roofline_holds_every_operator_below_the_roof(estimate: capacity.Estimate) -> None:
    chart = roofline_chart(estimate)
    profile = load_profile("h100")
    ridge = estimate.arithmetic_intensity.ridge_flops_per_byte
    for row in chart.rows:
        roof = profile.hbm_bytes_per_s * min(row["FLOP/byte"], ridge) / 1e12
        assert row["TFLOP/s"] <= roof * 1.05 or row["bound"] not in ("memory", "compute")
    steps = {row["phase"]: row["FLOP/byte"] for row in chart.rows if row["operator"] == "step"}
    assert steps["prefill"] > ridge > steps["decode"]


def test_the_waterfalls_parts_follow_each_other_and_add_up(estimate: capacity.Estimate) -> None:
    operators = estimate.breakdown.decode
    chart = step_chart(operators, "decode")
    ends = sorted((b, b + x) for trace in chart.figure.data for b, x in zip(trace.base, trace.x, strict=True))
    assert ends[0][0] == 0
    assert all(after[0] == pytest.approx(before[1]) for before, after in pairwise(ends))
    assert ends[-1][1] == pytest.approx(sum(op.seconds for op in operators) * 1e3)


def test_no_chart_tells_series_apart_by_colour_alone(estimate: capacity.Estimate) -> None:
    why = capacity.explain("llama-3.1-8b", **ASKED)
    charts = [
        memory_chart(capacity.fit("llama-3.1-8b", gpu="h100")),
        step_chart(estimate.breakdown.prefill, "prefill"),
        shares_chart(why),
        responses_chart(why),
    ]
    for chart in charts:
        shapes = [trace.marker.pattern.shape for trace in chart.figure.data]
        assert len(set(shapes)) == len(shapes)
    points = [
        trace for trace in roofline_chart(estimate).figure.data if trace.name and trace.name.endswith(" step")
    ]
    assert len({trace.marker.symbol for trace in points}) == len(points)
    for chart in (*charts, roofline_chart(estimate)):
        assert chart.alt.endswith(".")
        assert chart.rows


def test_a_charts_html_needs_nothing_else(estimate: capacity.Estimate, tmp_path: Path) -> None:
    page = roofline_chart(estimate).html()
    (tmp_path / "chart.html").write_text(page, encoding="utf-8")
    assert "<script src=" not in page
