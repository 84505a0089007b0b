"""DeepSeek-V4's attention: kinds of layers by their rate, and what each keeps."""

from __future__ import annotations

import pytest
from hf_configs import MOE, read

from capacity.model.compressed import CompressedAttention

FIELDS = {
    "head_dim": 32, "q_lora_rank": 16, "o_groups": 2, "o_lora_rank": 8, "sliding_window": 128, "index_n_heads": 2,
    "index_head_dim": 128, "index_topk": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("rate", "kind", "entries", "index"),
    [(0, "swa", 0.0, 0.0), (128, "hca", 64 / 128, 0.0), (4, "csa", 64 / 4, 132 / 4)],
)
def test_each_kind_keeps_a_window_and_its_entries(rate: int, kind: str, entries: float, index: float) -> None:
    model = read(model_type="deepseek_v4", compress_ratios=[rate] * 4, **FIELDS, **MOE)
    (group,) = model.layer_groups
    assert isinstance(group.mixer, CompressedAttention)
    assert group.mixer.kind == kind
    kept = model.kv_cache_groups()
    assert sum(g.bytes_per_token for g in kept if g.kind == "full" and not g.index) == 4 * entries
    assert sum(g.bytes_per_token for g in kept if g.index) == 4 * index
    (window,) = (g for g in kept if g.kind == "window")
    assert (window.bytes_per_token, window.window_tokens) == (4 * 64, 128)


def test_experts_are_stored_in_the_format_that_is_stated_apart() -> None:
    stored = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    model = read(
        model_type="deepseek_v4",
        compress_ratios=[0] * 4,
        quantization_config=stored,
        expert_dtype="fp4",
        **FIELDS,
        **MOE,
    )
    assert (model.checkpoint.experts.name, model.checkpoint.attention.value_bits) == ("mxfp4", 8)
