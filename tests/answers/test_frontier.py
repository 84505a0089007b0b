"""The frontier: every point is `estimate` of a closed loop, and what cannot be is a line with its reason."""

from __future__ import annotations

import pytest

import capacity

LENGTHS = {"input_len": 1024, "output_len": 256}


def test_points_are_estimates_of_the_smallest_pool() -> None:
    found = capacity.frontier(
        "llama-3.1-70b",
        gpus=("h100-sxm-80gb", "l4"),
        quantizations=(None, "fp8"),
        engines=("vllm", "sglang"),
        loads=(16, 1),
        price_tier="on-demand",
        **LENGTHS,
    )
    assert len(found.lines) == 8
    line = next(each for each in found.lines if each.quantization == "fp8" and each.engine == "sglang")
    assert [point.load for point in line.points] == [1, 16]
    direct = capacity.estimate(
        "llama-3.1-70b",
        gpu="h100-sxm-80gb",
        engine="sglang",
        quantization="fp8",
        tensor_parallel_size=line.tensor_parallel_size,
        concurrency=16,
        price_tier="on-demand",
        **LENGTHS,
    )
    assert line.points[1].tpot_s == direct.tpot_s
    assert line.points[1].output_tokens_per_s_per_gpu == direct.output_tokens_per_s_per_gpu
    published = next(each for each in found.lines if each.quantization is None)
    assert (published.num_gpus, published.points[0].weight_format) == (4, "bf16")
    refused = [each for each in found.lines if not each.points]
    assert all(each.reason for each in refused)
    assert {each.gpu for each in refused} <= {"l4-24gb"}


def test_the_best_within_a_limit() -> None:
    (line,) = capacity.frontier("llama-3.1-8b", gpus=("h100",), loads=(1, 8, 64, 4096), **LENGTHS).lines
    assert [point.load for point in line.points] == [1, 8, 64]
    times = [point.tpot_s.value for point in line.points if point.tpot_s is not None]
    assert times == sorted(times)
    assert line.best(times[1]) == line.points[1]
    assert line.best(times[2]) == line.points[2]
    assert line.best(times[0] / 2) is None


def test_the_fewest_and_a_size_that_is_as_many_are_one_line() -> None:
    found = capacity.frontier(
        "llama-3.1-70b",
        gpus=("h100", "l4"),
        tensor_parallel_sizes=(None, 4, 1, 8),
        loads=(1,),
        **LENGTHS,
    )
    shown = [(line.gpu, line.tensor_parallel_size) for line in found.lines if line.points]
    assert shown == [("h100-sxm-80gb", 4), ("h100-sxm-80gb", 8)]
    refused = [line for line in found.lines if not line.points]
    assert len({line.reason for line in refused}) == len(refused)
    assert [(line.gpu, line.tensor_parallel_size) for line in refused] == [
        ("h100-sxm-80gb", 1),
        ("l4-24gb", 8),
        ("l4-24gb", 4),
        ("l4-24gb", 1),
    ]


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(capacity.InvalidInput, match="0 deployments"):
        capacity.frontier("llama-3.1-8b", gpus=(), **LENGTHS)
    with pytest.raises(capacity.InvalidInput, match="leave it out"):
        capacity.frontier("llama-3.1-8b", gpus=("h100",), batch_size=1, **LENGTHS)
    with pytest.raises(capacity.InvalidInput, match="loads must contain at least one"):
        capacity.frontier("llama-3.1-8b", gpus=("h100",), loads=(0,), **LENGTHS)
    with pytest.raises(capacity.InvalidInput, match="no lengths"):
        capacity.frontier("llama-3.1-8b", gpus=("h100",), input_len=1)
    with pytest.raises(capacity.InvalidInput, match="engine"):
        capacity.frontier("llama-3.1-8b", gpus=("h100",), engines=("nothing",), **LENGTHS)
