"""Parallelism: bubbles and traffic by hand, efficiency in its limits, the cheapest layout that meets a TPOT."""

from __future__ import annotations

from itertools import pairwise

import pytest

import capacity
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.hardware.pricing import find_price
from capacity.pool.resolve import resolve
from capacity.step.expert_load import distinct_experts
from capacity.techniques.scaling import (
    Axis,
    all_reduce_bytes_per_token,
    cheapest_layout,
    expert_imbalance,
    scaling_curve,
)


def test_what_each_axis_says_of_itself() -> None:
    """Qwen3-30B: 8 of 128 experts; a chunked prompt of 20,000 tokens is 3 chunks of 8,192: on 4 stages 3/6 idle."""
    common = {"input_len": 1000, "output_len": 100, "concurrency": 32}
    moe, dense = Pool(gpu="h100", max_model_len=32768), Pool(gpu="h100", max_model_len=32768)
    for axis in ("expert", "data"):
        one, two = scaling_curve(resolve("qwen3-30b-a3b", moe), axis=axis, most_gpus=2, **common)
        assert (one.expert_imbalance, two.num_gpus) == (1, 2)
        assert two.expert_imbalance == pytest.approx(expert_imbalance(128, 8, 32, 2))
        assert one.experts_read == pytest.approx(distinct_experts(128, 8, 32))
        assert two.output_tokens_per_s_per_gpu is not None
    piped = scaling_curve(
        resolve("llama-3.1-8b", dense),
        axis="pipeline",
        most_gpus=4,
        input_len=20_000,
        output_len=100,
        concurrency=2,
    )
    assert [x.bubble_fraction for x in piped] == [0, 1 / 4, 3 / 6]
    assert [x.idle_fraction for x in piped] == [0, 0, 0.5]
    tensor = scaling_curve(resolve("llama-3.1-8b", dense), most_gpus=8, **common)
    assert tensor[3].all_reduce_bytes_per_token == all_reduce_bytes_per_token(4096, 32, 8)
    assert tensor[0].experts_read is tensor[0].expert_imbalance is None


@pytest.mark.parametrize(
    ("axis", "layout"),
    [
        ("tensor", {"tensor_parallel_size": 2}),
        ("expert", {"tensor_parallel_size": 2, "enable_expert_parallel": True}),
        ("data", {"data_parallel_size": 2, "enable_expert_parallel": True}),
    ],
)
def test_a_layout_is_what_estimate_says_of_it(axis: Axis, layout: dict[str, int]) -> None:
    load = {"input_len": 1000, "output_len": 100, "concurrency": 32}
    curve = scaling_curve(resolve("qwen3-30b-a3b", Pool(gpu="h100")), axis=axis, most_gpus=2, **load)
    estimate = capacity.estimate("qwen3-30b-a3b", gpu="h100", **layout, **load)  # type: ignore[arg-type]
    assert estimate.tpot_s is not None
    assert curve[-1].ttft_s == estimate.ttft_s.value
    assert curve[-1].tpot_s == estimate.tpot_s.value
    assert curve[-1].output_tokens_per_s_per_gpu == pytest.approx(estimate.output_tokens_per_s_per_gpu.value)


def test_data_parallel_attention_scales_the_cache() -> None:
    """DeepSeek-V3's latent: eight ranks of attention hold more requests than eight tensor-parallel GPUs."""
    common = {"input_len": 4096, "output_len": 256, "concurrency": 256, "most_gpus": 8}
    pool = Pool(gpu="h200", max_model_len=8192)
    tensor = scaling_curve(resolve("deepseek-v3", pool), axis="expert", **common)[-1]
    data = scaling_curve(resolve("deepseek-v3", pool), axis="data", **common)[-1]
    assert (tensor.tensor_parallel_size, data.data_parallel_size) == (8, 8)
    assert data.max_batch > 2 * tensor.max_batch


def test_tensor_parallelism_is_faster_and_less_efficient() -> None:
    pool = Pool(gpu="h100", max_num_seqs=8192)  # so that memory alone bounds the batch
    curve = scaling_curve(resolve("llama-3.1-8b", pool), input_len=1000, output_len=200, concurrency=32)
    assert [layout.num_gpus for layout in curve] == [1, 2, 4, 8]
    assert curve[0].efficiency == curve[0].speedup == 1
    for fewer, more in pairwise(curve):
        assert more.speedup > fewer.speedup  # type: ignore[operator]
        assert more.efficiency < fewer.efficiency  # type: ignore[operator]
        assert more.communication_share > fewer.communication_share  # type: ignore[operator]
        assert more.speedup < more.num_gpus  # type: ignore[operator]
        assert more.max_batch > fewer.max_batch


def test_pipelines_raise_throughput_rather_than_speed() -> None:
    """Every token still passes all layers: with four stages no faster than one request alone on one GPU."""
    curve = scaling_curve(
        resolve("llama-3.1-8b", Pool(gpu="h100")),
        input_len=500,
        output_len=200,
        concurrency=256,
        axis="pipeline",
        most_gpus=4,
    )
    assert [layout.pipeline_parallel_size for layout in curve] == [1, 2, 4]
    assert curve[1].efficiency > 0.5  # type: ignore[operator]
    alone = capacity.estimate("llama-3.1-8b", gpu="h100", input_len=500, output_len=200, batch_size=1)
    assert alone.tpot_s is not None
    assert curve[2].tpot_s > alone.tpot_s.value  # type: ignore[operator]


def test_the_cheapest_layout_that_meets_a_tpot() -> None:
    price = find_price("h100", override="2.50")
    curve = scaling_curve(
        resolve("llama-3.1-8b", Pool(gpu="h100")), input_len=1000, output_len=200, concurrency=32, price=price
    )
    loose, tight = cheapest_layout(curve, tpot_s=1.0), cheapest_layout(curve, tpot_s=curve[2].tpot_s or 0.0)
    assert loose is not None
    assert tight is not None
    assert loose.num_gpus == 1
    assert tight.num_gpus == 4
    assert loose.usd_per_million_tokens < tight.usd_per_million_tokens  # type: ignore[operator]
    assert cheapest_layout(curve, tpot_s=1e-6) is None


def test_what_does_not_fit_is_a_row_with_its_reason() -> None:
    curve = scaling_curve(
        resolve("llama-3.3-70b", Pool(gpu="h100", max_model_len=4096)),
        input_len=1000,
        output_len=100,
        concurrency=8,
    )
    assert curve[0].reason is not None
    assert "131.45 GiB" in curve[0].reason
    assert curve[0].tpot_s is None
    first = next(layout for layout in curve if layout.reason is None)
    assert first.efficiency == 1


def test_bad_questions_are_refused_in_one_line() -> None:
    pool = Pool(gpu="h100")
    with pytest.raises(InvalidInput, match="no experts"):
        scaling_curve(
            resolve("llama-3.1-8b", pool), input_len=10, output_len=10, concurrency=1, axis="expert"
        )
    for lengths in ((0, 10, 1), (10, 1, 1), (10, 10, 0), (200_000, 10, 1)):
        with pytest.raises(InvalidInput):
            scaling_curve(
                resolve("llama-3.1-8b", pool),
                input_len=lengths[0],
                output_len=lengths[1],
                concurrency=lengths[2],
            )
