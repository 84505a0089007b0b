"""KV caches and long context: bytes by hand, crossovers as closed forms, rings and offloading in their limits."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.answers.deployment_run import run_service
from capacity.base.errors import InvalidInput, OutsideValidity, UnknownName
from capacity.deployment import Pool, Service
from capacity.model import load_model, model_names
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.techniques.kv import (
    compare_attention_kinds,
    context_parallel_prefill,
    decode_crossover_tokens,
    decode_growth,
    kv_table,
    limited_attention,
    long_context,
    offload,
    prefill_crossover_tokens,
    request_kv_bytes,
)
from capacity.workload import PromptContent, Workload

KIB, GIB = 2**10, 2**30


@lru_cache(maxsize=4)
def pool(model: str = "llama-3.1-8b", gpu: str = "h100", tp: int = 1) -> ResolvedPool:
    return resolve(model, Pool(gpu=gpu, tensor_parallel_size=tp))


def test_bytes_per_token_by_hand() -> None:
    """Llama-3.1-8B: 2 x 32 layers x 8 heads x 128 x 2 B = 128 KiB; DeepSeek-V3: 61 x (512 + 64) x 2 B = 70,272."""
    rows = {row.model: row for row in kv_table(["llama-3.1-8b", "llama-2-7b", "deepseek-v3"])}
    assert rows["llama-3.1-8b"].bytes_per_token == 128 * KIB
    assert rows["llama-2-7b"].bytes_per_token == 512 * KIB
    assert rows["deepseek-v3"].bytes_per_token == 61 * 576 * 2
    assert rows["llama-3.1-8b"].request_bytes == {
        4096: GIB / 2, 32768: 4 * GIB, 131072: 16 * GIB, 1048576: 128 * GIB
    }  # fmt: skip


def test_windows_stop_growing_and_states_never_do() -> None:
    """Gemma-3-27B: 10 of 62 layers see all, 52 the last 1,024. gpt-oss-120b: 18 and 18 of 128 tokens."""
    gemma = load_model("gemma-3-27b")
    per_layer = 2 * 16 * 128 * 2
    assert request_kv_bytes(gemma, 32768) == per_layer * (10 * 32768 + 52 * 1024)
    assert request_kv_bytes(gemma, 500) == per_layer * 62 * 500
    qwen = load_model("qwen3-next-80b-a3b")
    state = qwen.state_bytes_per_sequence()
    assert request_kv_bytes(qwen, 2000) - request_kv_bytes(qwen, 1000) == 1000 * qwen.kv_bytes_per_token()
    assert request_kv_bytes(qwen, 1) == state + qwen.kv_bytes_per_token()


@given(st.sampled_from(sorted(model_names())), st.integers(1, 1 << 20))
def test_a_longer_context_never_takes_less(name: str, tokens: int) -> None:
    model = load_model(name)
    assert request_kv_bytes(model, tokens) <= request_kv_bytes(model, tokens + 1)
    assert request_kv_bytes(model, tokens, "fp8") < request_kv_bytes(model, tokens)


def test_kinds_of_attention_by_hand() -> None:
    """Llama-3.1-8B: 32 query heads on 8 KV heads. As MHA 4 times, as MQA an eighth; latent 32 x 576 x 2 B."""
    kinds = compare_attention_kinds(load_model("llama-3.1-8b"))
    assert kinds.actual == "gqa"
    assert kinds.mha_bytes_per_token == 4 * kinds.actual_bytes_per_token
    assert kinds.mqa_bytes_per_token == kinds.actual_bytes_per_token / 8
    assert kinds.mla_bytes_per_token == 32 * 576 * 2
    deepseek = compare_attention_kinds(load_model("deepseek-v3"))
    assert deepseek.actual == "mla"
    assert deepseek.mla_bytes_per_token == deepseek.actual_bytes_per_token
    assert (
        deepseek.mha_bytes_per_token == 61 * 2 * 128 * 128 * 2
    )  # 4 MB: DeepSeek-V2's 93.3 % less than MHA is this


def test_sinks_and_a_window_bound_the_cache() -> None:
    model = load_model("llama-2-7b")
    ways = {w.name: w for w in limited_attention(model, 4_000_000, sink_tokens=4, window_tokens=2044)}
    assert ways["sinks and window"].kv_bytes == 2048 * 512 * KIB
    assert ways["window"].kv_bytes == ways["chunks"].kv_bytes == 2044 * 512 * KIB
    assert ways["full"].kv_bytes == 4_000_000 * 512 * KIB
    for way in limited_attention(model, 100, window_tokens=2044):
        assert (way.kv_bytes, way.pair_fraction, way.seen_tokens) == (100 * 512 * KIB, 1, 100)


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 6))
def test_limited_attention_is_what_counting_pairs_gives(tokens: int, window: int, sinks: int) -> None:
    """Token i sees itself and all before it; the last `window`; those and the first `sinks`; or its own chunk."""

    def seen(name: str, i: int, j: int) -> bool:
        return {
            "full": True,
            "window": i - j < window,
            "sinks and window": i - j < window or j < sinks,
            "chunks": i // window == j // window,
        }[name]

    causal = tokens * (tokens + 1) // 2
    for way in limited_attention(load_model("llama-2-7b"), tokens, window_tokens=window, sink_tokens=sinks):
        counted = sum(seen(way.name, i, j) for i in range(tokens) for j in range(i + 1))
        assert way.pair_fraction == pytest.approx(counted / causal)
        assert way.seen_tokens == sum(seen(way.name, tokens - 1, j) for j in range(tokens))


def test_a_long_context_on_one_gpu_and_where_it_does_not_fit() -> None:
    """Each figure is that of its own function; DeepSeek-V3 does not fit one H100, and says so."""
    found = long_context(pool(), batch_size=32, prefix_tokens=4096)
    assert found.held_tokens == 131072
    assert found.decode_crossover_tokens == decode_crossover_tokens(pool(), 32)
    assert found.offload == offload(pool(), 4096)
    assert [p.ranks for p in found.prefill] == [1, 2, 4, 8]
    assert found.reason is None
    none = long_context(resolve("deepseek-v3", Pool(gpu="h100")), batch_size=1, prefix_tokens=4096)
    assert (none.held_tokens, none.offload, none.prefill) == (0, None, ())
    assert "needs" in (none.reason or "")


def test_what_each_gpu_holds() -> None:
    (row,) = kv_table(["llama-3.1-8b"], gpus=["h100", "l4"], contexts=[4096])
    assert row.gpu_context_tokens["h100"] == 131072
    assert 0 < row.gpu_context_tokens["l4"] < 131072
    assert kv_table(["llama-3.3-70b"], gpus=["h100"])[0].gpu_context_tokens == {"h100": 0}


def test_the_prefill_crossover_by_hand() -> None:
    """Llama-2-7B: 6.476 B matrix parameters over 32 x 32 x 128 = 131,072: attention overtakes at 49,410 tokens."""
    model = load_model("llama-2-7b")
    assert prefill_crossover_tokens(model) == pytest.approx(6.476e9 / 131072, rel=1e-3)
    tokens = round(prefill_crossover_tokens(model))
    attention = 4 * 32 * 32 * 128 * tokens / 2
    assert attention == pytest.approx(2 * (model.active_params - 2 * 32000 * 4096), rel=1e-3)
    with pytest.raises(OutsideValidity, match="never"):
        prefill_crossover_tokens(load_model("mistral-7b-v0.1"))


def test_the_decode_crossover_halves_as_the_batch_doubles() -> None:
    """KV read grows with batch x context, weights do not: the crossover is near constant / batch."""
    one, two, eight = (decode_crossover_tokens(pool(), batch) for batch in (1, 2, 8))
    assert one is not None
    assert two is not None
    assert eight is not None
    assert one / two == pytest.approx(2, rel=0.15)
    assert one / eight == pytest.approx(8, rel=0.3)
    at, before = decode_growth(pool(), 2, (two, two - 1))
    assert at.attention_share >= 0.5 > before.attention_share


def test_decode_grows_with_what_it_reads() -> None:
    short, long = decode_growth(pool(), 16, (4096, 65536))
    assert long.kv_read_bytes == 16 * short.kv_read_bytes
    assert 12 < (long.attention_s / short.attention_s) < 16.5
    assert 0 < short.attention_share < long.attention_share < 1


def test_loading_beats_recomputing_where_the_link_is_fast_enough() -> None:
    """Llama-3.1-8B: 128 KiB a token over PCIe 5 at tens of GB/s, against some 16 GFLOP a token."""
    found = offload(pool(), 32768)
    assert found.bytes == 4 * GIB
    assert found.load_s == pytest.approx(found.bytes / pool().profile.pcie.bytes_per_s, rel=0.01)
    assert found.worth_it
    many = offload(pool("llama-3.3-70b", "h100", 4), 4096)
    assert many.load_s < many.bytes / pool().profile.pcie.bytes_per_s  # each GPU fetches its part


def test_context_parallelism_in_its_limits() -> None:
    one, two, eight = context_parallel_prefill(pool(), 131072, (1, 2, 8))
    assert one.efficiency == 1
    assert two.efficiency > 0.98  # quadratic attention hides the ring
    assert two.seconds == pytest.approx(one.seconds / 2, rel=0.02)
    assert eight.seconds < two.seconds
    short = context_parallel_prefill(pool(), 512, (8,))[0]
    assert short.efficiency < 0.5  # kernels' fixed latency and the ring remain


def test_a_kv_format_changes_the_cache_only() -> None:
    smaller = resolve("llama-3.1-8b", Pool(gpu="h100", kv_cache_dtype="fp8"))
    assert smaller.memory.kv_capacity_tokens == pytest.approx(2 * pool().memory.kv_capacity_tokens, rel=0.01)
    with pytest.raises(UnknownName):
        resolve("llama-3.1-8b", Pool(gpu="h100", kv_cache_dtype="fp7"))


def test_bad_questions_are_refused_in_one_line() -> None:
    model = load_model("llama-3.1-8b")
    for tokens in (0, -5, 1 << 41):
        with pytest.raises(InvalidInput):
            request_kv_bytes(model, tokens)
    with pytest.raises(InvalidInput):
        limited_attention(model, 10, window_tokens=0)
    with pytest.raises(InvalidInput):
        limited_attention(model, 0, window_tokens=8)
    with pytest.raises(InvalidInput):
        decode_growth(pool(), 0)
    with pytest.raises(InvalidInput):
        context_parallel_prefill(pool(), 4, (8,))
    with pytest.raises(UnknownName):
        kv_table(["llama-99"])


def test_the_simulators_cpu_tier_takes_the_formulas_time() -> None:
    """A prompt of 8,192 tokens, pushed out of the GPU by another, comes back from CPU memory: its first token is later
    than that of a prompt still on the GPU by the KV's bytes over PCIe, and far sooner than computing it again.
    """
    tokens = 8192
    fields = {"gpu": "h100", "max_model_len": 9000}
    content = PromptContent.from_segments([[(n, tokens + 1)] for n in (1, 2, 1)])
    workload = Workload(
        arrival_s=np.asarray([0.0, 10.0, 20.0]),
        prompt_tokens=np.full(3, tokens + 1),
        output_tokens=np.full(3, 2),
        content=content,
    )

    def last_ttft_s(**more: object) -> float:
        resolved = resolve("llama-3.1-8b", Pool(**fields, **more))  # type: ignore[arg-type]
        found = run_service([resolved], Service(), workload).records[2].ttft_s
        assert found is not None
        return found

    again, kept = last_ttft_s(num_gpu_blocks_override=515), last_ttft_s(num_gpu_blocks_override=5000)
    fetched = last_ttft_s(num_gpu_blocks_override=515, kv_offloading_size=8.0)
    formula = offload(pool(), tokens)
    assert fetched - kept == pytest.approx(formula.load_s, rel=0.1)
    assert again - kept == pytest.approx(formula.recompute_s, rel=0.15)
    assert formula.worth_it
    assert fetched < again
