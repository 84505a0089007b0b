"""Every verb answers for drafts: by hand, as the simulator, on every engine that drafts, over ranks too."""

from __future__ import annotations

import math
from typing import Any

import pytest

import capacity
from capacity.answers.records import Estimate, Quantity
from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.deployment import Pool
from capacity.pool.drafting import DraftedSteps, Speculation, pool_speculator
from capacity.pool.drafting.speculators import LENGTH_SPREAD
from capacity.pool.drafting.token_steps import TokenSteps
from capacity.pool.resolve import resolve
from capacity.simulator import SimulationResult
from capacity.step import StepShape, decode_shape, prefill_shape

LENGTHS: dict[str, Any] = {"input_len": 400, "output_len": 80}
CHAIN: dict[str, Any] = {"speculator": "eagle3", "num_speculative_tokens": 3, "acceptance": "0.7"}
RANKS: dict[str, Any] = {
    "gpu": "h200",
    "data_parallel_size": 8,
    "enable_expert_parallel": True,
    "max_model_len": 8192,
}


def estimated(**options: Any) -> Estimate:
    return capacity.estimate("llama-3.1-8b", gpu="h100", **LENGTHS, **options)


def value(quantity: Quantity | None) -> float:
    assert quantity is not None
    return quantity.value


def width(quantity: Quantity | None) -> float:
    assert quantity is not None
    assert quantity.low is not None
    assert quantity.high is not None
    return math.log(quantity.high / quantity.low)


def test_a_batch_takes_a_round_over_the_tokens_that_it_yields() -> None:
    plain, drafted = estimated(batch_size=4), estimated(batch_size=4, **CHAIN)
    target = resolve("llama-3.1-8b", Pool(gpu="h100", **CHAIN))
    speculation = Speculation(target, pool_speculator(target.pool))
    turn = speculation.round_of(4, 400 + 40, 3)
    tokens = sum(0.7**depth for depth in range(4))
    assert drafted.tokens_per_step == pytest.approx(tokens)
    assert plain.tokens_per_step == 1
    assert value(drafted.tpot_s) == pytest.approx(turn.round_s / tokens)
    assert sum(op.seconds for op in drafted.breakdown.decode) == pytest.approx(turn.round_s)
    assert sum(op.seconds for op in drafted.breakdown.decode if "drafting" in op.name) == pytest.approx(
        turn.draft_s
    )
    prompts_s = speculation.drafter.prompts_s(prefill_shape(4, 400))
    assert 0 < prompts_s < 0.1 * value(plain.ttft_s)
    assert value(drafted.ttft_s) == pytest.approx(value(plain.ttft_s) + prompts_s)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize(
    "drafts",
    [CHAIN, {"draft": "llama-3.2-1b", "num_speculative_tokens": 4}, {"speculator": "ngram"}],
)
def test_estimate_says_what_simulate_says(engine: str, drafts: dict[str, Any]) -> None:
    load = {**LENGTHS, "concurrency": 6, "random_range_ratio": 0.4, "num_prompts": 120, "engine": engine}
    answer = capacity.estimate("llama-3.1-8b", gpu="h100", **load, **drafts)
    run = capacity.simulate("llama-3.1-8b", gpu="h100", **load, **drafts).run.summary
    means = answer.whole_run
    assert means is not None
    assert means.tpot_s is not None
    assert run.tpot_ms is not None
    assert run.ttft_ms is not None
    assert means.tpot_s == pytest.approx(run.tpot_ms.mean / 1e3)
    assert means.ttft_s == pytest.approx(run.ttft_ms.mean / 1e3)
    assert any("tokens per request and step" in note for note in answer.warnings)
    assert any("GiB for weights" in note for note in answer.warnings)


def test_an_acceptance_that_nobody_said_widens_tokens_and_not_first_tokens() -> None:
    said = estimated(batch_size=4, **CHAIN)
    unsaid = estimated(batch_size=4, **CHAIN | {"acceptance": None})
    assert width(said.ttft_s) == pytest.approx(width(unsaid.ttft_s))
    assert width(unsaid.tpot_s) > width(said.tpot_s) > 0
    assert width(unsaid.tpot_s) >= 2 * 1.645 * LENGTH_SPREAD


@pytest.mark.parametrize("load", [{"batch_size": 4}, {"concurrency": 4, "random_range_ratio": 0.3}])
def test_explain_names_the_acceptance_among_the_parts(load: dict[str, Any]) -> None:
    def parts(**drafts: Any) -> set[str]:
        answer = capacity.explain("llama-3.1-8b", gpu="h100", **LENGTHS, **load, **drafts)
        return {part.name for each in answer.intervals for part in each.parts}

    assert "--acceptance" in parts(speculator="eagle3", num_speculative_tokens=3)
    assert "--acceptance" not in parts(**CHAIN)
    assert "--acceptance" not in parts()


def test_kv_of_the_drafter_holds_fewer_requests() -> None:
    def left(**limits: Any) -> int:
        target = resolve("llama-3.1-8b", Pool(gpu="h100", draft="llama-3.2-1b", max_model_len=4096, **limits))
        memory = Speculation(target, pool_speculator(target.pool)).memory()
        assert memory.kv_capacity_tokens_before == target.memory.kv_capacity_tokens
        assert TokenSteps(target).concurrent_requests(4096) <= memory.kv_capacity_tokens_after // 4096
        return memory.kv_capacity_tokens_after

    assert (
        left(kv_cache_memory_bytes=2**30) == 2**30 // (16 * (128 + 32) * 1024) * 16
    )  # weights lie elsewhere
    assert left(num_gpu_blocks_override=1000) == 16_000
    crowded = {"gpu_memory_utilization": 0.25, "max_model_len": 4096, "batch_size": 1}
    assert value(estimated(**crowded).tpot_s) > 0
    with pytest.raises(DoesNotFit, match="draft's weights"):
        estimated(**crowded, draft="llama-3.2-3b")


def test_a_drafter_that_does_not_suit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="multi-token-prediction"):
        estimated(batch_size=1, speculator="mtp")
    with pytest.raises(InvalidInput, match="add --speculator"):
        estimated(concurrency=1, acceptance="0.5")
    with pytest.raises(InvalidInput, match="add --speculator"):
        estimated(batch_size=1, acceptance="0.5")


# data-parallel ranks


def over_ranks(engine: str, loop: str, **drafts: Any) -> SimulationResult:
    load = {**LENGTHS, "output_len": 24, "random_range_ratio": 0.0, "concurrency": 24, "num_prompts": 32}
    load |= {"engine": engine, **RANKS}
    return capacity.simulate("deepseek-v3", **load, **drafts, engine_loop=loop).run


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_ranks_that_share_experts_draft(engine: str) -> None:
    drafted = over_ranks(engine, "auto", speculator="mtp", num_speculative_tokens=2)
    plain = over_ranks(engine, "auto")
    assert drafted.summary.total_output_tokens == plain.summary.total_output_tokens == 32 * 24
    assert drafted.summary.duration < plain.summary.duration
    assert len(drafted.data_parallel_requests) == 8


def test_compiled_ranks_draft_as_the_readable_do() -> None:
    core, events = (
        over_ranks("vllm", loop, speculator="mtp", num_speculative_tokens=2) for loop in ("core", "events")
    )
    assert core.summary == events.summary
    assert (core.records.finish_ps == events.records.finish_ps).all()


def test_equal_ranks_take_as_long_as_one_of_them() -> None:
    target = resolve("deepseek-v3", Pool(**RANKS, speculator="mtp"))
    steps = DraftedSteps(Speculation(target, pool_speculator(target.pool)), 3)
    for shape in (
        decode_shape(4, 500)._replace(draft_tokens=12),
        prefill_shape(1, 300),
        prefill_shape(1, 300)._replace(decode_sequences=4, draft_tokens=12, decode_context_tokens=2000),
    ):
        alone = steps.step_ps(shape)  # of decode steps on a line between two knots of the context
        assert steps.joint_ps([shape] * 8) == pytest.approx(alone, rel=1e-5)
        idle = [shape, *[StepShape()] * 7]
        assert steps.joint_ps(idle) < steps.joint_ps([shape] * 8) * 1.001


def test_ranks_share_the_experts_of_the_drafting_layer() -> None:
    alone = resolve("deepseek-v3", Pool(gpu="h200", tensor_parallel_size=8, speculator="mtp"))
    ranks = resolve("deepseek-v3", Pool(**RANKS, speculator="mtp"))
    one, many = (Speculation(each, pool_speculator(each.pool)).drafter for each in (alone, ranks))
    assert many.weights_bytes == one.weights_bytes
    assert many.gpu_weights_bytes < 0.3 * many.weights_bytes  # attention and shared expert are on every rank
    assert one.gpu_weights_bytes == pytest.approx(one.weights_bytes / 8)


def test_a_load_over_ranks_is_estimated() -> None:
    load = {**LENGTHS, "concurrency": 64, "random_range_ratio": 0.4, "num_prompts": 200, **RANKS}
    drafts = {"speculator": "mtp", "num_speculative_tokens": 2}
    plain, drafted = (capacity.estimate("deepseek-v3", **load, **each) for each in ({}, drafts))
    assert drafted.requests_per_s.value > plain.requests_per_s.value
    assert TokenSteps(resolve("deepseek-v3", Pool(**RANKS, **drafts))).tokens_per_step > 2


def test_a_request_that_ends_in_its_first_decode_step_is_answered() -> None:
    """Beside others, a prompt of one token starts with its drafts: all three tokens come at once, a TPOT of 0."""
    options: dict[str, Any] = {"speculator": "ngram", "num_speculative_tokens": 2, "acceptance": "1"}
    lengths = {"input_len": 1, "output_len": 3, "random_range_ratio": 0.0, "num_prompts": 50}
    answer = capacity.simulate(
        "llama-3.1-8b", gpu="l4", tensor_parallel_size=4, **options, **lengths, request_rate=200.0
    )
    assert answer.run.summary.tpot_ms is not None
    assert answer.run.summary.tpot_ms.percentiles[50] == 0
