"""Long contexts: crossovers as closed forms, rings and offloading in their limits, and the simulator's own tier."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from capacity.answers.deployment_run import run_service
from capacity.base.errors import OutsideValidity
from capacity.deployment import Pool, Service
from capacity.model import load_model
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.techniques.long_context import (
    context_parallel_prefill,
    decode_crossover_tokens,
    decode_point,
    long_context,
    offload,
    prefill_crossover_tokens,
)
from capacity.workload import PromptContent, Workload

GIB = 2**30


@lru_cache(maxsize=4)
def pool(model: str = "llama-3.1-8b", gpu: str = "h100", tp: int = 1) -> ResolvedPool:
    return resolve(model, Pool(gpu=gpu, tensor_parallel_size=tp))


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
    at, before = (decode_point(pool(), 2, tokens) for tokens in (two, two - 1))
    assert at.attention_share >= 0.5 > before.attention_share


def test_decode_grows_with_what_it_reads() -> None:
    short, long = (decode_point(pool(), 16, tokens) for tokens in (4096, 65536))
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


def test_the_simulators_cpu_tier_takes_the_formulas_time() -> None:
    """A prompt of 8,192 tokens, pushed out of the GPU by another, comes back from CPU memory: its first token is later
    than that of a prompt still on the GPU by the KV's bytes over PCIe, and far sooner than computing it again.
    """
    tokens = 8192
    fields = {"gpu": "h100", "max_model_len": 8224}
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
