"""The engines' table is what the simulator uses; published speed claims are held against bandwidth and FLOPs."""

from __future__ import annotations

import pytest

from capacity.engines import engine_names, find_engine
from capacity.errors import UnknownName
from capacity.techniques.engine_table import breakdown_claims, engine_rows, ladder_claims


def test_every_engine_has_a_row_of_what_the_simulator_takes() -> None:
    rows = {row.engine.partition("@")[0]: row for row in engine_rows("h100")}
    assert set(rows) == set(engine_names())
    for name, row in rows.items():
        engine = find_engine(name)
        assert row.policy == engine.scheduler
        assert row.block_size == engine.block_size
        assert 0 < row.sourced_fraction <= 1
    assert rows["vllm"].max_num_seqs == 1024
    assert {row.engine.partition("@")[0]: row.max_num_seqs for row in engine_rows("a100")}["vllm"] == 256
    served = ("vllm", "sglang", "tensorrt-llm", "tgi", "llama.cpp", "deepspeed-mii", "hf-transformers")
    assert all(rows[name].simulated for name in served)
    assert find_engine("ollama").name == "llama.cpp"


def test_the_published_ladder_against_bandwidth() -> None:
    """A100, Llama-2-7B: 13.5 GB a token at 2.039 TB/s bound 16-bit decode at 151 tokens/s; 180 were published."""
    claims = {claim.name: claim for claim in ladder_claims()}
    assert [claim.published for claim in claims.values()] == [52, 78, 120, 165, 180]
    assert claims["vLLM"].bound == pytest.approx(2.039e12 / 13.5e9, rel=0.02)
    assert not claims["TensorRT-LLM"].possible
    assert "2.43 TB/s" in claims["TensorRT-LLM"].note
    assert all(claim.possible for name, claim in claims.items() if name != "TensorRT-LLM")
    awq = claims["vLLM + AWQ"]
    assert awq.ours == pytest.approx(awq.published, rel=0.15)
    assert all(claim.ours is not None and claim.ours < (claim.bound or 0) for claim in claims.values())
    assert "attention is" in claims["HF transformers + FlashAttention 2"].note


def test_the_published_breakdown_against_physics() -> None:
    """70B INT4 on one A100: 4 ms a token read 36 GB, 9 TB/s; 512 tokens in 150 ms need 470 TFLOP/s of 312."""
    claims = {claim.name: claim for claim in breakdown_claims()}
    decode, prefill = claims["decode, per token"], claims["prefill of 512 tokens"]
    assert not decode.possible
    assert not prefill.possible
    assert decode.bound == pytest.approx(36.6e9 / 2.039e12 * 1e3, rel=0.05)
    assert prefill.bound == pytest.approx(2 * 68.5e9 * 512 / 312e12 * 1e3, rel=0.03)
    assert decode.ours is not None
    assert decode.ours > (decode.bound or 0)
    assert claims["network"].possible


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(UnknownName):
        engine_rows("h999")
