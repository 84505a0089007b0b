"""Words for ways to draft: one name means one thing, by whichever flag, JSON or checkpoint it comes."""

from __future__ import annotations

import json

import pytest
from vllm_pools import pool

from capacity.deployment.drafts import METHODS, drafting_name, drafting_notes, infer_drafting_method
from capacity.deployment.launch_writers import launch_command
from capacity.pool.drafting import find_speculator

DRAFT = {"method": "draft_model", "model": "org/small", "num_speculative_tokens": 4}


def test_a_name_alone_is_a_chain_and_a_tree_is_asked_for() -> None:
    for name in ("eagle", "eagle2", "eagle3", "medusa"):
        assert find_speculator(name).tree_tokens is None
        assert find_speculator(f"{name}-tree").tree_tokens
        assert find_speculator(f"{name}-chain") == find_speculator(name)
        assert pool(speculator=f"{name}-chain") == pool(speculator=name)
    assert drafting_name(" EAGLE-3 ") == "eagle3"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_vllm_drafts_a_chain(method: str) -> None:
    assert find_speculator(METHODS[method]).tree_tokens is None


@pytest.mark.parametrize(
    ("checkpoint", "way"),
    [
        ("JackFram/llama-68m", "draft-model"),
        ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "eagle3"),
        ("yuhuili/EAGLE-LLaMA3-Instruct-70B", "eagle"),
        ("abhigoyal/vllm-medusa-vicuna-7b-v1.3", "medusa"),
        ("[ngram]", "ngram"),
    ],
)
def test_a_checkpoint_is_what_vllm_takes_it_for(checkpoint: str, way: str) -> None:
    assert infer_drafting_method(checkpoint) == way
    kept = checkpoint if way == "draft-model" else None
    assert (pool(draft=checkpoint).speculator, pool(draft=checkpoint).draft) == (way, kept)


def test_a_draft_model_is_one_pool_however_it_is_written() -> None:
    asked = pool(speculator="draft-model", draft="org/small", num_speculative_tokens=4)
    assert pool(speculative_config=json.dumps(DRAFT)) == asked
    assert pool(speculative_config={name: DRAFT[name] for name in DRAFT if name != "method"}) == asked
    assert pool(draft="org/small", num_speculative_tokens=4) == asked
    split = pool(speculative_config=DRAFT | {"draft_tensor_parallel_size": 1})
    assert split.draft_tensor_parallel_size == 1
    assert split.without_drafts == pool()


def test_what_an_engine_does_not_draft_by_is_said_and_not_launched() -> None:
    asked = pool(speculator="lookahead", num_speculative_tokens=4)
    vllm, tensorrt = launch_command("vllm", "m", asked), launch_command("tensorrt-llm", "m", asked)
    assert "--speculative-config" not in vllm.words
    assert any("uses no speculative decoding" in note for note in vllm.notes)
    ((_, text),) = tensorrt.files
    assert "decoding_type: Lookahead" in text
    assert "max_ngram_size: 5" in text
    assert not any("uses no speculative decoding" in note for note in tensorrt.notes)
    assert drafting_notes("vllm", "layer-skip")
    assert not drafting_notes("vllm", "eagle3")
