"""Memory against start-up logs of vLLM, other engines' rules, and monotonicity."""

from __future__ import annotations

import csv
import gzip
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filled_pools import A100, B200, GIB, H100, H200, MODELS, VLLM, VLLM_011, plan_of, pool_of
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.deployment.engines import find_engine
from capacity.hardware import load_profile
from capacity.model import ModelSpec, load_model
from capacity.model.quantization import QuantizationScheme, find_format, scheme_for
from capacity.pool.activations import activation_bytes, graph_bytes
from capacity.pool.kv_layout import StatePool
from capacity.pool.memory import (
    MemoryPlan,
    StageMemory,
    StaticMemory,
    fewest_states,
    limiting_states,
    memory_plan,
    nontorch_bytes,
    sglang_static_fraction,
    stage_memories,
    static_memory,
)
from capacity.pool.resolve import ResolvedPool
from capacity.pool.weights import stage_weights

# vLLM 0.11 on H100, 79.18 GiB (llm-d-planner docs/empirical-vllm-memory-results.md): GiB per GPU of weights,
# activation peak, non-torch and KV pool. Every row at utilization 0.90 but gpt-oss-120b's, at 0.95.
H100_TABLE = [
    ("llama-3.1-8b", None, 1, 0.90, 14.99, 4.76, 0.13, 51.38),
    ("qwen3-32b", None, 1, 0.90, 61.03, 5.64, 0.14, 4.45),
    ("qwen3-32b", None, 2, 0.90, 30.59, 5.64, 0.54, 34.49),
    ("gpt-oss-20b", None, 1, 0.90, 13.47, 7.38, 0.13, 50.28),
    ("gpt-oss-120b", None, 1, 0.95, 64.38, 7.38, 0.13, 3.33),
    ("llama-3.3-70b", "fp8", 2, 0.90, 33.88, 4.84, 0.55, 32.00),
    ("qwen3-0.6b", None, 1, 0.90, 1.12, 5.56, 0.13, 64.45),
]


def _model(name: str, quantization: str | None = None) -> tuple[ModelSpec, QuantizationScheme]:
    model = load_model(name)
    return model, scheme_for(model, quantization) if quantization else model.checkpoint


def _held(weights: float, activations: float, nontorch: float) -> StaticMemory:
    """What a log says that a GPU holds, in GiB; its graphs lie outside the budget."""
    return StaticMemory(
        weights_bytes=round(weights * GIB),
        activations_bytes=round(activations * GIB),
        nontorch_bytes=round(nontorch * GIB),
        graph_bytes=0,
        overhead_bytes=round(nontorch * GIB),
    )


def _deepseek_r1_fp4() -> tuple[ModelSpec, QuantizationScheme]:
    """nvidia/DeepSeek-R1-0528-FP4 keeps attention at 16 bit (its hf_quant_config's exclude_modules)."""
    model = load_model("deepseek-r1")
    return model, replace(scheme_for(model, "nvfp4"), attention=find_format("bf16"))


@pytest.mark.parametrize(
    ("name", "quantization", "tp", "utilization", "weights", "activation", "nontorch", "pool"), H100_TABLE
)
def test_h100_table(
    name: str,
    quantization: str | None,
    tp: int,
    utilization: float,
    weights: float,
    activation: float,
    nontorch: float,
    pool: float,
) -> None:
    model, scheme = _model(name, quantization)
    plan = plan_of(
        model, H100, VLLM_011, scheme=scheme, tensor_parallel_size=tp, gpu_memory_utilization=utilization
    )
    assert plan.weights_bytes / GIB == pytest.approx(weights, rel=0.01)
    assert plan.activations_bytes / GIB == pytest.approx(activation, rel=0.01)
    assert plan.nontorch_bytes / GIB == pytest.approx(nontorch, abs=0.015)
    assert plan.kv_cache_bytes / GIB == pytest.approx(pool, rel=0.02)


def test_the_identity_of_the_h100_table() -> None:
    """utilization x total - weights - activation - non-torch = 51.38 GiB, to the rounding of the log."""
    plan = memory_plan(pool_of(load_model("llama-3.1-8b"), H100, VLLM_011), [_held(14.99, 4.76, 0.13)])
    assert plan.kv_cache_bytes / GIB == pytest.approx(51.38, abs=0.005)


def test_llama_2_7b_has_7191_blocks() -> None:
    """79.19 GiB at 0.90: weights 12.55, activation 2.38, non-torch 0.16 (gateway-api-inference-extension PR 550)."""
    model = load_model("llama-2-7b")
    v0 = find_engine("vllm@0.6")
    plan = memory_plan(pool_of(model, A100, v0), [_held(12.55, 2.38, 0.16)])
    assert plan.kv_capacity_blocks == 7191
    assert plan.kv_block_bytes == 8 * 2**20
    assert plan.kv_capacity_tokens == 7191 * 16
    predicted = plan_of(model, A100, v0)
    assert predicted.weights_bytes / GIB == pytest.approx(12.55, abs=0.005)
    # that server also held LoRA adapters, whose share of the 2.38 GiB activation peak the log does not tell
    assert predicted.kv_capacity_blocks == pytest.approx(7191, rel=0.04)


def test_llama_3_8b_of_vllm_pr_10511() -> None:
    """79.22 GiB at 0.90, V0: weights 14.96, non-torch 1.79, activation 1.26, KV 53.29 GiB."""
    model = load_model("llama-3-8b")
    profile = A100.model_copy(update={"memory_engine_bytes": round(79.22 * GIB)})
    pool = pool_of(model, profile, find_engine("vllm@0.6"))
    nontorch = round(1.79 * GIB)
    held = replace(static_memory(pool, 0), nontorch_bytes=nontorch, overhead_bytes=nontorch)
    plan = memory_plan(pool, [held])
    assert plan.weights_bytes / GIB == pytest.approx(14.96, abs=0.005)
    assert plan.activations_bytes / GIB == pytest.approx(1.26, rel=0.02)
    assert plan.kv_cache_bytes / GIB == pytest.approx(53.29, rel=0.001)


# InferenceX server logs, B200: nvidia/Llama-3.3-70B-Instruct-FP4, FP8 KV, 8192 batched tokens, utilization 0.9.
@pytest.mark.parametrize(
    ("sequences", "weights", "pool", "tokens"),
    [(16, 39.89, 119.35, 782_160), (128, 39.89, 119.35, 782_160), (256, 39.88, 119.17, 780_992)],
)
def test_llama_70b_fp4_on_b200(sequences: int, weights: float, pool: float, tokens: int) -> None:
    model, scheme = _model("llama-3.3-70b", "nvfp4")
    engine = find_engine("vllm@0.15")
    plan = plan_of(
        model,
        B200,
        engine,
        scheme=scheme,
        kv_cache_dtype="fp8",
        gpu_memory_utilization=0.9,
        max_num_seqs=sequences,
        max_num_batched_tokens=8192,
    )
    assert plan.weights_bytes / GIB == pytest.approx(weights, rel=0.01)
    assert plan.kv_cache_bytes / GIB == pytest.approx(pool, rel=0.005)
    assert plan.kv_capacity_tokens == pytest.approx(tokens, rel=0.02)
    assert _tokens_of(plan, pool) == tokens


# InferenceX server logs, vLLM 0.19.1, B200: nvidia/DeepSeek-R1-0528-FP4, EP = TP, FP8 KV.
@pytest.mark.parametrize(
    ("tp", "weights", "pool", "tokens"), [(4, 94.08, 62.24, 1_901_888), (8, 48.13, 108.18, 3_305_920)]
)
def test_deepseek_r1_fp4_on_b200(tp: int, weights: float, pool: float, tokens: int) -> None:
    model, scheme = _deepseek_r1_fp4()
    plan = plan_of(
        model,
        B200,
        find_engine("vllm@0.19"),
        scheme=scheme,
        kv_cache_dtype="fp8",
        tensor_parallel_size=tp,
        enable_expert_parallel=True,
    )
    assert plan.weights_bytes / GIB == pytest.approx(weights, rel=0.01)
    assert plan.kv_capacity_tokens == pytest.approx(tokens, rel=0.02)
    assert _tokens_of(plan, pool) == pytest.approx(tokens, rel=1e-4)  # the log rounds to 0.01 GiB


def test_gpt_oss_120b_tp4_hybrid_groups() -> None:
    """profilemate's vLLM 0.15 log on four 141 GB GPUs: weights 17.19, KV 100.66 GiB = 5,863,776 tokens."""
    model = load_model("gpt-oss-120b")
    plan = plan_of(
        model,
        H200,
        find_engine("vllm@0.15"),
        tensor_parallel_size=4,
        gpu_memory_utilization=0.9,
        max_num_batched_tokens=8192,
    )
    assert plan.weights_bytes / GIB == pytest.approx(17.19, rel=0.01)
    assert plan.kv_cache_bytes / GIB == pytest.approx(100.66, rel=0.02)
    assert plan.kv_capacity_tokens == pytest.approx(5_863_776, rel=0.02)
    assert plan.layout.groups == 2  # 18 full layers, 18 windowed
    assert _tokens_of(plan, 100.66) == pytest.approx(5_863_776, rel=1e-4)


def test_every_server_log_row(shared_dir: Path) -> None:
    """All rows of memory_server_logs with weights or KV: weights 1 %, tokens of the logged KV bytes 0.01 %."""
    logs: dict[str, dict[str, float]] = {}
    models: dict[str, str] = {}
    with gzip.open(shared_dir / "reference/measured/memory_server_logs.csv.gz", "rt", newline="") as file:
        for row in csv.DictReader(file):
            logs.setdefault(row["url"], {})[row["metric"]] = float(row["value"])
            models[row["url"]] = row["model"]
    checked = {"weights": 0, "tokens": 0}
    for url, values in logs.items():
        if "kv_capacity_tokens" not in values:
            continue  # nvidia-smi totals of Llama-3.1-405B: neither weights nor KV
        plan = _plan_of_log(models[url], url, values)
        if "memory_weights_gib_per_gpu" in values:
            assert plan.weights_bytes / GIB == pytest.approx(
                values["memory_weights_gib_per_gpu"], rel=0.01
            ), url
            checked["weights"] += 1
        tokens = _tokens_of(plan, values["memory_kv_available_gib_per_gpu"])
        assert tokens == pytest.approx(values["kv_capacity_tokens"], rel=2e-4), url
        assert plan.kv_capacity_tokens == pytest.approx(values["kv_capacity_tokens"], rel=0.02), url
        checked["tokens"] += 1
    assert checked["tokens"] >= 29
    assert checked["weights"] >= 20


def _plan_of_log(name: str, url: str, values: dict[str, float]) -> MemoryPlan:
    if "gpt-oss" in name:
        return plan_of(
            load_model("gpt-oss-120b"),
            H200,
            find_engine("vllm@0.15"),
            tensor_parallel_size=4,
            max_num_batched_tokens=8192,
        )
    if "DeepSeek" in name:
        model, scheme = _deepseek_r1_fp4()
        tp = (
            4 if values["kv_capacity_tokens"] < 2_000_000 else 8
        )  # one log of the tp8 series is a TP4 server's
        return plan_of(
            model,
            B200,
            find_engine("vllm@0.19"),
            scheme=scheme,
            kv_cache_dtype="fp8",
            tensor_parallel_size=tp,
            enable_expert_parallel=True,
        )
    model, scheme = _model("llama-3.3-70b", "nvfp4")
    sequences = int(url.split("_bs")[1].split("_")[0])
    return plan_of(
        model,
        B200,
        find_engine("vllm@0.15"),
        scheme=scheme,
        kv_cache_dtype="fp8",
        max_num_seqs=sequences,
        max_num_batched_tokens=8192,
    )


def _tokens_of(plan: MemoryPlan, pool_gib: float) -> int:
    """KV tokens that the log prints for a pool of `pool_gib`."""
    return int(pool_gib * GIB) // plan.kv_block_bytes // plan.layout.groups * plan.kv_block_tokens


@pytest.mark.parametrize(
    ("gpu", "nvls"), [("h100-sxm-80gb", True), ("a100-sxm-80gb", False), ("rtx-4090-24gb", False)]
)
def test_nccl_keeps_most_where_an_nvswitch_reduces(gpu: str, nvls: bool) -> None:
    """0.55 GiB beside PyTorch's at TP2 on H100, 0.13 on PCIe cards and A100; alone there is no NCCL at all."""
    model, profile = load_model("qwen3-4b"), load_profile(gpu)
    one, two = (
        plan_of(model, profile, VLLM_011, tensor_parallel_size=tp, max_model_len=4096) for tp in (1, 2)
    )
    assert one.nontorch_bytes == VLLM_011.nontorch_bytes_tp1
    expected = VLLM_011.nontorch_bytes_tpn if nvls else VLLM_011.nontorch_bytes_tpn_without_nvls
    assert two.nontorch_bytes == expected


def test_the_null_block_counts_but_does_not_serve() -> None:
    """vLLM refuses to start unless one request fits besides the null block."""
    model = load_model("llama-3.1-8b")
    blocks_of_request = 4096 // 16
    for blocks, fits in ((blocks_of_request, False), (blocks_of_request + 1, True)):
        plan = plan_of(model, H100, VLLM, max_model_len=4096, num_gpu_blocks_override=blocks)
        assert plan.fits is fits
        assert plan.kv_capacity_tokens == blocks * 16
        assert plan.max_context_tokens == (blocks - 1) * 16
    assert plan.max_concurrency == pytest.approx(257 / 256)


def test_fp8_kv_cache_doubles_the_tokens() -> None:
    model = load_model("llama-3.1-8b")
    bf16 = plan_of(model, H100, VLLM)
    fp8 = plan_of(model, H100, VLLM, kv_cache_dtype="fp8")
    assert fp8.kv_bytes_per_token * 2 == bf16.kv_bytes_per_token == 131_072
    assert fp8.kv_capacity_blocks == pytest.approx(2 * bf16.kv_capacity_blocks, abs=1)


def test_the_scarcest_pipeline_stage_decides() -> None:
    """Stage by stage: the last one alone samples, the first holds the embedding, layers are 27, 27, 26."""
    model = load_model("llama-3.1-70b")
    staged = pool_of(
        model, H100, VLLM_011, tensor_parallel_size=2, pipeline_parallel_size=3, max_model_len=8192
    )
    plan = staged.memory
    usable = math.ceil(0.90 * H100.memory_engine_bytes)
    blocks = []
    for stage, layers in enumerate((27, 27, 26)):
        weights = stage_weights(staged, stage)
        activations = activation_bytes(staged, samples=stage == 2)
        tables = 2 * 131_072 * 128  # of rotary positions, on every stage
        pool = usable - round(weights) - tables - activations - plan.overhead_bytes
        blocks.append(pool // (2 * layers * 4 * 128 * 2 * 16))
    assert plan.kv_capacity_blocks == min(blocks) == blocks[2]
    assert blocks[0] < blocks[1]


def test_the_longest_request_fits_on_every_pipeline_stage() -> None:
    """Stages with other shares of windowed layers need other numbers of blocks for the same request."""
    shape = {"pipeline_parallel_size": 3, "gpu_memory_utilization": 0.34}
    pool = pool_of(load_model("gemma-3-27b"), H100, VLLM, **shape)
    longest, free = pool.memory.max_context_tokens, pool.memory.kv_capacity_blocks - 1  # less the null block
    needed = [
        [stage.layout.blocks_of_request(tokens) for stage in stage_memories(pool)]
        for tokens in (longest, longest + 1)
    ]
    assert len(set(needed[0])) > 1
    assert max(needed[0]) <= free < max(needed[1])


def test_given_blocks_do_not_fit_if_one_stage_has_no_memory_for_them() -> None:
    """The memory ends halfway between what the two stages need."""
    model, shape = load_model("llama-3.1-70b"), {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}
    left = [
        stage.kv_cache_bytes
        for stage in stage_memories(pool_of(model, H100, VLLM, gpu_memory_utilization=0.9, **shape))
    ]
    share = 0.9 - sum(left) / 2 / H100.memory_engine_bytes
    shape |= {"num_gpu_blocks_override": 10_000, "max_model_len": 8192}
    assert left[0] != left[1]
    assert not plan_of(model, H100, VLLM, gpu_memory_utilization=share, **shape).fits
    assert plan_of(model, H100, VLLM, gpu_memory_utilization=0.9, **shape).fits


def test_data_parallel_ranks_of_experts_communicate_as_tensor_parallel_ones() -> None:
    model = load_model("deepseek-v3")
    sides = (
        {"tensor_parallel_size": 2, "data_parallel_size": 2, "enable_expert_parallel": True},
        {"tensor_parallel_size": 4},
    )
    two, four = (nontorch_bytes(pool_of(model, H200, VLLM, **side)) for side in sides)
    assert two == four > VLLM.nontorch_bytes_tp1


def test_leaving_the_node_is_said() -> None:
    plan = plan_of(load_model("llama-3.1-405b"), H100, VLLM, tensor_parallel_size=16, max_model_len=8192)
    assert any("exceeds the node" in warning and "50 GB/s" in warning for warning in plan.warnings)
    bridged = load_profile("h100-nvl-94gb")
    plan = plan_of(load_model("llama-3.1-70b"), bridged, VLLM, tensor_parallel_size=4)
    assert any("exceeds the nvlink-bridge domain" in warning for warning in plan.warnings)
    assert not plan_of(load_model("llama-3.1-70b"), H100, VLLM, tensor_parallel_size=8).warnings


# other engines


def test_tensorrt_llm_takes_a_fraction_of_what_is_free() -> None:
    engine = find_engine("tensorrt-llm")
    plan = plan_of(load_model("llama-3.1-8b"), H100, engine)
    free = plan.total_bytes - plan.weights_bytes - plan.activations_bytes - plan.overhead_bytes
    assert plan.kv_cache_bytes == math.floor(free * 0.9)


def test_sglang_reserves_ten_gib_on_large_gpus() -> None:
    model, engine = load_model("llama-3.1-8b"), find_engine("sglang")
    large = pool_of(model, H100, engine, max_num_batched_tokens=8192)
    graphs_gib = 8 * 58 / 1024  # sizes of prefill graphs up to 8,192 tokens, 50 of them up to 4,096
    assert sglang_static_fraction(large) == round((79.18 - 13.125 - graphs_gib) / 79.18, 3)
    l40s = load_profile("l40s")
    reserved_mib = 512 + 1.5 * 4096 + 1024 / 8 + 2 * 32 + 8 * 50
    total_mib = l40s.memory_engine_bytes / 2**20
    small = pool_of(model, l40s, engine, max_num_batched_tokens=4096)
    assert sglang_static_fraction(small) == round((total_mib - reserved_mib) / total_mib, 3)


def test_newer_vllm_takes_graphs_out_of_the_budget() -> None:
    model = load_model("llama-3.1-8b")
    graphs = plan_of(model, H100, VLLM)
    eager = plan_of(model, H100, VLLM, enforce_eager=True)
    assert graphs.graph_bytes > 0
    assert eager.kv_cache_bytes - graphs.kv_cache_bytes == graphs.graph_bytes
    older = plan_of(model, H100, VLLM_011)
    assert older.overhead_bytes == older.nontorch_bytes


# invariants

ENGINES = ["vllm", "vllm@0.8-v0", "vllm@0.11", "sglang", "tensorrt-llm", "static", "llama.cpp"]
GPUS = ["h100", "a100", "b200", "h200", "l40s"]


@given(
    name=st.sampled_from(MODELS),
    engine_name=st.sampled_from(ENGINES),
    gpu=st.sampled_from(GPUS),
    tp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 3]),
    length=st.integers(1, 8192),
    longer=st.integers(0, 4096),
    memory=st.floats(0.2, 4),
)
def test_monotone_and_consistent(
    name: str, engine_name: str, gpu: str, tp: int, pp: int, length: int, longer: int, memory: float
) -> None:
    model, engine, profile = load_model(name), find_engine(engine_name), load_profile(gpu)
    length, longer = (min(value, model.max_position_embeddings) for value in (length, length + longer))
    settings = {
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "enable_chunked_prefill": True,
    }
    scaled = profile.model_copy(update={"memory_engine_bytes": round(profile.memory_engine_bytes * memory)})
    plan = plan_of(model, scaled, engine, max_model_len=length, **settings)
    parts = plan.weights_bytes + plan.activations_bytes + plan.overhead_bytes + plan.kv_cache_bytes
    assert parts == plan.usable_bytes <= plan.total_bytes
    assert 0 <= plan.max_context_tokens <= model.max_position_embeddings
    assert plan.fits == (plan.max_context_tokens >= length)
    assert plan.fits == (plan.reason is None)
    assert not plan.fits or plan.max_concurrency > 1

    for_longer = plan_of(model, scaled, engine, max_model_len=longer, **settings)
    assert for_longer.max_concurrency <= plan.max_concurrency
    more = scaled.model_copy(update={"memory_engine_bytes": scaled.memory_engine_bytes + GIB})
    with_more = plan_of(model, more, engine, max_model_len=length, **settings)
    if engine.memory_rule != "sglang_static":  # its reserve jumps where the default limits do
        assert with_more.kv_capacity_blocks >= plan.kv_capacity_blocks


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (4, 1), (2, 2)])
def test_a_tower_stands_on_every_stage_and_is_divided_by_tensor_parallelism(tp: int, pp: int) -> None:
    """Each stage has as much more as the tower has at 16 bit, over the ranks; quantized or not."""
    model = load_model("gemma-3-27b")
    for scheme in (model.checkpoint, scheme_for(model, "fp8")):
        pool = pool_of(model, H100, VLLM, scheme=scheme, tensor_parallel_size=tp, pipeline_parallel_size=pp)
        blind = pool_of(
            replace(model, vision_params=0),
            H100,
            VLLM,
            scheme=scheme,
            tensor_parallel_size=tp,
            pipeline_parallel_size=pp,
        )
        for stage in range(pp):
            more = static_memory(pool, stage).weights_bytes - static_memory(blind, stage).weights_bytes
            assert more == pytest.approx(2 * 423_060_336 / tp, abs=2)


def test_weights_of_a_model_that_sees_as_vllm_printed_them() -> None:
    """13.1665 GiB a GPU, https://github.com/vllm-project/vllm/issues/15676 and 16378 (vLLM 0.8, TP 4).

    Its rotary tables of 1,048,576 and 131,072 positions, 0.28 GiB, are among them.
    """
    pool = pool_of(load_model("gemma-3-27b"), A100, VLLM_011, tensor_parallel_size=4)
    assert pool.model.rotary_values * 2 / GIB == pytest.approx(0.28125)
    assert static_memory(pool, 0).weights_bytes / GIB == pytest.approx(13.1665, rel=0.01)


def test_sglang_reserves_for_graphs_of_attention_ranks_by_hand() -> None:
    """512 + 1.5 max(8 chunks, 2048) + 8/8 GiB + 2 a request + 3 or 4.5 for each rank and request, in MiB."""
    for release in ("sglang@0.5.5", "sglang@0.5.9", "sglang@0.5.23"):
        engine = find_engine(release)
        pool = pool_of(
            load_model("deepseek-v3"), H200, engine, data_parallel_size=8, enable_expert_parallel=True
        )
        graphs = engine.default_limits(H200.memory_engine_bytes, H200.architecture).largest_graph(8) or 0
        chunk = 8 * pool.max_num_batched_tokens
        each = 4.5 if engine.large_graph_reserve and graphs > 300 else 3.0
        reserved = 512 + 1.5 * max(chunk, 2048) + 1024 + (2 + 8 * each) * graphs
        total = H200.memory_engine_bytes / 2**20
        assert graphs > 0
        assert sglang_static_fraction(pool) == round((total - max(reserved, 10 * 1024)) / total, 3)


# SGLang's reserves, from its source: `handle_gpu_memory_settings`, `adjust_mem_fraction_for_vlm`
PREFILL_GRAPHS = (
    *range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64), *range(1280, 4097, 256),
    *range(4608, 7000, 512),
)  # fmt: skip


def sglang_pool(name: str, release: str, total_mib: float, **settings: Any) -> ResolvedPool:
    """Return a pool on a GPU with this memory; `settings` replace those with their defaults filled in."""
    options = {key: settings.pop(key) for key in list(settings) if key.endswith("parallel_size")}
    profile = H100.model_copy(update={"memory_engine_bytes": round(total_mib * 2**20)})
    pool = pool_of(load_model(name), H100, find_engine(release), **options)
    speculator = settings.pop("speculator", None)
    written = pool.pool.model_copy(update={"speculator": speculator})
    return replace(pool, profile=profile, pool=written, **settings)


def test_sglang_reserves_for_each_size_of_a_prefill_graph() -> None:
    """8 MiB for each: the GPU is so small that 0.001 of its memory is less than that of one or two sizes."""
    for size in PREFILL_GRAPHS:
        for chunk in (size - 1, size, size + 1):
            total = 1.5 * max(chunk, 2048) + 1500
            pool = sglang_pool("llama-3.1-8b", "sglang", total, max_num_batched_tokens=chunk)
            graphs = (
                pool.engine.default_limits(pool.profile.memory_engine_bytes, "hopper").largest_graph(1) or 0
            )
            count = sum(each <= chunk for each in PREFILL_GRAPHS)
            reserved = 512 + 1.5 * max(chunk, 2048) + 1024 / 8 + 2 * graphs + 8 * count
            assert sglang_static_fraction(pool) == round((total - reserved) / total, 3), chunk


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (8, 8, 1), (1, 1, 2), (2, 2, 4)])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v2-lite"])
@pytest.mark.parametrize("release", ["sglang@0.5.3", "sglang@0.5.5", "sglang@0.5.10", "sglang"])
def test_sglang_reserves_as_its_source_says(release: str, name: str, sizes: tuple[int, int, int]) -> None:
    """From 5 GB, less than some reserves, over 60 GiB, above which 10 GiB are the least, to a GPU of 140 GB."""
    tp, pp, dp = sizes
    shape = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp, "data_parallel_size": dp}
    filled = sglang_pool(name, release, 20_000, **shape)
    latents, early = name == "deepseek-v2-lite", release in ("sglang@0.5.3", "sglang@0.5.5")
    ranks = dp if latents else 1  # replicas of a dense model do not share their limits
    by_release = {"sglang@0.5.10": {"eagle": 4096, "draft-model": 6144}, "sglang": {}}
    drafts = by_release.get(release, {"eagle": 2048, "draft-model": 6144})
    totals = (5000, *range(13_000, 15_000, 130), 20_000, 60 * 1024, 60 * 1024 + 1, 61 * 1024, 140_000)
    for total, chunk, speculator in product(totals, (512, 4096), (None, "eagle", "draft-model", "ngram")):
        profile = H100.model_copy(update={"memory_engine_bytes": total * 2**20})
        written = filled.pool.model_copy(update={"speculator": speculator})
        pool = replace(filled, profile=profile, pool=written, max_num_batched_tokens=chunk)
        graphs = pool.engine.default_limits(total * 2**20, "hopper").largest_graph(tp * ranks) or 0
        reserved = 512 + 1.5 * max(chunk * ranks, 2048) + tp * ranks * pp / 8 * 1024 + 2 * graphs
        if ranks > 1:
            reserved += graphs * ranks * (4.5 if graphs > 300 and release != "sglang@0.5.3" else 3)
        if not early and ranks * pp == 1 and not (speculator and drafts):
            reserved += 1536 if latents else 8 * sum(each <= chunk for each in PREFILL_GRAPHS)
        if total > 60 * 1024:
            reserved = max(reserved, 10 * 1024)
        reserved += drafts.get(speculator or "", 0)
        assert sglang_static_fraction(pool) == round(max(total - reserved, 0) / total, 3)


@pytest.mark.parametrize(
    ("layers", "width", "factor"),
    [
        (24, 1024, 1.0),
        (48, 1024, 0.9),
        (24, 2048, 0.8),  # four times as large: 0.7, of which 0.8 is the least
        (18, 1024, 1.025),
        (6, 1024, 1.05),  # 1.075, of which 1.05 is the most
        (24, 512, 1.05),
    ],
)
def test_sglang_leaves_memory_for_a_vision_tower(layers: int, width: int, factor: float) -> None:
    """0.95 x (1 - 0.1 x (layers x width^2 / (24 x 1024^2) - 1)), the second factor from 0.8 to 1.05."""
    pool = sglang_pool("gemma-3-27b", "sglang", 20_000, max_num_batched_tokens=4096)
    assert pool.model.vision is not None
    tower = replace(pool.model.vision, num_layers=layers, hidden_size=width)
    pool = replace(pool, model=replace(pool.model, vision=tower))
    graphs = pool.engine.default_limits(pool.profile.memory_engine_bytes, "hopper").largest_graph(1) or 0
    without = round(1 - (512 + 1.5 * 4096 + 128 + 2 * graphs) / 20_000, 3)
    assert sglang_static_fraction(pool) == pytest.approx(0.95 * factor * without, rel=1e-12)


@pytest.mark.parametrize("engine_name", ["vllm", "sglang", "tensorrt-llm"])
def test_a_size_of_the_kv_cache_replaces_the_rule_of_the_engine(engine_name: str) -> None:
    """Up to the last byte of the GPU it is used as asked; what is missing beyond it is negative."""
    model, engine = load_model("llama-3.1-8b"), find_engine(engine_name)
    held = plan_of(model, H100, engine, max_model_len=4096).needed_bytes
    rest = H100.memory_engine_bytes - held
    for asked in (2 * GIB, rest, rest + 1, rest + GIB):
        plan = plan_of(model, H100, engine, kv_cache_memory_bytes=asked, max_model_len=4096)
        assert plan.needed_bytes == held
        assert plan.usable_bytes == min(held + asked, H100.memory_engine_bytes)
        assert plan.kv_cache_bytes == (asked if asked <= rest else rest - asked)
        assert plan.fits == (asked <= rest)


# parts and limits, to the byte


@pytest.mark.parametrize("engine_name", ["vllm", "vllm@0.11", "tensorrt-llm", "sglang"])
@pytest.mark.parametrize("measured", [None, 12_345, -(10**12)])
def test_static_memory_is_the_sum_of_its_parts(engine_name: str, measured: int | None) -> None:
    """A measured overhead is added to the activations, which are never negative; SGLang reserves them in its way."""
    adjustment = None if measured is None else SimpleNamespace(overhead_bytes=measured)
    engine = find_engine(engine_name)
    pool = pool_of(load_model("llama-3.1-8b"), H100, engine, pipeline_parallel_size=2)
    pool = replace(pool, profile=H100.model_copy(update={"adjustment": adjustment}))
    graphs = round(graph_bytes(pool))
    for stage in range(2):
        held = static_memory(pool, stage)
        activations = activation_bytes(pool, samples=stage == 1)
        if engine_name == "sglang":
            free = H100.memory_engine_bytes - held.nontorch_bytes
            activations = free - math.floor(free * sglang_static_fraction(pool))
        assert held.weights_bytes == round(stage_weights(pool, stage)) + (
            pool.model.rotary_values * engine.rotary_value_bytes
        )
        assert held.activations_bytes == max(activations + (measured or 0), 0)
        assert held.graph_bytes == graphs > 0
        assert held.overhead_bytes == held.nontorch_bytes + (graphs if engine.graphs_in_budget else 0)
        assert held.needed_bytes == held.weights_bytes + held.activations_bytes + held.overhead_bytes


@pytest.mark.parametrize(
    ("name", "sizes", "nccl"),
    [
        ("llama-3.1-8b", (1, 1, 1), "none"),
        ("llama-3.1-8b", (1, 1, 2), "none"),  # replicas of a dense model do not talk
        ("llama-3.1-8b", (1, 2, 1), "without"),  # stages only send and receive
        ("llama-3.1-8b", (2, 1, 1), "nvls"),
        ("llama-3.1-8b", (2, 2, 1), "nvls"),
        ("mixtral-8x7b", (1, 1, 2), "nvls"),  # experts of several ranks
        ("mixtral-8x7b", (1, 1, 1), "none"),
    ],
)
def test_nccl_takes_memory_where_gpus_talk(name: str, sizes: tuple[int, int, int], nccl: str) -> None:
    tp, pp, dp = sizes
    pool = pool_of(
        load_model(name),
        H200,
        VLLM,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        data_parallel_size=dp,
    )
    expected = {
        "none": VLLM.nontorch_bytes_tp1,
        "without": VLLM.nontorch_bytes_tpn_without_nvls,
        "nvls": VLLM.nontorch_bytes_tpn,
    }
    assert len(set(expected.values())) == 3
    assert nontorch_bytes(pool) == expected[nccl]


@pytest.mark.parametrize("name", ["gpt-oss-20b", "qwen3-next-80b-a3b", "gemma-3-27b"])
@pytest.mark.parametrize("engine_name", ["vllm", "sglang"])
def test_no_stage_has_less_than_the_plan_says(name: str, engine_name: str) -> None:
    settings = {"pipeline_parallel_size": 3, "tensor_parallel_size": 2, "max_model_len": 5000}
    pool = pool_of(load_model(name), H200, find_engine(engine_name), **settings)
    stages, plan = stage_memories(pool), memory_plan(pool)
    least = min(stages, key=lambda stage: stage.kv_cache_bytes)
    assert len({stage.kv_cache_bytes for stage in stages}) > 1
    assert (plan.kv_cache_bytes, plan.usable_bytes) == (least.kv_cache_bytes, least.usable_bytes)
    assert plan.weights_bytes == least.held.weights_bytes
    assert plan.kv_capacity_blocks == plan.usable_blocks + 1 == min(stage.blocks for stage in stages)
    needed = [stage.layout.blocks_of_request(5000) for stage in stages]
    assert plan.blocks_of_longest_request == max(needed)
    free = plan.usable_blocks
    assert (
        plan.max_context_tokens == min(stage.layout.longest_request(free, 5000) for stage in stages) == 5000
    )
    states = [stage.states.requests for stage in stages if stage.states is not None]
    assert (plan.states is None) == (limiting_states(pool) is None) == (not states)
    if plan.states is not None:
        assert plan.states.requests == min(states)
        fewer = replace(stages[0], states=replace(plan.states, slots=0))
        assert fewest_states([*stages, fewer]) is fewer.states


def test_blocks_fill_what_the_states_leave() -> None:
    held, layout = (
        _held(1, 1, 1),
        replace(plan_of(load_model("llama-3.1-8b"), H100, VLLM).layout, block_bytes=1000),
    )
    states = StatePool(slots=3, slot_bytes=1000.0, states_per_request=1)
    for cache, pool, blocks in (
        (7000, None, 7),
        (6999, None, 6),
        (-5, None, 0),
        (7000, states, 4),
        (6999, states, 3),
    ):
        stage = StageMemory(held=held, usable_bytes=0, kv_cache_bytes=cache, layout=layout, states=pool)
        assert stage.blocks == blocks
    byte = replace(layout, block_bytes=1)
    for cache, blocks in ((7, 7), (0, 0), (-5, 0)):
        stage = StageMemory(held=held, usable_bytes=0, kv_cache_bytes=cache, layout=byte, states=None)
        assert stage.blocks == blocks


@pytest.mark.parametrize("engine_name", ["vllm", "tensorrt-llm", "sglang"])
def test_a_model_beyond_the_gpu_has_no_context(engine_name: str) -> None:
    pool = pool_of(load_model("llama-3.1-70b"), H100, find_engine(engine_name), max_model_len=4096)
    plan = pool.memory
    assert not plan.fits
    assert plan.max_context_tokens == 0
    assert plan.kv_cache_bytes == plan.usable_bytes - plan.needed_bytes < 0
    with pytest.raises(DoesNotFit) as caught:
        plan.require_fit()
    assert str(caught.value) == plan.reason
    assert (caught.value.needed_bytes, caught.value.usable_bytes) == (plan.needed_bytes, plan.usable_bytes)
    small = plan_of(load_model("llama-3.1-8b"), H100, VLLM)
    assert small.require_fit() is small


def test_one_state_is_enough_for_one_request() -> None:
    model, engine = load_model("qwen3-next-80b-a3b"), find_engine("sglang")
    plan = plan_of(
        model,
        H200,
        engine,
        tensor_parallel_size=2,
        max_num_seqs=1,
        enable_prefix_caching=False,
        max_model_len=4096,
    )
    assert plan.states is not None
    assert plan.states.requests == 1
    assert plan.fits
    assert plan.max_context_tokens == 4096


def test_limits_that_an_engine_rejects() -> None:
    model = load_model("llama-3.1-8b")
    equal = pool_of(model, H100, VLLM, max_num_seqs=64, max_num_batched_tokens=64, max_model_len=64)
    assert equal.memory.fits
    for refused, text in (
        (replace(equal, max_num_seqs=65), "--max-num-batched-tokens 64 is less than --max-num-seqs 65"),
        (equal.with_tensor_parallel_size(3), "--tensor-parallel-size 3 does not divide"),
    ):
        with pytest.raises(InvalidInput, match=text):
            memory_plan(refused)
    stateful = pool_of(load_model("qwen3-next-80b-a3b"), H200, find_engine("sglang"), tensor_parallel_size=2)
    with pytest.raises(InvalidInput, match="--tensor-parallel-size 3 does not divide"):
        limiting_states(stateful.with_tensor_parallel_size(3))


def test_an_encoder_keeps_blocks_for_the_requests_of_a_step() -> None:
    """No KV outlives a step: each of `max_num_seqs` requests needs its blocks, and the null block is one more."""
    plan = plan_of(load_model("bge-m3"), H100, VLLM, max_model_len=512, max_num_seqs=10)
    assert plan.blocks_of_longest_request == math.ceil(512 / plan.kv_block_tokens)
    assert plan.kv_capacity_blocks == 10 * plan.blocks_of_longest_request + 1


def test_tensor_parallelism_up_to_the_link_s_domain_has_no_warning() -> None:
    bridged, model = load_profile("h100-nvl-94gb"), load_model("llama-3.1-70b")
    assert not plan_of(model, bridged, VLLM, tensor_parallel_size=bridged.scale_up.domain_gpus).warnings
    (warning,) = plan_of(model, bridged, VLLM, tensor_parallel_size=bridged.gpus_per_node).warnings
    assert f"of {bridged.gpus_per_node} exceeds the nvlink-bridge domain" in warning
