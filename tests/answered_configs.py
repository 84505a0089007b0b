"""Public configurations as tests take them, and what an answer about any of them must be."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from filled_pools import H100, VLLM, pool_of
from step_models import steps_of

from capacity.model import from_hf_config
from capacity.pool.activations import activation_bytes
from capacity.pool.kv_layout import kv_layout
from capacity.step import StepShape, decode_shape, prefill_shape

ROWS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "model_counts.json").read_text(encoding="utf-8")
)
NOT_READ = {"recurrent_gemma", "rwkv", "xlstm"}  # each lacks a field that its error names
READ = [row for row in ROWS if row["name"] not in NOT_READ]


def check_answers(config: dict[str, Any], name: str) -> None:
    model = from_hf_config(config, name=name)
    step = steps_of(model)
    window = model.window_tokens
    shapes = (prefill_shape(2, 300, window_tokens=window), decode_shape(3, 500, window_tokens=window))
    for shape in shapes if model.task == "generate" else shapes[:1]:
        seconds = step.step_seconds(shape)
        assert math.isfinite(seconds)
        assert seconds > 0
        cost = step.step_cost(shape)
        assert cost.seconds == pytest.approx(seconds, rel=1e-9)
        assert cost.flops > 0
    longer = decode_shape(3, 50_000, window_tokens=window)
    assert step.step_seconds(longer) >= step.step_seconds(shapes[1]) * (1 - 1e-9)
    assert step.step_seconds(StepShape()) == 0
    pool = pool_of(model, H100, VLLM, max_num_seqs=8, max_num_batched_tokens=2048)
    assert kv_layout(pool).block_bytes > 0
    assert activation_bytes(pool) > 0
    if model.assumed:
        assert step.basis == "assumed"
        assert "(assumed)" in model.notes[0]
