"""The stack: factors that multiply exactly along it, rows that are what `simulate` says, and refusals with a reason."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from capacity import InvalidInput, simulate, stack
from capacity.base.errors import UnknownName
from capacity.planning.variations.stack import Stack
from capacity.planning.variations.technique_stack import StackStep
from capacity.planning.variations.technique_steps import ORDER

MODEL = "llama-3.1-8b"
LOAD: dict[str, Any] = {
    "gpu": "h100", "input_len": 300, "output_len": 40, "random_range_ratio": 0.5, "concurrency": 12, "num_prompts": 36,
}  # fmt: skip


@pytest.fixture(scope="module")
def answer() -> Stack:
    return stack(MODEL, **LOAD, price="2")


def taken(answer: Stack) -> list[StackStep]:
    return [step for step in answer.steps if step.refused is None]


@pytest.mark.parametrize("name", ["throughput", "ttft", "tpot", "usd"])
def test_the_steps_factors_multiply_to_the_cumulative_one(answer: Stack, name: str) -> None:
    steps = taken(answer)
    for place, step in enumerate(steps, 1):
        own = prod(getattr(each.own, name) for each in steps[:place])
        assert getattr(step.cumulative, name) == pytest.approx(own, rel=1e-12)
    assert getattr(answer.together, name) == getattr(steps[-1].cumulative, name)
    assert getattr(answer.product_of_single, name) == pytest.approx(
        prod(getattr(each.alone, name) for each in steps), rel=1e-12
    )


def test_the_last_row_is_what_simulate_says_of_its_deployment(answer: Stack) -> None:
    last = taken(answer)[-1]
    assert last.figures is not None
    asked = LOAD | {
        "quantization": "fp8", "kv_cache_dtype": "fp8", "max_model_len": 1024, "enable_chunked_prefill": True,
        "enable_prefix_caching": False, "speculator": "eagle3",
        "num_speculative_tokens": int(last.flags.split()[-1]),
    }  # fmt: skip
    assert set(last.flags.split()) >= {"fp8", "eagle3", "--enable-chunked-prefill", "1024"}
    run = simulate(MODEL, **asked).run.to_dict()
    assert last.figures.output_tokens_per_s.value == pytest.approx(run["output_throughput"], rel=1e-12)
    assert last.figures.ttft_s.value == pytest.approx(run["mean_ttft_ms"] / 1e3, rel=1e-12)
    assert last.figures.tpot_s is not None
    assert last.figures.tpot_s.value == pytest.approx(run["mean_tpot_ms"] / 1e3, rel=1e-12)


def test_the_naive_row_is_what_simulate_says_of_its_flags(answer: Stack) -> None:
    naive = {
        "dtype": "float32", "max_model_len": 1024, "max_num_seqs": 1, "enable_chunked_prefill": False,
        "enable_prefix_caching": False, "enforce_eager": True, "kv_layout": "contiguous", "use_cache": False,
        "attn_implementation": "eager", "scheduling": "static",
    }  # fmt: skip
    run = simulate(MODEL, **LOAD, **naive).run.to_dict()
    assert answer.naive.output_tokens_per_s.value == pytest.approx(run["output_throughput"], rel=1e-12)
    assert answer.naive.basis == "assumed"


def test_every_technique_has_a_row_or_a_reason(answer: Stack) -> None:
    assert tuple(step.technique for step in answer.steps) == ORDER
    refused = {step.technique: step.refused for step in answer.steps if step.refused is not None}
    assert set(refused) == {"prefix-caching", "tensor-parallelism"}
    assert all(reason and len(reason) > 20 for reason in refused.values())


def test_a_price_is_that_of_the_throughput(answer: Stack) -> None:
    for figures in (answer.naive, *(step.figures for step in taken(answer))):
        assert figures is not None
        assert figures.usd_per_million_output_tokens is not None
        assert (
            figures.usd_per_million_output_tokens.value * figures.output_tokens_per_s.value
            == pytest.approx(2 / 3600 * 1e6)
        )


def test_alone_is_upon_what_it_needs(answer: Stack) -> None:
    steps = {step.technique: step for step in answer.steps}
    first = steps["bf16"]
    assert first.alone == first.own  # nothing before it
    assert steps["cuda-graphs"].rests_upon == ("kv-cache",)
    assert steps["static-batching"].alone is not None
    assert steps["static-batching"].own is not None
    # without a KV cache a batch computes as many prefixes as it has members: it saves next to nothing
    assert steps["static-batching"].alone.throughput < 0.25 * steps["static-batching"].own.throughput
    assert "compute" in steps["static-batching"].why


def test_an_order_of_ones_own() -> None:
    answer = stack(MODEL, **LOAD, order=["kv-cache", "bf16", "paged-kv"])
    kv, bf16, paged = answer.steps
    assert kv.cumulative == kv.alone
    assert bf16.cumulative is not None
    assert answer.together == bf16.cumulative
    assert paged.refused is not None
    assert "continuous-batching" in paged.refused


def test_no_price_no_cost() -> None:
    answer = stack(MODEL, **(LOAD | {"num_prompts": 12}), order=["bf16"])
    assert answer.naive.usd_per_million_output_tokens is None
    assert answer.together.usd is None


def test_what_does_not_fit_naively_begins_higher_and_says_so() -> None:
    """70B in FP32 are 282 GB: of four H100s the tensor parallelism is in the naive deployment."""
    answer = stack(
        "llama-3.1-70b",
        **(LOAD | {"num_prompts": 12}),
        tensor_parallel_size=4,
        order=["bf16", "tensor-parallelism"],
    )
    steps = {step.technique: step for step in answer.steps}
    assert "which does not fit in memory without it" in (steps["tensor-parallelism"].refused or "")
    assert "--tensor-parallel-size 4" in answer.naive_flags
    assert steps["bf16"].figures is not None


def test_a_gpu_without_fp8_takes_four_bits() -> None:
    answer = stack(MODEL, **(LOAD | {"gpu": "a100", "num_prompts": 12}), order=["bf16", "quantized-weights"])
    last = answer.steps[-1]
    assert "no FP8 tensor cores" in last.title
    assert "--quantization int4" in last.flags


def test_a_stored_format_is_no_step() -> None:
    answer = stack(
        "gpt-oss-20b", **(LOAD | {"num_prompts": 12}), order=["bf16", "quantized-weights", "kv-cache"]
    )
    assert [step.refused is None for step in answer.steps] == [False, False, True]


def test_arrivals_too_fast_for_a_step_are_marked() -> None:
    load = {name: value for name, value in LOAD.items() if name != "concurrency"} | {"request_rate": 20.0}
    answer = stack(MODEL, **(load | {"num_prompts": 60}), order=["bf16", "kv-cache", "static-batching"])
    assert answer.naive.overloaded
    assert any("overloaded" in text for text in answer.observations)


@pytest.mark.parametrize(
    ("order", "kind", "says"),
    [(["bf17"], UnknownName, "bf17"), (["bf16", "bf16"], InvalidInput, "twice"), ([], InvalidInput, "empty")],
)
def test_orders_that_cannot_be(order: list[str], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        stack(MODEL, **LOAD, order=order)


def test_a_model_that_makes_no_tokens_has_no_stack() -> None:
    with pytest.raises(InvalidInput, match="generates no tokens"):
        stack("bge-m3", gpu="h100", input_len=100, output_len=1, concurrency=2, num_prompts=4)
