"""Sides as rows: every side with its interval, each but the first with how far it is from the first."""

from __future__ import annotations

import capacity
from capacity.answers.records import Quantity
from capacity.answers.sides import Change
from capacity.report.display import Units
from capacity.report.sides import change_text, settings_text, shown, side_rows

ASKED = {"input_len": 1024, "output_len": 256, "batch_size": 8, "price_tier": "on-demand"}


def test_rows_hold_every_side_and_how_far_it_is_from_the_first() -> None:
    sides = {
        "A": capacity.estimate("llama-3.1-8b", gpu="h100-sxm-80gb", **ASKED),
        "B": capacity.estimate("llama-3.1-8b", gpu="b200-sxm-180gb", **ASKED),
    }
    rows = {row[""].strip(): row for row in side_rows(sides, Units(time="s"))}
    for name, answer in sides.items():
        assert answer.tpot_s is not None
        assert rows["TPOT"][name].startswith(f"{answer.tpot_s.value:.4f} s (")
    months = [side.cost.usd_per_month for side in sides.values() if side.cost is not None]
    assert rows["$ a month"]["B against A"] == f"{100 * (months[1] / months[0] - 1):+.0f} %"
    assert rows["TPOT"]["B against A"].startswith("-")
    assert "A against A" not in rows["TPOT"]


def test_what_differs_and_what_has_no_figure() -> None:
    first, second = {"gpu": "h100", "tensor_parallel_size": 4}, {"gpu": "b200", "quantization": "fp8"}
    assert settings_text(first, second) == (
        "gpu h100 -> b200, tensor_parallel_size 4 -> the default, quantization the default -> fp8"
    )
    assert settings_text(first, first) == ""
    assert shown("ttft_s", None) == "-"
    assert shown("requests_per_s", Quantity(value=4.0)) == "4.00"


def test_tenfold_and_more_is_told_as_times() -> None:
    def text(second: float, **words: str) -> str:
        sides = [Quantity(value=each, low=each, high=each) for each in (1.0, second)]
        return change_text(Change(figure="ttft_s", first=sides[0], second=sides[1]), **words)

    assert text(1.25) == "+25 %, outside"
    assert text(0.5, of="A") == "-50 % against A, outside"
    assert text(2040.6, of="A") == "2,041 times A, outside"
    assert text(10.0) == "10 times, outside"
