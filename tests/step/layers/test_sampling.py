"""Sampling: what filters and penalties of requests cost, by engine release, and what served runs show of it."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from library import SHARED
from step_models import steps

import capacity
from capacity.step import decode_shape

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    from ml_energy import compare
finally:
    sys.path.remove(str(BENCHMARKS))

ROWS = decode_shape(128, 400)


def sampling_seconds(engine: str, shape: Any = ROWS, **requests: Any) -> float:
    costs = steps(engine=engine, **requests).step_cost(shape).operators
    return next(op.seconds for op in costs if op.name == "sampling")


def test_a_filter_costs_by_the_sampler_of_the_release() -> None:
    releases = ("vllm@0.6", "vllm@0.15", "vllm@0.17", "vllm@0.33")
    times = [sampling_seconds(release, top_p=0.95) for release in releases]
    assert times[0] == times[1] > 3 * times[2] > 3 * times[3]
    assert sampling_seconds("vllm@0.15", top_k=40) == times[1]
    assert len({sampling_seconds(release) for release in releases}) == 1
    assert all(sampling_seconds(release) < time for release, time in zip(releases, times, strict=True))


def test_sorting_takes_about_the_published_time() -> None:
    """vLLM pull requests 40376 and 51507: 1.0 to 1.1, 2.3 to 4.2 and 6.2 ms for 131,072 logits a row."""
    own = steps(engine="vllm@0.15", gpu="h200", top_p=0.95)
    greedy = steps(engine="vllm@0.15", gpu="h200")
    per_logit = 131_072 / own.model.vocab_size
    for rows, low, high in ((64, 0.8, 1.2), (128, 1.4, 4.2), (512, 5.0, 7.4)):
        shape = decode_shape(rows, 400)
        added = own.step_cost(shape).seconds - greedy.step_cost(shape).seconds
        assert low < added * 1e3 * per_logit < high, rows


def test_penalties_take_cpu_time_until_the_gpu_counts_tokens() -> None:
    shapes = [decode_shape(rows, 400) for rows in (8, 64, 512)]
    plain, penalized = (
        [
            capacity.simulate(
                "llama-3.1-8b",
                gpu="h100",
                engine="vllm@0.11",
                input_len=200,
                output_len=50,
                concurrency=shape.decode_sequences,
                num_prompts=shape.decode_sequences,
                random_range_ratio=0.0,
                repetition_penalty=penalty,
            ).mean_tpot_ms.value
            / 1e3
            for shape in shapes
        ]
        for penalty in (1.0, 1.1)
    )
    added = [more - less for more, less in zip(penalized, plain, strict=True)]
    assert all(more > less + 1e-3 for less, more in pairwise(added))
    newest = {
        penalty: capacity.estimate(
            "llama-3.1-8b",
            gpu="h100",
            batch_size=64,
            input_len=200,
            output_len=50,
            repetition_penalty=penalty,
        ).tpot_s.value
        for penalty in (1.0, 1.1)
    }
    assert 1.01 < newest[1.1] / newest[1.0] < 1.1


@pytest.mark.ci
@pytest.mark.skipif(SHARED is None, reason="needs the reference data")
def test_sampling_explains_what_a_leaderboard_measured() -> None:
    assert SHARED is not None
    rows = [row for row in compare(SHARED / "reference" / "measured", every=9) if row.held_out]
    errors = sorted(abs(row.error) for row in rows if not row.is_moe)
    assert len(errors) > 4
    assert errors[len(errors) // 2] < 0.12
    assert sum(row.inside for row in rows) / len(rows) > 0.75
