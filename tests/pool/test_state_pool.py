"""SGLang's pool of recurrent states, against what its start-up lines say."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from capacity.deployment import Pool
from capacity.pool.kv_layout import has_state_pool, state_pool
from capacity.pool.memory import GIB
from capacity.pool.resolve import ResolvedPool, resolve

ON_H100: Mapping[str, object] = {
    "gpu": "h100-sxm-80gb",
    "engine": "sglang",
    "quantization": "fp8-block",
    "gpu_memory_utilization": 0.85,
}


def resolved(model: str = "qwen3.6-27b", **fields: object) -> ResolvedPool:
    return resolve(model, Pool.model_validate({**ON_H100, **fields}))


def test_a_log_of_an_h100() -> None:
    """Qwen3.8-27B-FP8, of the same shape: 124 slots in 17.92 GiB, KV of 330,323 tokens in 20.16 GiB."""
    states = resolved().memory.states
    assert states is not None
    assert states.slots == pytest.approx(124, rel=0.03)
    assert states.used_bytes / GIB == pytest.approx(17.92, rel=0.03)
    assert resolved().memory.kv_capacity_tokens == pytest.approx(330_323, rel=0.03)


def test_a_request_takes_five_states_and_one_without_prefixes() -> None:
    """Lines of 0.5.19: 47 slots let 9 requests run, 64 slots 12."""
    pool = resolved()
    rest = pool.memory.kv_cache_bytes
    states = state_pool(pool, range(pool.model.num_layers), rest)
    assert states is not None
    slot = states.slot_bytes
    for slots, requests in ((47, 9), (64, 12)):
        small = state_pool(pool, range(pool.model.num_layers), (slots + 1.5) * slot * 1.9 / 0.9)
        assert small is not None
        assert (small.slots, small.requests) == (slots, requests)
    assert pool.max_num_seqs == states.requests == states.slots // 5
    assert resolved(enable_prefix_caching=False).max_num_seqs == states.slots
    assert resolved(enable_prefix_caching=False, max_num_seqs=32).memory.states.slots == 32  # type: ignore[union-attr]


def test_releases_before_0_5_14_keep_three_states_and_do_not_overlap() -> None:
    """Before 0.5.4 there is no prefix cache with recurrent states, and so one state; Kimi-Linear's came in 0.5.14."""
    fields: dict[str, object] = {"model": "qwen3-next-80b-a3b", "gpu": "b200-sxm-180gb", "quantization": None}
    found = {}
    for release in ("0.5.3", "0.5.9", "0.5.14"):
        pool = resolved(**fields, engine=f"sglang@{release}")
        assert pool.memory.states is not None
        found[release] = (pool.memory.states.states_per_request, pool.engine.host_overlapped)
    assert found == {"0.5.3": (1, True), "0.5.9": (3, False), "0.5.14": (5, True)}
    assert resolved(**fields, engine="sglang@0.5.9", enable_prefix_caching=False).engine.host_overlapped
    assert resolved("llama-3.1-8b", engine="sglang@0.5.9").engine.host_overlapped
    linear = resolved("kimi-linear-48b-a3b", engine="sglang@0.5.9", gpu="b200-sxm-180gb", quantization=None)
    assert (linear.prefix_caching, linear.engine.host_overlapped) == (False, True)


def test_states_are_split_over_ranks_and_stages() -> None:
    one = resolved(quantization=None, gpu="b200-sxm-180gb")
    two = resolved(quantization=None, gpu="b200-sxm-180gb", tensor_parallel_size=2)
    halves = resolved(quantization=None, gpu="b200-sxm-180gb", pipeline_parallel_size=2)
    for other in (two, halves):
        assert one.memory.states is not None
        assert other.memory.states is not None
        assert other.memory.states.slot_bytes == one.memory.states.slot_bytes / 2
        assert other.max_num_seqs > 2 * one.max_num_seqs


def test_a_limit_above_the_places_is_lowered_and_said() -> None:
    places = resolved().max_num_seqs
    asked = resolved(max_num_seqs=512)
    assert asked.max_num_seqs == places
    assert any(f"at most {places} requests run concurrently" in note for note in asked.notes)
    assert "use more GPUs" in asked.concurrency_advice
    below = resolved(max_num_seqs=4)
    assert below.concurrency_advice == "raise --max-num-seqs"
    assert below.max_num_seqs == 4
    assert not any("run concurrently" in note for note in below.notes)


@pytest.mark.parametrize(
    ("model", "engine"), [("qwen3.6-27b", "vllm"), ("llama-3.1-8b", "sglang"), ("gpt-oss-20b", "sglang")]
)
def test_others_have_none(model: str, engine: str) -> None:
    pool = resolved(model, engine=engine, quantization=None, gpu="h200-sxm-141gb", gpu_memory_utilization=0.9)
    assert not has_state_pool(pool)
    assert pool.memory.states is None
    assert not any("run concurrently" in note for note in pool.notes)


def test_without_a_place_it_does_not_fit() -> None:
    """Weights leave a little over a GiB: states of one request take 0.7 GiB, half of what is left less."""
    fits = resolved().memory
    tight = resolved(gpu_memory_utilization=0.85 - (fits.kv_cache_bytes - 1.2 * GIB) / fits.total_bytes)
    assert not tight.memory.fits
    assert tight.memory.max_context_tokens == 0
    assert "one request needs 0.72 GiB of states" in (tight.memory.reason or "")
    assert tight.suggested_changes
