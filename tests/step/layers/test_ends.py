"""Both ends of a step: what ranks and stages send each other."""

from __future__ import annotations

from step_models import SHAPES, steps

from capacity.step import decode_shape


def test_tensor_parallelism_beyond_direct_links_is_priced_and_said() -> None:
    assert not steps(tp=8).notes
    (note,) = steps(tp=16).notes
    assert "16 h100-sxm-80gb leaves the node" in note
    assert "no direct GPU link" in steps(gpu="l40s", tp=4).notes[0]
    shape = decode_shape(8, 100)
    inside, outside = (
        {op.name: op.seconds for op in steps(tp=tp).step_cost(shape).operators}["all-reduce"]
        for tp in (8, 16)
    )
    assert outside > 2 * inside


def test_a_pipeline_sends_between_its_stages() -> None:
    cost = {op.name: op for op in steps(pipeline_parallel_size=4).step_cost(SHAPES[0]).operators}
    assert cost["pipeline send"].bytes == 3 * 512 * 4096 * 2 * 2


def all_reduce_seconds(gpu: str, engine: str, rows: int) -> float:
    own = steps(gpu=gpu, engine=engine, tp=8)
    return {op.name: op.seconds for op in own.step_cost(decode_shape(rows, 100)).operators}["all-reduce"]


def test_an_engine_may_call_another_familys_all_reduce() -> None:
    assert all_reduce_seconds("b200", "vllm@0.15", 16) == all_reduce_seconds("b200", "tensorrt-llm", 16)
    assert all_reduce_seconds("b200", "vllm@0.15", 16) < all_reduce_seconds("b200", "vllm@0.8", 16)
    assert all_reduce_seconds("h200", "vllm@0.15", 16) == all_reduce_seconds("h200", "vllm@0.8", 16)


def test_tensorrt_llm_reduces_in_one_shot_up_to_128_tokens() -> None:
    assert all_reduce_seconds("h200", "tensorrt-llm", 128) > 1.1 * all_reduce_seconds(
        "h200", "tensorrt-llm", 129
    )
    assert all_reduce_seconds("h200", "sglang", 128) <= all_reduce_seconds("h200", "sglang", 129)
