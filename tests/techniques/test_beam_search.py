"""Beam search: closed forms of its steps and its memory, and what was measured of vLLM's."""

from __future__ import annotations

from typing import Any

import pytest

from capacity import InvalidInput, beam_search
from capacity.deployment import Pool
from capacity.pool.resolve import resolve
from capacity.step import decode_shape, prefill_shape
from capacity.techniques.beam_search import RESUBMIT_S, BeamRow

MODEL = "llama-3.1-8b"


def row(width: int, way: str, model: str = MODEL, **fields: Any) -> BeamRow:
    answer = beam_search(model, **({"gpu": "h100", "beam_widths": (width,)} | fields))
    return next(found for found in answer.rows if found.way == way)


def test_one_beam_in_the_engine_is_greedy_decoding() -> None:
    steps = resolve(MODEL, Pool(gpu="h100")).step_model
    found = row(1, "engine", input_len=512, output_len=128)
    assert found.tpot_s.value == steps.step_seconds(decode_shape(1, 512 + 64))
    assert found.times_greedy == 1.0
    assert found.e2e_s.value == pytest.approx(found.ttft_s.value + 127 * found.tpot_s.value)


def test_beams_are_rows_and_copies_of_half_a_block() -> None:
    steps = resolve(MODEL, Pool(gpu="h100")).step_model
    token_bytes = 32 * 2 * 8 * 128 * 2
    for width, batch in ((4, 1), (8, 3)):
        found = row(width, "engine", input_len=512, output_len=128, batch_size=batch)
        decode = steps.step_seconds(decode_shape(width * batch, 576))
        copied = steps.copy_seconds(2 * width * batch * 8 * token_bytes)
        assert found.tpot_s.value == pytest.approx(decode + copied)


def test_a_reordered_cache_is_copied_whole() -> None:
    steps = resolve(MODEL, Pool(gpu="h100")).step_model
    found = row(4, "reordered", input_len=512, output_len=128)
    moved = 2 * 4 * 576 * 32 * 2 * 8 * 128 * 2
    assert found.tpot_s.value == pytest.approx(
        steps.step_seconds(decode_shape(4, 576)) + steps.copy_seconds(moved)
    )
    assert found.kv_tokens == 4 * (512 + 128)


def test_a_beam_submitted_again_computes_its_last_block() -> None:
    """Contexts of 576 to 591 in blocks of 16: 16 new tokens where the block is full, else as many as it holds."""
    steps = resolve(MODEL, Pool(gpu="h100")).step_model
    new = [16, *range(1, 16)]
    shapes = [
        prefill_shape(4, tokens, cached_tokens=576 + place - tokens) for place, tokens in enumerate(new)
    ]
    mean = sum(steps.step_seconds(shape) for shape in shapes) / 16
    found = row(4, "resubmitted", input_len=512, output_len=128)
    assert found.tpot_s.value == pytest.approx(mean + 4 * RESUBMIT_S)
    recomputed = row(4, "recomputed", input_len=512, output_len=128)
    assert recomputed.tpot_s.value == pytest.approx(
        steps.step_seconds(prefill_shape(4, 576)) + 4 * RESUBMIT_S
    )


def test_the_prompt_is_held_once() -> None:
    found = row(8, "engine", input_len=512, output_len=128)
    assert found.kv_tokens == 512 + 8 * 128
    blocks = resolve(MODEL, Pool(gpu="h100")).memory.usable_blocks
    assert found.most_requests == blocks // (32 + 8 * 8)
    assert row(8, "reordered", input_len=512, output_len=128).most_requests == blocks // (8 * 40)


@pytest.mark.parametrize(("way", "measured"), [("resubmitted", 1.08), ("recomputed", 0.10)])
def test_what_was_measured_of_vllm(way: str, measured: float) -> None:
    """Llama-3-8B on H100, 100 prompts of 256 tokens, 256 out, 4 beams (vllm-project/vllm pull request 8726).

    The first is where the host's time of a beam comes from, the second is not used for anything.
    """
    found = row(4, way, "llama-3-8b", input_len=256, output_len=256, batch_size=100)
    assert found.requests_per_s.value == pytest.approx(measured, rel=0.1)
    assert found.requests_per_s.low is not None
    assert found.requests_per_s.high is not None
    assert found.requests_per_s.low < measured < found.requests_per_s.high


@pytest.mark.parametrize(
    ("engine", "way"), [("vllm", "resubmitted"), ("tensorrt-llm", "engine"), ("hf", "reordered")]
)
def test_each_engine_has_its_way(engine: str, way: str) -> None:
    answer = beam_search(MODEL, gpu="h100", engine=engine, max_model_len=4096, beam_widths=(2,))
    assert answer.engine_way == way
    assert any("submits every beam again" in text for text in answer.warnings) == (way == "resubmitted")


@pytest.mark.parametrize(
    "asked",
    [
        {"beam_widths": ()},
        {"beam_widths": tuple(range(1, 102))},
        {"beam_widths": (0,)},
        {"output_len": 1},
        {"input_len": 200_000},
        {"use_cache": False},
        {"data_parallel_size": 2},
    ],
)
def test_bad_questions_are_refused_in_one_line(asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        beam_search(MODEL, **({"gpu": "h100"} | asked))
    assert "\n" not in str(refused.value)


def test_repeated_widths_are_computed_once() -> None:
    rows = beam_search(MODEL, gpu="h100", beam_widths=(2, 1, 2)).rows
    assert [found.beam_width for found in rows] == [2] * 4 + [1] * 4


def test_a_model_that_makes_no_tokens_has_no_beams() -> None:
    with pytest.raises(InvalidInput, match="bge-m3 generates no tokens"):
        beam_search("bge-m3", gpu="h100")


def test_too_many_requests_for_the_cache_do_not_fit() -> None:
    assert not row(8, "reordered", batch_size=500, input_len=2000, output_len=200).fits
