"""Does prefix caching pay: the answer's parts fit together, and what belongs together is refused apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Pool
from capacity.techniques.cache_curve import cache_curve


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Two prompts of two blocks of 512 tokens, twice each."""
    rows = [(second, [2 * (second % 2), 2 * (second % 2) + 1]) for second in range(4)]
    lines = [
        json.dumps({"timestamp": 1000 * second, "input_length": 1024, "output_length": 1, "hash_ids": blocks})
        for second, blocks in rows
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    return str(path)


def test_two_prompts_by_turns_need_room_for_both(trace: str) -> None:
    """In a cache of one prompt each throws the other out; in one of two, the second half of the tokens hits."""
    answer = cache_curve(trace, capacities_tokens=(1024, 2048), plans=())
    assert [row.token_hit_fraction for row in answer.rows] == [0, 0.5, 0.5]
    assert (answer.block_tokens, answer.knee_tokens, answer.prompt_tokens) == (512, 2048, 4096)
    assert answer.savings is None
    assert answer.routing == answer.plans == ()


def test_what_a_pool_saves_costs_what_its_gpu_hour_costs(trace: str) -> None:
    served_by = ("llama-3.1-8b", Pool(gpu="h100"))
    one, two = (cache_curve(trace, served_by=served_by, price=price).savings for price in ("1", "2"))
    assert one is not None
    assert two is not None
    assert one.usd_per_million_input_tokens is not None
    assert two.usd_per_million_input_tokens == pytest.approx(2 * one.usd_per_million_input_tokens)


def test_flags_ask_the_same_question(trace: str) -> None:
    flags = cache_curve(trace, model="llama-3.1-8b", gpu="h100", replicas=2)
    assert flags == cache_curve(trace, served_by=("llama-3.1-8b", Pool(gpu="h100")), replicas=2)
    assert {row.replicas for row in flags.routing} == {2}


def test_half_a_pool_and_unknown_plans_are_refused(trace: str) -> None:
    with pytest.raises(InvalidInput, match="--model and --gpu belong together"):
        cache_curve(trace, gpu="h100")
    with pytest.raises(InvalidInput, match="--price is the price of a GPU"):
        cache_curve(trace, price="2")
    with pytest.raises(InvalidInput, match="model and served_by both"):
        cache_curve(trace, model="llama-3.1-8b", gpu="h100", served_by=("llama-3.1-8b", Pool(gpu="h100")))
    with pytest.raises(UnknownName, match="prompt-cache plan"):
        cache_curve(trace, plans=["free"])
