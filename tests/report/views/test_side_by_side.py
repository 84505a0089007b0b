"""GPUs and engines side by side: figures with intervals, best first, and who does not serve, with why."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.answers.engine_comparison import EngineComparison, EngineOnLoad
from capacity.answers.load_point import LoadPoint
from capacity.answers.records import Quantity
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.figures.drawing import draw_charts
from capacity.report.figures.loads import BARS
from capacity.report.layout import Part
from capacity.report.subject import describe_answer
from capacity.report.views.layout import view_parts as parts_of
from capacity.report.views.side_by_side import engine_comparison_view, gpu_comparison_view

FAST = {
    "output_tokens_per_s": Quantity(value=2000.0, low=1500.0, high=2500.0),
    "ttft_s": Quantity(value=0.1, low=0.05, high=0.2),
    "tpot_s": Quantity(value=0.01, low=0.008, high=0.012),
    "e2e_s": Quantity(value=1.0, low=0.9, high=1.2),
}


def row(engine: str, point: dict[str, Any], **more: Any) -> EngineOnLoad:
    """Of one GPU at 16 in flight."""
    return EngineOnLoad(
        engine=engine,
        point=LoadPoint(gpu="h100-sxm-80gb", num_gpus=1, load=16, **point),
        lacks=more.pop("lacks", ()),
        sourced_fraction=0.75,
        **more,
    )


def parts(*rows: EngineOnLoad) -> list[Part]:
    answer = EngineComparison(
        model="m",
        gpu="h100",
        load_field="concurrency",
        load=16,
        input_len=1000,
        output_len=200,
        rows=rows,
    )
    return parts_of(engine_comparison_view(answer), answer)


def cells(table: Any) -> list[list[str]]:
    """Column by column."""
    return [[str(cell) for cell in column.cells] for column in table.columns]


def test_each_engine_has_its_figures_its_memory_and_what_it_lacks() -> None:
    one = row(
        "vllm@1", {**FAST, "basis": "calibrated", "verdict": "stable"},
        weights_bytes=16 * 2**30, kv_capacity_tokens=450_000, max_num_seqs=256, lacks=("FP8 KV cache", "paged KV"),
        notes=("as measured elsewhere",),
    )  # fmt: skip
    headline, speed, memory, *said = parts(one)
    assert headline == (
        "[bold]m[/bold] on h100, closed loop of 16 requests, 1,000 tokens in, 200 out: each engine with its "
        "defaults, 90 % intervals"
    )
    (engine,), (rate,), (ttft,), (tpot,), (e2e,), (basis,) = cells(speed)
    assert (engine, basis) == ("vllm@1", "calibrated")
    assert rate.splitlines() == ["2,000", "[dim]1,500 to 2,500[/dim]"]
    assert (ttft.splitlines()[0], tpot.splitlines()[0], e2e.splitlines()[0]) == (
        "100 ms",
        "10.0 ms",
        "1.00 s",
    )
    assert [cell for (cell,) in cells(memory)] == [
        "vllm@1", "1", "16.00 GiB", "450,000", "256", "75%", "FP8 KV cache, paged KV",
    ]  # fmt: skip
    assert len(said) == 1
    assert "vllm@1: as measured elsewhere" in str(said)


def test_an_overloaded_engine_says_so_and_has_no_latency() -> None:
    point = {
        "output_tokens_per_s": FAST["output_tokens_per_s"],
        "verdict": "overloaded",
        "basis": "calibrated",
    }
    _, speed, memory = parts(row("tgi@3", point))
    assert [cell for (cell,) in cells(speed)][2:] == ["-", "-", "-", "overloaded"]
    assert [cell for (cell,) in cells(memory)][2:] == ["-", "-", "-", "75%", "-"]


def test_who_does_not_run_it_stands_below_with_the_reason() -> None:
    refused = row("llama.cpp@1", {"reason": "no FP8 there"})
    *_, why = parts(row("vllm@1", dict(FAST)), refused)
    assert why == "[red]llama.cpp@1[/red]: no FP8 there"
    assert parts(refused)[1:] == [why]  # no table of nobody


def test_bars_are_the_figures_of_those_that_serve() -> None:
    load = {"gpu": "h100", "input_len": 300, "output_len": 60, "concurrency": 4}
    answer = capacity.compare_engines(
        "llama-3.1-8b", engines=("vllm", "sglang", "llama.cpp"), quantization="fp8", **load
    )
    assert describe_answer(answer).startswith("llama-3.1-8b, 1 x h100-sxm-80gb, 300 tokens in")
    known = {row.engine: row.point.tpot_s for row in answer.rows if row.point.tpot_s is not None}
    (chart,) = draw_charts(engine_comparison_view(answer, ["tpot"]), answer)
    (bar,) = chart.figure.data
    assert list(bar.y) == list(known)
    assert list(bar.x) == pytest.approx([1e3 * value.value for value in known.values()])
    last = list(known.values())[-1]
    assert last.high is not None
    assert bar.x[-1] + bar.error_x.array[-1] == pytest.approx(1e3 * last.high)
    drawn = answer_charts(answer)
    assert [each.name for each in drawn] == ["engines_throughput", "engines_ttft", "engines_tpot"]
    assert all("<svg" in each.svg() for each in drawn)


@pytest.mark.parametrize("order", BARS)
def test_gpus_stand_in_order_with_the_interval_as_whiskers(order: str) -> None:
    compared = capacity.compare_gpus(
        "llama-3.1-70b",
        gpus=("l4", "h100-sxm-80gb", "b200-sxm-180gb"),
        order=order,
        input_len=1024,
        output_len=256,
        concurrency=8,
        price_tier="on-demand",
    )
    (chart,) = answer_charts(compared)
    (bars,) = chart.figure.data
    assert sorted(bars.y) == ["2 x b200-sxm-180gb", "4 x h100-sxm-80gb"]
    shown = list(bars.x)
    assert shown == sorted(shown, reverse=order.startswith("throughput"))
    if order == "ttft":
        best = compared.rows[0].ttft_s
        assert best is not None
        assert shown[0] == pytest.approx(best.value * 1e3)
        assert shown[0] + bars.error_x.array[0] == pytest.approx(best.high * 1e3)
        assert shown[0] - bars.error_x.arrayminus[0] == pytest.approx(best.low * 1e3)
    _, table, refused = parts_of(gpu_comparison_view(compared), compared)
    assert cells(table)[0] == list(bars.y)
    assert str(refused).startswith("[red]l4-24gb[/red]: ")
