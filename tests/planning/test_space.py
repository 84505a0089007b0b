"""The axes of a plan, and the engines and deployments that they span."""

from __future__ import annotations

import pytest
from flag_walk import VALUES

import capacity
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, build
from capacity.model import load_model
from capacity.planning.space import (
    FIXED_FIELDS,
    SEARCHED_FIELDS,
    Axes,
    Candidate,
    Search,
    disaggregated_axes,
    pairs,
    pools,
)


def test_what_draws_in_the_plan_is_named_once() -> None:
    """Every deployment has a label and a dictionary of its own, whatever its shape."""
    pool = Pool(gpu="h100", tensor_parallel_size=2, speculator="ngram", num_speculative_tokens=3)
    alone, apart = (
        Candidate(pool=pool, replicas=2),
        Candidate(pool=pool, replicas=2, prefill=pool, prefill_replicas=3),
    )
    assert alone.num_gpus == 4
    assert apart.num_gpus == 10
    assert "3 x h100 TP2 prefill + 2 x h100 TP2 decode" in apart.label
    assert "ngram 3" in alone.label
    assert [(p.role, p.replicas) for p in apart.pools] == [("prefill", 3), ("decode", 2)]
    assert [(p.role, p.replicas) for p in alone.pools] == [("both", 2)]


def test_a_checkpoints_own_format_is_searched_once() -> None:
    def formats(name: str, listed: str) -> set[str | None]:
        search = Search(gpus="h200", quantizations=listed)
        return {pool.quantization for pool in pools(search, "h200", load_model(name))}

    assert formats("deepseek-v3", "default,fp8,int4") == {None, "int4"}
    assert formats("deepseek-v3", "fp8,int4") == {"fp8", "int4"}
    assert formats("llama-3.1-8b", "default,fp8") == {None, "fp8"}


def test_a_limit_on_time_is_the_default_and_can_be_lifted() -> None:
    assert Search(gpus="h100").time_limit_s == 120
    for lifted in ("inf", 0, "0", None, float("inf")):
        assert Search(gpus="h100", time_limit_s=lifted).time_limit_s == 0


@pytest.mark.parametrize("name", Pool.model_fields)
def test_each_pool_field_is_an_axis_or_fixed(name: str) -> None:
    """A field of a pool that a search neither decides nor has as an axis is the same in all of its deployments."""
    if name not in FIXED_FIELDS:
        assert name in SEARCHED_FIELDS or name in Axes.model_fields
        return
    value = VALUES[name.replace("_", "-")].split()[0]
    search = build(Search, {"gpus": "h100", "speculators": "none,layer-skip", name: value})
    expected = getattr(build(Pool, {"gpu": "h100", "max_loras": 1, name: value}), name)
    assert expected != Pool.model_fields[name].default
    drafted = [pool for pool in pools(search, "h100", load_model(DENSE)) if pool.speculator is not None]
    field = "max_loras" if name == "enable_lora" else name
    assert {getattr(pool, field) for pool in drafted} == {1 if name == "enable_lora" else expected}


def test_a_fixed_field_reaches_the_answer_and_its_launch() -> None:
    plan = capacity.plan(
        "llama-3.1-8b",
        slo="ttft:p95:500ms",
        gpus="h100",
        objective="gpus",
        tensor_parallel_sizes=(1,),
        num_gpu_blocks_override=4000,
        request_rate=2.0,
        num_prompts=40,
        input_len=200,
        output_len=20,
    )
    assert plan.best is not None
    assert plan.best.pool.num_gpu_blocks_override == 4000
    assert "--num-gpu-blocks-override 4000" in plan.best.launch[0].command


def test_ranks_draft_where_ways_to_draft_are_asked_for() -> None:
    def both(**asked: str) -> bool:
        search = Search(gpus="h200", quantizations="default", **asked)
        found = list(pools(search, "h200", load_model("deepseek-v3")))
        assert any(pool.speculator is not None for pool in found)
        return any(pool.speculator is not None and pool.data_parallel_size > 1 for pool in found)

    assert both(speculators="none,mtp")
    assert not both()


DENSE, EXPERTS = "llama-3.1-8b", "qwen3-30b-a3b"


@pytest.mark.parametrize(
    ("model", "asked", "drafts", "ranks"),
    [
        (DENSE, {}, {None}, {1}),
        (EXPERTS, {}, {None}, {1}),
        (DENSE, {"speculators": "none,eagle3", "data_parallel_sizes": "1,2"}, {None, "eagle3"}, {1}),
        (EXPERTS, {"speculators": "ngram"}, {"ngram"}, {1}),
        (EXPERTS, {"data_parallel_sizes": "1,2"}, {None}, {1, 2}),
        (EXPERTS, {"data_parallel_sizes": "1"}, {None}, {1}),
    ],
)
def test_engines_apart_draft_and_have_ranks_where_that_is_asked_for(
    model: str, asked: dict[str, str], drafts: set[str | None], ranks: set[int]
) -> None:
    search: Search = build(Search, {"gpus": "h100", "tensor_parallel_sizes": "1,2", **asked})
    found = list(pairs(search, "h100-sxm-80gb", load_model(model)))
    assert {after.speculator for _, after in found} == drafts
    for side in (0, 1):  # parallelism is each side's own
        assert {pair[side].data_parallel_size for pair in found} == ranks
    assert {before.data_parallel_size - after.data_parallel_size for before, after in found} == {
        first - second for first in ranks for second in ranks
    }
    alike = ("speculator", "num_speculative_tokens", "quantization", "kv_cache_dtype", "engine")
    assert all(getattr(before, name) == getattr(after, name) for before, after in found for name in alike)
    assert disaggregated_axes(search, load_model(model)) == (drafts != {None}, ranks != {1})


@pytest.mark.parametrize(
    "axis", ["max_num_seqs", "max_num_batched_tokens", "num_speculative_tokens", "tensor_parallel_sizes"]
)
@pytest.mark.parametrize("value", [10**29, 0])
def test_an_axis_has_the_bounds_of_what_it_sets(axis: str, value: int) -> None:
    with pytest.raises(InvalidInput, match=rf"{axis}.*must be"):
        build(Search, {"gpus": ("h100",), axis: (value,)})


def test_power_caps_are_an_axis_and_auto_has_the_uncapped_gpu_first() -> None:
    search = Search(gpus=("h100",), power_cap="500, 65%,none")  # type: ignore[arg-type]
    assert search.power_cap == (500, "65%", None)
    assert Search(gpus=("h100",), power_cap="auto").power_cap == (None, "80%", "65%", "50%")  # type: ignore[arg-type]
    spanned = {pool.power_cap for pool in pools(search, "h100", load_model("llama-3.1-8b"))}
    assert spanned == {500, "65%", None}
    assert "cap 500 W" in Candidate(pool=Pool(gpu="h100", power_cap=500), replicas=1).label
    with pytest.raises(InvalidInput, match="must be watts, or a share of the TDP"):
        build(Search, {"gpus": "h100", "power_cap": "some"})
