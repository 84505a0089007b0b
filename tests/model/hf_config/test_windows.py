"""Which layers see a window of the context, by each way to say so."""

from __future__ import annotations

from typing import Any

import pytest
from hf_configs import MOE, feed_forwards, read, windows

from capacity.base.errors import MalformedFile
from capacity.model import DenseFeedForward, MoEFeedForward


def test_mistral_windows_are_uniform_and_null_is_none() -> None:
    assert windows(read(model_type="mistral", sliding_window=4096)) == [4096] * 4
    assert windows(read(model_type="mistral", sliding_window=None)) == [None] * 4
    assert windows(read(model_type="mistral")) == [4096] * 4  # the default of transformers' MistralConfig
    assert windows(read(model_type="mixtral", **MOE)) == [None] * 4
    assert windows(read(model_type="phi3", sliding_window=2047)) == [2047] * 4


def test_qwen_windows_need_the_flag_and_start_at_their_layer() -> None:
    fields = {"model_type": "qwen2", "sliding_window": 512, "max_window_layers": 3}
    assert windows(read(**fields)) == [None] * 4
    assert windows(read(use_sliding_window=True, **fields)) == [None, None, None, 512]


def test_gemma_patterns() -> None:
    assert windows(read(model_type="gemma2", sliding_window=64)) == [64, None, 64, None]
    gemma3 = read(model_type="gemma3_text", sliding_window=64, num_hidden_layers=12, head_dim=8)
    assert windows(gemma3) == [64] * 5 + [None] + [64] * 5 + [None]
    every_third = read(model_type="gemma3_text", sliding_window=64, sliding_window_pattern=3)
    assert windows(every_third) == [64, 64, None, 64]


def test_layer_types_win_over_patterns() -> None:
    kinds = ["full_attention", "sliding_attention", "full_attention", "full_attention"]
    assert windows(read(model_type="gemma2", sliding_window=64, layer_types=kinds)) == [None, 64, None, None]


@pytest.mark.parametrize("kinds", [["full_attention"], ["full_attention"] * 3 + ["dense"], [1, 2, 3, 4]])
def test_bad_layer_types_are_refused(kinds: list[Any]) -> None:
    with pytest.raises(MalformedFile, match="layer_types"):
        read(model_type="gemma2", sliding_window=64, layer_types=kinds)


def test_llama_4_chunks_three_of_four_and_routes_by_step() -> None:
    fields = {"model_type": "llama4_text", "attention_chunk_size": 256, "intermediate_size_mlp": 256, **MOE}
    model = read(interleave_moe_layer_step=2, **fields)
    assert windows(model) == [256, 256, 256, None]
    assert feed_forwards(model) == [DenseFeedForward, MoEFeedForward] * 2
    assert windows(read(no_rope_layers=[1, 0, 1, 0], **fields)) == [256, None, 256, None]
    assert feed_forwards(read(moe_layers=[0], **fields)) == [MoEFeedForward] + [DenseFeedForward] * 3
