"""The engines' table is what the simulator uses; published speed claims are held against bandwidth and FLOPs."""

from __future__ import annotations

import pytest

from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Pool
from capacity.deployment.engines import engine_names, find_engine
from capacity.model.quantization import find_format, weight_formats
from capacity.pool.resolve import resolve
from capacity.techniques.engine_table import breakdown_claims, engine_rows, throughput_claims


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
    assert rows["ollama"].max_num_seqs == 1
    assert rows["ollama"].block_size == rows["llama.cpp"].block_size
    assert {name for name, row in rows.items() if row.drafts} >= {"vllm", "llama.cpp"}


@pytest.mark.parametrize(
    ("engine", "quantization", "kv_cache_dtype", "refused"),
    [
        ("ollama", "awq", "auto", "int-weight-only"),
        ("ollama", "gguf-q4_k_m", "auto", None),
        ("llama.cpp", "fp8", "auto", "fp8"),
        ("llama.cpp", None, "int8", None),
        ("llama.cpp", None, "fp8", "KV cache in fp8"),
        ("deepspeed-mii", "gptq-int4", "auto", "int-weight-only"),
        ("deepspeed-mii", None, "fp8", "KV cache in fp8"),
        ("tgi", "gguf-q8_0", "auto", "gguf"),
        ("tgi", "nf4", "fp8", None),
        ("tensorrt-llm", "nvfp4", "nvfp4", None),
        ("tensorrt-llm", "nf4", "auto", "bitsandbytes"),
        ("sglang", "w8a8", "fp8", None),
        ("sglang", None, "int4", "KV cache in int4"),
        ("hf-transformers", "nvfp4", "auto", "nvfp4"),
        ("vllm@0.6", "mxfp4", "auto", "mxfp4"),
        ("vllm@0.11", "mxfp4", "auto", None),
        ("vllm@0.15", None, "int8", "KV cache in int8"),
        ("vllm", None, "int8", None),
    ],
)
def test_an_engine_refuses_what_it_does_not_load(
    engine: str, quantization: str | None, kv_cache_dtype: str, refused: str | None
) -> None:
    """The table is what the resolve step goes by; the refusal is one line that names who could."""
    gpu = "b200" if quantization == "nvfp4" else "h100"  # FP4 of TensorRT-LLM wants Blackwell
    pool = Pool(gpu=gpu, engine=engine, quantization=quantization, kv_cache_dtype=kv_cache_dtype)
    if refused is None:
        assert resolve("llama-3.1-8b", pool).engine.name == engine.partition("@")[0]
        return
    with pytest.raises(InvalidInput, match=refused) as caught:
        resolve("llama-3.1-8b", pool)
    assert "--engine" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_checkpoints_own_format_is_checked_too() -> None:
    with pytest.raises(InvalidInput, match="does not load fp8 weights"):
        resolve("deepseek-v3", Pool(gpu="h200", engine="ollama"))
    assert resolve("gpt-oss-20b", Pool(gpu="h100", engine="ollama")).engine.label == "ollama@0.12"


def test_every_format_has_a_family_and_every_family_an_engine() -> None:
    listed = {family for name in engine_names() for family in find_engine(name).weight_formats}
    assert {find_format(name).family for name in weight_formats()} <= listed
    assert "other" not in listed
    for name in engine_names():
        assert {"weight_formats", "kv_cache_formats"} <= set(find_engine(name).origins)


def test_the_published_ladder_against_bandwidth() -> None:
    """A100, Llama-2-7B: 13.5 GB a token at 2.039 TB/s bound 16-bit decode at 151 tokens/s; 180 were published."""
    claims = {claim.name: claim for claim in throughput_claims()}
    assert [claim.published for claim in claims.values()] == [52, 78, 120, 165, 180]
    assert claims["vLLM"].bound == pytest.approx(2.039e12 / 13.5e9, rel=0.02)
    assert not claims["TensorRT-LLM"].possible
    assert "2.43 TB/s" in claims["TensorRT-LLM"].note
    assert all(claim.possible for name, claim in claims.items() if name != "TensorRT-LLM")
    awq = claims["vLLM + AWQ"]
    assert awq.ours == pytest.approx(awq.published, rel=0.15)
    assert all(claim.ours is not None and claim.ours < (claim.bound or 0) for claim in claims.values())
    assert "attention is" in claims["HF transformers + FlashAttention 2"].note
    assert "faster kernel launches" in claims["HF transformers"].note
    assert "104.9" in claims["vLLM"].note


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
