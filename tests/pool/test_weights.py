"""Weights of a rank: pipeline stages hold every weight once, tensor-parallel shards replicate little."""

from __future__ import annotations

import pytest
from filled_pools import GIB, VLLM, VLLM_011

from capacity.model import load_model
from capacity.model.quantization import weight_bytes
from capacity.pool.weights import pipeline_layers, weights_bytes_of_stage


def test_gpt_oss_is_padded_above_its_checkpoint() -> None:
    """64.38 GiB loaded against 60.77 in the checkpoint: padding of expert matrices, an engine's property."""
    model = load_model("gpt-oss-120b")
    checkpoint = weight_bytes(model)
    assert checkpoint / GIB == pytest.approx(60.77, rel=0.001)
    assert weights_bytes_of_stage(model, VLLM_011, model.checkpoint) / checkpoint == pytest.approx(
        64.38 / 60.77, rel=0.01
    )
    unpadded = VLLM_011.model_copy(update={"expert_padding": ()})
    assert weights_bytes_of_stage(model, unpadded, model.checkpoint) == pytest.approx(checkpoint, rel=1e-6)


def test_pipeline_layers_follow_vllm() -> None:
    """The remainder goes to the stages before the last, one layer each (vLLM distributed/utils.py)."""
    assert [len(stage) for stage in pipeline_layers(80, 3)] == [27, 27, 26]
    assert [len(stage) for stage in pipeline_layers(32, 4)] == [8, 8, 8, 8]
    assert [layer for stage in pipeline_layers(61, 8) for layer in stage] == list(range(61))


@pytest.mark.parametrize("name", ["llama-3.1-70b", "deepseek-v3", "gpt-oss-120b", "qwen3-next-80b-a3b"])
def test_pipeline_stages_hold_every_weight_once(name: str) -> None:
    model = load_model(name)
    stages = [
        weights_bytes_of_stage(model, VLLM, model.checkpoint, stage=stage, pipeline_parallel_size=4)
        for stage in range(4)
    ]
    assert sum(stages) == pytest.approx(weights_bytes_of_stage(model, VLLM, model.checkpoint), rel=1e-9)


def test_tensor_parallel_shards_hold_every_weight_and_replicate_little() -> None:
    model = load_model("llama-3.1-70b")
    one = weights_bytes_of_stage(model, VLLM, model.checkpoint)
    eight = 8 * weights_bytes_of_stage(model, VLLM, model.checkpoint, tensor_parallel_size=8)
    norms = sum(part.params for part in model.parameter_parts() if part.kind == "norm") * 2
    assert eight - one == pytest.approx(7 * norms)
    sixteen = 16 * weights_bytes_of_stage(model, VLLM, model.checkpoint, tensor_parallel_size=16)
    kv = 2 * 80 * 8 * 128 * 8192 * 2  # k_proj and v_proj, held twice when 16 ranks share 8 heads
    assert sixteen - one == pytest.approx(15 * norms + kv)
