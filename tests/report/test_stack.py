"""What `stack` prints: each technique with its place, factors, reasons and the flags of the last row."""

from __future__ import annotations

import pytest

from capacity import stack
from capacity.report.stack import times
from capacity.report.tables import render


def test_a_stack_as_tables() -> None:
    answer = stack(
        "llama-3.1-8b", gpu="h100", input_len=200, output_len=20, concurrency=4, num_prompts=8, price="2",
        order=["bf16", "kv-cache", "prefix-caching", "cuda-graphs"],
    )  # fmt: skip
    text = render(answer, "table")
    for words in (
        "1 BF16 in place",
        "4 CUDA graphs",
        "not here: prefix caching",
        "together",
        "$/1M out",
        "assumed",
    ):
        assert words in text
    assert "3 prefix" not in text
    assert text.index("naive:") < text.index("the last row:")


@pytest.mark.parametrize(("factor", "text"), [(0.456, "0.46x"), (12.34, "12.3x"), (1234.5, "1,234x")])
def test_factors_have_the_digits_that_they_bear(factor: float, text: str) -> None:
    assert times(factor) == text
