"""A pool with its defaults filled in: what agrees, what is refused in one line, the least size that fits."""

from __future__ import annotations

import pytest
from filled_pools import A100, H100, H200, VLLM, VLLM_011, plan_of, pool_of

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.deployment.engines import find_engine
from capacity.hardware import HardwareProfile, load_profile
from capacity.model import load_model
from capacity.pool.resolve import resolve

B200 = load_profile("b200")


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        (
            "llama-3.1-70b",
            {"tensor_parallel_size": 3},
            r"does not divide the 64 attention heads.*use 1, 2, 4, 8",
        ),
        ("phi-4", {"tensor_parallel_size": 4}, "does not divide the 10 KV heads"),
        ("llama-3.1-8b", {"pipeline_parallel_size": 33}, "exceeds the 32 layers"),
        ("llama-3.1-8b", {"tensor_parallel_size": 0}, "greater than or equal to 1"),
        ("llama-3.1-8b", {"max_model_len": 131_073}, "exceeds the 131072 positions"),
        ("llama-3.1-8b", {"max_model_len": 0}, "greater than or equal to 1"),
        (
            "llama-3.1-8b",
            {"max_num_seqs": 512, "max_num_batched_tokens": 256},
            "below --max-num-seqs 512",
        ),
        ("llama-3.1-8b", {"max_num_seqs": 10_000}, "8192 is less than --max-num-seqs 10000"),
        ("llama-3.1-8b", {"gpu_memory_utilization": 1.1}, "less than or equal to 1"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(name: str, settings: dict[str, int], text: str) -> None:
    with pytest.raises(InvalidInput, match=text) as caught:
        plan_of(load_model(name), H100, VLLM, **settings)
    assert "\n" not in str(caught.value)


def test_smallest_tensor_parallel_size() -> None:
    model = load_model("llama-3.1-70b")
    assert pool_of(model, H100, VLLM_011, max_model_len=8192).smallest_tensor_parallel_size == 4
    assert plan_of(model, H100, VLLM_011, tensor_parallel_size=4, max_model_len=8192).fits
    assert not plan_of(model, H100, VLLM_011, tensor_parallel_size=2, max_model_len=8192).fits
    newer = pool_of(model, H100, VLLM, max_model_len=8192)  # sampling needs less, and 0.92 is the default
    assert newer.smallest_tensor_parallel_size == 2
    assert pool_of(load_model("kimi-k2"), A100, VLLM).smallest_tensor_parallel_size is None


@pytest.mark.parametrize(
    ("engine", "fields", "sequences", "budget"),
    [
        ("vllm@0.33", {}, 1024, 8192),
        ("vllm@0.33", {"max_num_batched_tokens": 512}, 512, 512),  # the default of sequences follows
        ("vllm@0.33", {"max_num_seqs": 64}, 64, 8192),
        ("vllm@0.33", {"max_model_len": 100}, 1024, 8192),
        ("vllm@0.33", {"enable_chunked_prefill": False, "max_model_len": 9000}, 1024, 9000),  # a whole prompt
        ("vllm@0.33", {"enable_chunked_prefill": False, "max_model_len": 4096}, 1024, 8192),
        ("sglang", {"data_parallel_size": 8}, 256, 1024),  # DP attention divides the defaults,
        ("sglang", {"data_parallel_size": 8, "max_num_batched_tokens": 4096}, 256, 4096),  # not what is set
        ("vllm@0.33", {"data_parallel_size": 8}, 1024, 8192),
    ],
)
def test_limits_of_a_step(engine: str, fields: dict[str, object], sequences: int, budget: int) -> None:
    pool = pool_of(load_model("deepseek-r1"), H200, find_engine(engine), **fields)
    assert (pool.max_num_seqs, pool.max_num_batched_tokens) == (sequences, budget)


def test_what_the_pool_leaves_open_is_the_engines_and_the_checkpoints() -> None:
    model = load_model("llama-3.1-8b")
    plain = pool_of(model, H100, VLLM)
    assert (plain.gpu_memory_utilization, plain.reserve_full_isl, plain.prefix_caching) == (0.92, True, True)
    assert (plain.scheme, plain.max_model_len, plain.kv_cache_dtype) == (model.checkpoint, 131_072, "auto")
    own = pool_of(
        model,
        H100,
        VLLM,
        gpu_memory_utilization=0.5,
        scheduler_reserve_full_isl=False,
        enable_prefix_caching=False,
        max_num_scheduled_tokens=100,
    )
    assert (own.gpu_memory_utilization, own.reserve_full_isl, own.prefix_caching) == (0.5, False, False)
    assert (own.max_num_scheduled_tokens, own.limits.max_num_batched_tokens) == (100, 100)
    assert (plain.max_num_scheduled_tokens, own.max_num_batched_tokens) == (8192, 8192)
    assert plain.concurrent_requests(4096) == (plain.memory.kv_capacity_blocks - 1) // (4096 // 16)


@pytest.mark.parametrize(
    ("engine", "profile", "default", "fp8"),
    [
        ("vllm@0.11", H200, "fp8_ds_mla", "fp8_ds_mla"),
        ("vllm@0.13", H200, "auto", "fp8_ds_mla"),
        ("vllm@0.19", H200, "auto", "fp8_ds_mla"),
        ("vllm@0.17", B200, "auto", "fp8"),  # 16 heads per GPU
        ("vllm@0.16", B200, "auto", "fp8_ds_mla"),
        ("vllm@0.19", B200, "auto", "fp8"),
        ("vllm", B200, "auto", "fp8"),
        ("sglang", H200, "auto", "fp8_ds_mla"),
        ("sglang", B200, "fp8_ds_mla", "fp8_ds_mla"),
    ],
)
def test_sparse_latents_are_kept_as_the_engine_does(
    engine: str, profile: HardwareProfile, default: str, fp8: str
) -> None:
    """vLLM wheels of 0.11.0, 0.11.1, 0.16.0, 0.17.0 and 0.19.0; SGLang issue 11989. Other models are left alone."""
    sparse = load_model("deepseek-v3.2")
    assert pool_of(sparse, profile, find_engine(engine), tensor_parallel_size=8).kv_cache_dtype == default
    for asked, kept in (("bf16", "bf16"), ("fp8", fp8), ("fp8_ds_mla", "fp8_ds_mla")):
        pool = pool_of(sparse, profile, find_engine(engine), tensor_parallel_size=8, kv_cache_dtype=asked)
        assert pool.kv_cache_dtype == kept
    dense = load_model("deepseek-v3")
    assert pool_of(dense, profile, find_engine(engine), tensor_parallel_size=8).kv_cache_dtype == "auto"


@pytest.mark.parametrize(
    ("engine", "profile", "kv_cache_dtype", "bytes_per_token"),
    [
        ("vllm@0.18", H200, "auto", 61 * (2 * 576 + 132)),
        ("vllm@0.19", B200, "auto", 61 * (2 * 576 + 132)),
        ("vllm@0.19", B200, "fp8", 61 * (576 + 132)),
        ("vllm@0.18", H200, "fp8", 61 * (656 + 132)),
    ],
)
def test_kv_bytes_per_token_of_sparse_latents_equal_those_of_the_capacity(
    engine: str, profile: HardwareProfile, kv_cache_dtype: str, bytes_per_token: int
) -> None:
    """78,324 bytes by default and 43,188 with fp8 on B200: start-up logs of vLLM 0.16 to 0.19."""
    sparse = load_model("deepseek-v3.2")
    plan = plan_of(
        sparse, profile, find_engine(engine), tensor_parallel_size=8, kv_cache_dtype=kv_cache_dtype
    )
    assert plan.kv_bytes_per_token == bytes_per_token
    assert plan.kv_block_bytes == plan.kv_block_tokens * bytes_per_token


def test_glm_sparse_attention_is_kept_in_fp8_by_default_on_blackwell_since_vllm_0_32() -> None:
    glm = load_model("glm-5")
    for engine, profile, kept in (
        ("vllm@0.33", B200, "fp8"),
        ("vllm@0.32", B200, "fp8"),
        ("vllm@0.32", H200, "auto"),
        ("vllm@0.31", B200, "auto"),
    ):
        assert pool_of(glm, profile, find_engine(engine), tensor_parallel_size=8).kv_cache_dtype == kept


@pytest.mark.parametrize(
    ("engine", "model", "caching"),
    [
        ("vllm@0.27", "qwen3.5-27b", False),
        ("vllm@0.28", "qwen3.5-27b", True),
        ("vllm@0.27", "llama-3.1-8b", True),
        ("sglang", "qwen3.5-27b", True),
    ],
)
def test_prefix_cache_of_hybrid_models_is_on_by_default_since_vllm_0_28(
    engine: str, model: str, caching: bool
) -> None:
    """vLLM wheels of 0.27.1 and 0.28.0, engine/arg_utils.py; a launch that asks for it has it in any release."""
    hybrid = load_model(model)
    assert pool_of(hybrid, H200, find_engine(engine)).prefix_caching is caching
    assert pool_of(hybrid, H200, find_engine(engine), enable_prefix_caching=True).prefix_caching


def test_a_draft_model_takes_no_setting_that_is_not_shared() -> None:
    """None of a flag added to `Pool` either, unless DRAFT_MODEL_SHARES names it."""
    target = Pool(
        gpu="h100",
        tensor_parallel_size=4,
        pipeline_parallel_size=2,
        draft="llama-3.2-1b",
        quantization="fp8",
        kv_cache_dtype="fp8",
        max_num_seqs=64,
        max_loras=4,
        watermark=0.1,
        cpu_offload_gb=2.0,
        attn_implementation="flash_attention_2",
    )
    resolved = resolve("llama-3.1-70b", target)
    assert resolved.draft is not None
    pool = resolved.draft.pool
    taken = {name for name in Pool.model_fields if getattr(pool, name) != Pool.model_fields[name].default}
    assert taken == {"gpu", "kv_cache_dtype", "max_num_seqs", "tensor_parallel_size", "max_model_len"}
    assert all(getattr(pool, name) == getattr(target, name) for name in taken - {"max_model_len"})


def test_sglang_limits_requests_to_its_kv_cache_where_vllm_refuses() -> None:
    vllm, sglang = (resolve("qwen3-32b", Pool(gpu="h100", engine=engine)) for engine in ("vllm", "sglang"))
    assert not vllm.memory.fits
    assert sglang.memory.fits
    assert sglang.max_model_len <= sglang.memory.kv_capacity_tokens < sglang.model.max_position_embeddings
    assert any("sglang limits requests to its KV cache" in note for note in sglang.notes)
    asked = resolve("qwen3-32b", Pool(gpu="h100", engine="sglang", max_model_len=40_960))
    assert not asked.memory.fits
