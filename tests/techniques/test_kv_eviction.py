"""KV eviction method by method: bytes, steps and requests by hand, and as a pool that is set so."""

from __future__ import annotations

import pytest

from capacity.base.errors import UnknownName
from capacity.deployment import Pool
from capacity.pool.resolve import resolve
from capacity.step import decode_shape
from capacity.techniques.kv import kv
from capacity.techniques.kv_eviction import EvictionRow

MIB = 2**20
CONTEXT = 32_768


def rows(eviction: str = "all", model: str = "llama-3.1-8b", **options: object) -> dict[str, EvictionRow]:
    answer = kv(model, gpus="h100", contexts=[CONTEXT], eviction=eviction, **options)  # type: ignore[arg-type]
    return {row.method: row for row in answer.evictions}


def test_bytes_by_hand() -> None:
    """128 KiB a token: 1,024 tokens are 128 MiB of 4 GiB; a quarter of the tokens; 2 + 32/32 of 16 bits."""
    found = rows()
    assert found["none"].kv_bytes == 4096 * MIB
    assert found["snapkv"].kv_bytes == found["h2o"].kv_bytes == 128 * MIB
    assert found["dmc"].kv_bytes == 1024 * MIB
    assert found["kivi-2"].kv_bytes == pytest.approx(4096 * MIB * 3 / 16)
    assert found["kv-int4"].kv_bytes == pytest.approx(4096 * MIB * (4 + 32 / 128) / 16)
    assert found["h2o"].score_bytes == 32 * 8 * 1024 * 4
    assert found["snapkv"].score_bytes == 0


def test_steps_and_requests_are_those_of_a_pool_that_is_set_so() -> None:
    row = rows("snapkv", budget_tokens=2048, batch_size=8)["snapkv"]
    pool = resolve("llama-3.1-8b", Pool(gpu="h100", kv_eviction="snapkv", kv_budget=2048))
    shape = decode_shape(8, CONTEXT, window_tokens=pool.model.window_tokens)
    assert row.step_s == pytest.approx(pool.step_model.step_seconds(shape))
    whole = resolve("llama-3.1-8b", Pool(gpu="h100"))
    most, kept = CONTEXT // 16, 2048 // 16
    assert row.held == 1 + (whole.memory.usable_blocks - most) // kept
    assert row.speedup is not None
    assert row.speedup > 1.5


def test_only_what_grows_is_dropped() -> None:
    """Of Gemma-3's layers five in six have windows of 1,024 already, which stay."""
    found = rows("h2o", model="gemma-3-27b", budget_tokens=4096, batch_size=1)
    answer = kv("gemma-3-27b", contexts=[4096, CONTEXT])
    assert found["h2o"].kv_bytes == pytest.approx(answer.rows[0].request_bytes[4096])
    assert found["none"].kv_bytes == pytest.approx(answer.rows[0].request_bytes[CONTEXT])


def test_choosing_costs_the_prompt_and_nothing_is_saved_there() -> None:
    """H2O looks at every score once more, SnapKV at 32 rows of them, a window at none, and computes less."""
    found = rows()
    whole = found["none"].prefill_s
    assert whole is not None
    assert found["h2o"].prefill_s == found["snapkv"].prefill_s == whole
    h2o_s, snapkv_s = found["h2o"].score_s, found["snapkv"].score_s
    assert h2o_s is not None
    assert snapkv_s is not None
    assert found["streaming-llm"].score_s == 0
    last = sum(range(CONTEXT - 31, CONTEXT + 1)) / (CONTEXT * (CONTEXT + 1) / 2)
    assert snapkv_s == pytest.approx(h2o_s * last)
    sinks_s = found["streaming-llm"].prefill_s
    assert sinks_s is not None
    assert sinks_s < 0.7 * whole


def test_without_a_gpu_there_are_bytes_alone() -> None:
    answer = kv("llama-3.1-8b", contexts=[CONTEXT], eviction="h2o")
    assert [row.step_s for row in answer.evictions] == [None, None]
    assert answer.evictions[1].kept_share == pytest.approx(1024 / CONTEXT)
    assert not kv("llama-3.1-8b").evictions
    with pytest.raises(UnknownName, match="pyramidkv"):
        kv("llama-3.1-8b", eviction="pyramid")


def test_a_budget_above_the_context_changes_nothing() -> None:
    row = rows("h2o", budget_tokens=CONTEXT)["h2o"]
    assert (row.kept_tokens, row.kept_share, row.speedup) == (CONTEXT, 1.0, 1.0)


def test_kv_formats_stand_beside_with_the_engines_that_have_them() -> None:
    answer = kv("llama-3.1-8b", contexts=[CONTEXT], eviction="all")
    found = {way.method: way for way in answer.eviction_methods}
    assert "vllm" in found["kv-fp8"].engines
    assert found["kivi-2"].engines == found["h2o"].engines == ()
    assert found["rocketkv"].engines == ("tensorrt-llm",)
    (alone,) = kv("llama-3.1-8b", contexts=[CONTEXT], eviction="kv-int8").eviction_methods
    assert alone == found["kv-int8"]
