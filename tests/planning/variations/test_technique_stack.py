"""The ladder: deployments by what they have taken, each simulated once, from the least that fits."""

from __future__ import annotations

import pytest

from capacity.answers.engine_setup import make_workload
from capacity.base.errors import DoesNotFit
from capacity.deployment import Pool, Traffic
from capacity.planning.variations.technique_stack import TechniqueStack
from capacity.planning.variations.technique_steps import ORDER, naive_fields, techniques_by_name
from capacity.pool.resolve import resolve

TRAFFIC = Traffic(input_len=200, output_len=20, concurrency=4, num_prompts=8)


def ladder(model: str = "llama-3.1-8b", **fields: object) -> TechniqueStack:
    requests = make_workload(TRAFFIC)
    resolved = resolve(model, Pool.model_validate({"gpu": "h100"} | fields))
    techniques = techniques_by_name(resolved, requests)
    return TechniqueStack(
        model=model,
        workload=requests,
        traffic=TRAFFIC,
        price=None,
        profiles=None,
        techniques=techniques,
        naive=naive_fields(resolved, techniques, requests),
    )


def test_what_was_taken_is_simulated_once_in_whatever_order() -> None:
    found = ladder()
    assert found.simulate_with(("bf16", "kv-cache")) is found.simulate_with(("kv-cache", "bf16"))


def test_flags_are_what_is_not_at_its_default() -> None:
    found = ladder()
    assert "--scheduling static" in found.simulate_with(()).flags
    taken = (
        "bf16",
        "kv-cache",
        "flash-attention",
        "cuda-graphs",
        "static-batching",
        "continuous-batching",
        "paged-kv",
    )
    assert found.simulate_with(taken).flags == (
        "--gpu h100 --max-model-len 1024 --no-enable-chunked-prefill --no-enable-prefix-caching"
    )


@pytest.mark.parametrize(
    ("model", "fields", "begins"),
    [
        ("llama-3.1-8b", {}, ()),
        ("llama-3.1-70b", {"tensor_parallel_size": 8}, ("tensor-parallelism",)),
        ("qwen2.5-32b", {}, ("bf16",)),
        ("llama-3.1-70b", {"tensor_parallel_size": 2, "quantization": "int4"}, ("quantized-weights",)),
    ],
)
def test_it_begins_with_the_least_that_fits(
    model: str, fields: dict[str, object], begins: tuple[str, ...]
) -> None:
    assert ladder(model, **fields).fewest_that_fit(ORDER) == begins


def test_nothing_that_fits_is_said() -> None:
    with pytest.raises(DoesNotFit, match="GiB"):
        ladder("llama-3.1-405b").fewest_that_fit(ORDER)


def test_a_technique_without_its_ground_is_refused() -> None:
    steps = {step.technique: step for step in ladder().evaluate_steps(("paged-kv", "kv-cache"), ())}
    assert "continuous-batching" in (steps["paged-kv"].refused or "")
    assert steps["kv-cache"].refused is None


def test_where_a_cache_begins_to_pay() -> None:
    """At that context a step without takes twice as long as one with, one token before it not yet."""
    found = ladder()
    text = next(
        text
        for text in found.observations((), tuple(found.evaluate_steps(("kv-cache",), ())))
        if "twice as long" in text
    )
    context = int(text.partition("context of ")[2].split()[0].replace(",", ""))
    without, cached = (
        found.simulate_with(()).resolved.step_model,
        found.simulate_with(("kv-cache",)).resolved.step_model,
    )

    def ratio(tokens: int) -> float:
        from capacity.step import decode_shape

        return without.step_seconds(decode_shape(1, tokens)) / cached.step_seconds(decode_shape(1, tokens))

    assert ratio(context) > 2 >= ratio(context - 1)
