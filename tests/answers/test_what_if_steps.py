"""Steps without a KV cache and by other attention kernels, in a simulation: the same by both engines."""

from __future__ import annotations

from typing import Any

import pytest

from capacity import simulate

LOAD: dict[str, Any] = {
    "gpu": "h100", "max_model_len": 2048, "input_len": 300, "output_len": 20, "random_range_ratio": 0.5,
    "request_rate": 8.0, "num_prompts": 24,
}  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"attn_implementation": "eager"},
        {"attn_implementation": "flash_attention_1"},
        {"use_cache": False, "scheduling": "static", "max_num_seqs": 4},
    ],
)
def test_both_engines_agree_and_today_is_faster(fields: dict[str, Any]) -> None:
    core, events = (
        simulate("llama-3.1-8b", **(LOAD | fields), engine_loop=loop).run.to_dict()
        for loop in ("core", "events")
    )
    assert core == events
    today = simulate(
        "llama-3.1-8b", **(LOAD | {k: v for k, v in fields.items() if k in ("scheduling", "max_num_seqs")})
    )
    assert core["mean_e2el_ms"] > today.run.to_dict()["mean_e2el_ms"]
