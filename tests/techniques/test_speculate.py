"""Speculation in a batch: the simulator beside the formula, and what the answer says."""

from __future__ import annotations

import math
from functools import lru_cache

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.pool.drafting import (
    Speculation,
    Speculator,
)
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.techniques.speculate import simulate_speculation, speculate
from capacity.workload import random_requests


@lru_cache(maxsize=16)
def pool(
    model: str, gpu: str, engine: str = "vllm", tp: int = 1, quantization: str | None = None
) -> ResolvedPool:
    return resolve(model, Pool(gpu=gpu, engine=engine, tensor_parallel_size=tp, quantization=quantization))


def chain(**fields: object) -> Speculator:
    return Speculator(name="eagle", kind="layer", draft_tokens=3, fused_inputs=2, **fields)  # type: ignore[arg-type]


def test_simulation_and_formula_agree_on_a_real_pool() -> None:
    """Closed loop of 16 with long answers: within 8 %, which is the prefills that the formula leaves out."""
    speculation = Speculation(pool("llama-3.1-8b", "h100"), chain(acceptance_rate=0.7))
    workload = random_requests(
        num_requests=32, input_len=64, output_len=400, request_rate_per_s=math.inf, concurrency=16, seed=0
    )
    run = simulate_speculation(speculation, workload, draft_tokens=3)
    formula = speculation.round_of(16, 64 + 200, 3)
    assert run.speculated.status == run.plain.status == "complete"
    assert run.throughput_gain == pytest.approx(formula.speedup, rel=0.08)
    assert run.speculated.steps < run.plain.steps


def test_drafts_are_refused_under_schedulers_that_have_none() -> None:
    workload = random_requests(num_requests=2, input_len=8, output_len=8, request_rate_per_s=1.0, seed=0)
    other = Speculation(pool("llama-3.1-8b", "h100", "transformers"), chain(acceptance_rate=0.5))
    with pytest.raises(InvalidInput, match="vllm-v1"):
        simulate_speculation(other, workload)
    ours = Speculation(pool("llama-3.1-8b", "h100"), chain(acceptance_rate=0.5))
    with pytest.raises(InvalidInput, match="at least 1"):
        simulate_speculation(ours, workload, draft_tokens=0)
    windowed = Speculation(pool("gemma-3-4b", "h100"), chain(acceptance_rate=0.5))
    assert simulate_speculation(windowed, workload).speculated.status == "complete"


def test_a_row_is_the_formulas_round_and_the_best_is_no_worse() -> None:
    answer = speculate("llama-3.1-8b", gpu="h100", method="eagle3", acceptance="0.7", batches=(1, 256))
    assert answer.acceptance == (0.7,) * answer.draft_tokens
    for row in answer.rows:
        assert row.speedup == pytest.approx(row.plain_step_s / row.tpot_s)
        assert row.tpot_s == pytest.approx((row.draft_s + row.verify_s) / row.tokens_per_round)
        assert row.best_speedup >= row.speedup
        assert row.textbook_tokens == pytest.approx((1 - 0.7 ** (answer.draft_tokens + 1)) / 0.3)
        assert row.textbook_speedup > row.speedup  # verification as free


def test_drafts_beyond_reason_are_refused() -> None:
    for depth in (0, 65):
        with pytest.raises(InvalidInput, match="from 1 to 64"):
            speculate("llama-3.1-8b", gpu="h100", draft_tokens=depth)
