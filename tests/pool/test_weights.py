"""Weights of a rank: pipeline stages hold every weight once, tensor-parallel shards replicate little."""

from __future__ import annotations

import pytest
from filled_pools import GIB, H100, VLLM, VLLM_011, pool_of

from capacity.model import load_model
from capacity.model.quantization import weight_bytes
from capacity.pool.weights import pipeline_layers, stage_weights


def test_gpt_oss_is_padded_above_its_checkpoint() -> None:
    """64.38 GiB loaded against 60.77 in the checkpoint: padding of expert matrices, an engine's property."""
    model = load_model("gpt-oss-120b")
    checkpoint = weight_bytes(model)
    assert checkpoint / GIB == pytest.approx(60.77, rel=0.001)
    loaded = stage_weights(pool_of(model, H100, VLLM_011), 0)
    assert loaded / checkpoint == pytest.approx(64.38 / 60.77, rel=0.01)
    unpadded = VLLM_011.model_copy(update={"expert_padding": ()})
    assert stage_weights(pool_of(model, H100, unpadded), 0) == pytest.approx(checkpoint, rel=1e-6)


def test_pipeline_layers_follow_vllm() -> None:
    """The remainder goes to the stages before the last, one layer each (vLLM distributed/utils.py)."""
    assert [len(stage) for stage in pipeline_layers(80, 3)] == [27, 27, 26]
    assert [len(stage) for stage in pipeline_layers(32, 4)] == [8, 8, 8, 8]
    assert [layer for stage in pipeline_layers(61, 8) for layer in stage] == list(range(61))


@pytest.mark.parametrize("name", ["llama-3.1-70b", "deepseek-v3", "gpt-oss-120b", "qwen3-next-80b-a3b"])
def test_pipeline_stages_hold_every_weight_once(name: str) -> None:
    model = load_model(name)
    staged = pool_of(model, H100, VLLM, pipeline_parallel_size=4)
    whole = stage_weights(pool_of(model, H100, VLLM), 0)
    assert sum(stage_weights(staged, stage) for stage in range(4)) == pytest.approx(whole, rel=1e-9)


def test_tensor_parallel_shards_hold_every_weight_and_replicate_little() -> None:
    model = load_model("llama-3.1-70b")
    one, eight, sixteen = (
        ranks * stage_weights(pool_of(model, H100, VLLM, tensor_parallel_size=ranks), 0)
        for ranks in (1, 8, 16)
    )
    norms = sum(part.params for part in model.parameter_parts() if part.kind == "norm") * 2
    assert eight - one == pytest.approx(7 * norms)
    kv = 2 * 80 * 8 * 128 * 8192 * 2  # k_proj and v_proj, held twice when 16 ranks share 8 heads
    assert sixteen - one == pytest.approx(15 * norms + kv)
