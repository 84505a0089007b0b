"""DeepSeek-V4's attention in a step: a window that stops, entries that grow slowly, and an indexer's choice."""

from __future__ import annotations

from hf_configs import MOE, read
from step_models import flops_by_name, steps_of

from capacity.model import ModelSpec
from capacity.step import StepCost, decode_shape
from capacity.step.shape import prefill_shape

FIELDS = {
    "head_dim": 32, "q_lora_rank": 16, "o_groups": 2, "o_lora_rank": 8, "sliding_window": 128, "index_n_heads": 2,
    "index_head_dim": 128, "index_topk": 16, "max_position_embeddings": 100_000,
}  # fmt: skip


def of(*ratios: int) -> ModelSpec:
    return read(model_type="deepseek_v4", compress_ratios=list(ratios), **FIELDS, **MOE)


def decoded(model: ModelSpec, context: int) -> StepCost:
    return steps_of(model).step_cost(decode_shape(4, context, window_tokens=128))


def flops(model: ModelSpec, context: int) -> dict[str, float]:
    return flops_by_name(decoded(model, context))


def test_the_window_stops_and_entries_go_on() -> None:
    model = of(128, 128, 128, 128)
    short, long = flops(model, 12_800), flops(model, 25_600)
    assert long["attention decode (window)"] == short["attention decode (window)"] == 4 * 4 * 128 * 4 * 8 * 32
    assert (
        long["attention decode"] == 2 * short["attention decode"] == 2 * 4 * 4 * (12_800 / 128) * 4 * 8 * 32
    )
    assert "sparse indexer" not in long


def test_indexed_entries_are_at_most_the_chosen() -> None:
    model = of(4, 4, 4, 4)
    short, long = flops(model, 12_800), flops(model, 25_600)
    assert long["attention decode"] == short["attention decode"] == 4 * 4 * 16 * 4 * 8 * 32
    assert long["sparse indexer"] == 2 * short["sparse indexer"]


def test_a_window_alone_needs_no_more() -> None:
    names = set(flops(of(0, 0, 0, 0), 12_800))
    assert "attention decode (window)" in names
    assert not {"attention decode", "compressor", "sparse indexer"} & names


def test_products_are_those_of_the_matrices() -> None:
    model = of(4, 128, 0, 0)
    found = flops(model, 1000)
    rows = 4  # of a decode step
    assert found["q_b"] == 4 * 2 * rows * 16 * 8 * 32
    assert found["o_b"] == 4 * 2 * rows * 2 * 8 * 64
    assert found["compressor"] == 2 * rows * 64 * (2 * 2 * 32 + 2 * 32)
    assert found["indexer q"] == 2 * rows * 16 * 2 * 128


def test_its_time_is_assumed() -> None:
    step = steps_of(of(4, 128, 0, 0))
    assert step.basis == "assumed"
    assert any("compressed attention" in note for note in step.notes)


def test_a_long_prompt_reads_the_chosen_entries_of_every_token() -> None:
    """16 chosen entries of 4 tokens: 64 tokens back, whatever comes before."""
    model = of(4, 4, 4, 4)
    short, long, longer = (
        flops_by_name(steps_of(model).step_cost(prefill_shape(1, tokens, window_tokens=128)))
        for tokens in (64, 12_800, 25_600)
    )
    assert "attention prefill" in short
    assert "attention prefill (sparse)" not in short
    assert "attention prefill" not in long
    assert longer["attention prefill (sparse)"] == 2 * long["attention prefill (sparse)"]
