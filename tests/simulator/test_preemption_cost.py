"""Work that preemptions repeat: counted alike by both engines, named in the verdict, and as costly as measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from long_forms import mostly_ci

import capacity

STARVED: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "max_model_len": 4096,
    "input_len": 512,
    "output_len": 512,
    "random_range_ratio": 0.0,
    "concurrency": 64,
    "num_prompts": 640,
    "kv_cache_memory_bytes": 4 * 2**30,
}
ENGINES = ("vllm@0.33", "vllm@0.8.5", "sglang@0.5.10")

# vLLM pull request 44594 (2026-06-05): Qwen2.5-7B on one GB200, 450 requests of 1,000 + 5,000 tokens, 128 at a time, on
# 299,584 tokens of KV cache: preemptions and output tokens/s for each --watermark
MEASURED = {0.0: (1065, 11_582), 0.02: (400, 12_134), 0.05: (187, 12_167), 0.1: (168, 11_835)}


def simulate(**changes: Any) -> Any:
    return capacity.simulate(**{**STARVED, **changes})


@pytest.mark.parametrize("engine", ENGINES)
def test_preempted_tokens_are_equal_in_both_engines(engine: str) -> None:
    asked = {"engine": engine, "gpu": "l4", "quantization": "fp8", "num_prompts": 128, "concurrency": 128}
    asked["kv_cache_memory_bytes"] = None
    compiled, readable = (simulate(engine_loop=loop, **asked).run for loop in ("core", "events"))
    assert compiled.preemptions == readable.preemptions > 0
    assert compiled.preempted_tokens == readable.preempted_tokens > compiled.preemptions


def test_verdict_names_thrash_and_the_max_num_seqs_that_stops_it() -> None:
    answer = simulate(engine="vllm@0.33")
    assert answer.run.recomputed_fraction > 0.05
    reason = answer.verdict.reason
    assert f"{answer.run.recomputed_fraction:.0%} of the computed tokens are computed again" in reason
    fitting = int(reason.partition("--max-num-seqs ")[2].split()[0])
    stopped = simulate(engine="vllm@0.33", max_num_seqs=fitting)
    assert stopped.run.preemptions == 0
    assert "thrash" not in stopped.verdict.reason
    assert simulate(engine="vllm@0.33", max_num_seqs=2 * fitting).run.preemptions > 0


@pytest.mark.parametrize("watermark", mostly_ci(MEASURED, [0.0, 0.05]))
def test_preemptions_and_their_cost_are_as_measured(watermark: float) -> None:
    """The mean of three draws of the lengths: one draw has up to 14 % fewer preemptions than another."""
    asked: dict[str, Any] = {
        "gpu": "gb200",
        "engine": "vllm@0.24",
        "max_model_len": 8192,
        "max_num_seqs": 256,
        "enable_prefix_caching": False,
        "kv_cache_memory_bytes": 16 * 2**30,
        "watermark": watermark,
        "input_len": 1000,
        "output_len": 5000,
        "random_range_ratio": 0.2,
        "num_prompts": 450,
        "concurrency": 128,
    }
    runs = [capacity.simulate("qwen2.5-7b", **asked, seed=seed).run for seed in range(3)]
    preemptions, output_tok_s = MEASURED[watermark]
    assert np.mean([run.preemptions for run in runs]) == pytest.approx(preemptions, rel=0.15)
    rates = [run.summary.output_throughput for run in runs]
    assert np.mean(rates) == pytest.approx(output_tok_s, rel=0.1)
