"""The pool as a user writes it."""

from __future__ import annotations

import pytest

import capacity
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool


@pytest.mark.parametrize(
    ("text", "tokens"), [("8k", 8000), ("8K", 8192), ("25.6k", 25600), ("1M", 1 << 20), ("4096", 4096)]
)
def test_counts_may_be_written_as_vllm_reads_them(text: str, tokens: int) -> None:
    """vLLM 0.33 `human_readable_int`: small letters are powers of ten, capitals of two."""
    assert Pool(gpu="h100", max_model_len=text).max_model_len == tokens  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["k", "8kk", "1e3k", "-8k", "8 k", "0k", "9999999999999K", "nank"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="max_model_len"):
        capacity.fit("llama-3.1-8b", gpu="h100", max_model_len=text)
