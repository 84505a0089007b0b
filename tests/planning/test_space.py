"""The axes of a plan, and the engines and deployments that they span."""

from __future__ import annotations

from capacity.deployment import Pool
from capacity.model import load_model
from capacity.planning.space import Candidate, Search, pools


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


def test_ranks_draft_where_ways_to_draft_are_asked_for() -> None:
    def both(**asked: str) -> bool:
        search = Search(gpus="h200", quantizations="default", **asked)
        found = list(pools(search, "h200", load_model("deepseek-v3")))
        assert any(pool.speculator is not None for pool in found)
        return any(pool.speculator is not None and pool.data_parallel_size > 1 for pool in found)

    assert both(speculators="none,mtp")
    assert not both()
