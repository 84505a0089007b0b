"""How far a figure is from another, in words, and which settings differ."""

from __future__ import annotations

from capacity.answers.records import Quantity
from capacity.answers.sides import Change
from capacity.report.sides import change_text, settings_text


def test_what_differs() -> None:
    first, second = {"gpu": "h100", "tensor_parallel_size": 4}, {"gpu": "b200", "quantization": "fp8"}
    assert settings_text(first, second) == (
        "gpu h100 -> b200, tensor_parallel_size 4 -> the default, quantization the default -> fp8"
    )
    assert settings_text(first, first) == ""


def test_tenfold_and_more_is_told_as_times() -> None:
    def text(second: float, **words: str) -> str:
        sides = [Quantity(value=each, low=each, high=each) for each in (1.0, second)]
        return change_text(Change(figure="ttft_s", first=sides[0], second=sides[1]), **words)

    assert text(1.25) == "+25 %, outside"
    assert text(0.5, of="A") == "-50 % against A, outside"
    assert text(2040.6, of="A") == "2,041 times A, outside"
    assert text(10.0) == "10 times, outside"
