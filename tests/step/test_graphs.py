"""CUDA graphs: which one a step replays, at the exact sizes and around them."""

from __future__ import annotations

import pytest
from step_models import NO_HOST, steps

from capacity.deployment import Pool
from capacity.pool.resolve import resolve
from capacity.step import decode_shape, prefill_shape
from capacity.step.setting import HostTime, graph_sizes

SIZES = (1, 2, 4, 8, 16)
GRAPHS = HostTime(graph_sizes=SIZES)


@pytest.mark.parametrize("rows", SIZES)
def test_an_exact_size_replays_its_own_graph(rows: int) -> None:
    """No row is padded, so the step costs what it costs where every row count has a graph of its own."""
    shape = decode_shape(rows, 1000)
    assert steps(host=GRAPHS).step_seconds(shape) == steps(host=NO_HOST).step_seconds(shape)


@pytest.mark.parametrize("rows", [3, 5, 7, 9, 15])
def test_between_two_sizes_the_larger_is_replayed(rows: int) -> None:
    """The GEMMs see the padded rows, attention and the sampler the real ones.

    Source: vLLM 0.33, v1/cudagraph_dispatcher.py: a batch is padded to the next captured size.
    """
    padded = min(size for size in SIZES if size >= rows)
    found, real, full = (
        {op.name: op.seconds for op in steps(host=host).step_cost(decode_shape(count, 1000)).operators}
        for host, count in ((GRAPHS, rows), (NO_HOST, rows), (NO_HOST, padded))
    )
    for name in ("qkv", "attention output", "gate_up", "down"):
        assert found[name] == full[name]
    for name in ("attention decode", "lm_head"):
        assert found[name] == real[name]


def test_the_largest_graph_is_replayed_and_one_row_more_runs_eagerly() -> None:
    graphs = HostTime(graph_sizes=SIZES, eager_s=1.0)
    largest = decode_shape(SIZES[-1], 1000)
    assert steps(host=graphs).step_seconds(largest) == steps(host=NO_HOST).step_seconds(largest)
    assert steps(host=graphs).step_seconds(decode_shape(SIZES[-1] + 1, 1000)) >= 1.0


@pytest.mark.parametrize("rows", SIZES)
def test_ranks_in_lock_step_replay_the_graph_of_the_fullest(rows: int) -> None:
    """At an exact size of the fullest rank nothing is padded but the emptier ranks, which then set no other pace."""
    shape = decode_shape(rows, 1000)
    graphs, plain = (
        steps("qwen3-30b-a3b", host=host, data_parallel_size=2, enable_expert_parallel=True)
        for host in (GRAPHS, NO_HOST)
    )
    assert graphs.joint_seconds([shape, shape]) == plain.joint_seconds([shape, shape])
    assert graphs.joint_seconds([decode_shape(1, 1000), shape]) == graphs.joint_seconds([shape, shape])


def test_vllms_sizes() -> None:
    """Source: vLLM 0.33 config/vllm.py: 1, 2, 4, then by 8 below 256 and by 16 from there."""
    assert graph_sizes(8) == (1, 2, 4, 8)
    assert graph_sizes(300) == (1, 2, 4, *range(8, 257, 8), 272, 288)


def test_graphs_up_to_a_size_of_the_users_own() -> None:
    """vLLM's --max-cudagraph-capture-size: a prompt of 1,024 tokens replays a graph where 2,048 are captured."""
    usual, larger = (
        resolve("llama-3.1-8b", Pool(gpu="h100", engine="vllm", max_cudagraph_capture_size=most)).step_model
        for most in (None, 2048)
    )
    prompt = prefill_shape(1, 1024)
    launch = {
        name: sum(op.seconds for op in model.step_cost(prompt).operators if op.name == "launch gaps")
        for name, model in (("usual", usual), ("larger", larger))
    }
    assert launch["usual"] > 0
    assert launch["larger"] == 0
    few = resolve("llama-3.1-8b", Pool(gpu="h100", engine="vllm", max_cudagraph_capture_size=8)).step_model
    assert few.step_seconds(decode_shape(16, 1000)) > 1.2 * usual.step_seconds(decode_shape(16, 1000))


def test_batch_without_a_graph_of_its_size_runs_eagerly_unless_it_is_padded() -> None:
    """TensorRT-LLM's default has graphs of 1 to 32, 64 and 128 requests and pads no batch."""
    default, padded = (
        resolve("llama-3.1-8b", Pool(gpu="h100", engine="tensorrt-llm", cudagraph_padding=padding)).step_model
        for padding in (None, True)
    )
    assert [default.graph_rows(batch) for batch in (32, 33, 64, 100, 128)] == [32, None, 64, None, 128]
    assert [padded.graph_rows(batch) for batch in (32, 33, 64, 100, 128)] == [32, 40, 64, 104, 128]
    assert default.step_seconds(decode_shape(33, 1000)) > 1.1 * padded.step_seconds(decode_shape(33, 1000))
    assert default.step_seconds(decode_shape(64, 1000)) == padded.step_seconds(decode_shape(64, 1000))
