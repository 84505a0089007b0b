"""An engine's release: its defaults by GPU, and the graphs that it captures."""

from __future__ import annotations

import pytest
from engine_releases import ALL_RELEASES
from hypothesis import given
from hypothesis import strategies as st

from capacity.deployment.engines import find_engine
from capacity.deployment.engines.engine_spec import ranking_notes
from capacity.hardware import load_profile

GIB = 2**30


@pytest.mark.parametrize(
    ("gpu", "sequences", "served", "offline"),
    [
        ("b200", 1024, 16384, 16384),  # >= 160 GiB
        ("mi300x", 1024, 16384, 16384),
        ("h100", 1024, 8192, 16384),  # >= 70 GiB
        ("h200", 1024, 8192, 16384),
        ("gb10-128gb", 256, 2048, 8192),  # excepted since 0.33
        ("a100-sxm-80gb", 256, 2048, 8192),  # A100 is excepted
        ("a100-sxm-40gb", 256, 2048, 8192),
        ("l40s", 256, 2048, 8192),
    ],
)
def test_vllm_defaults_by_gpu(gpu: str, sequences: int, served: int, offline: int) -> None:
    """vLLM 0.33.0 vllm/engine/arg_utils.py."""
    profile = load_profile(gpu)
    rule = find_engine("vllm@0.33").default_limits(profile.memory_engine_bytes, profile.architecture)
    found = (rule.max_num_seqs, rule.max_num_batched_tokens, rule.max_num_batched_tokens_offline)
    assert found == (sequences, served, offline)


def test_graph_sizes_of_vllm() -> None:
    """1, 2, 4, 8..255 by 8, 256..max by 16, max = min(2 x max_num_seqs, 512, or 1024 on B200)."""
    engine = find_engine("vllm@0.33")
    sizes = engine.graph_batch_sizes(1024, "hopper")
    assert sizes[:4] == (1, 2, 4, 8)
    assert sizes[-2:] == (496, 512)
    assert len(sizes) == 3 + 31 + 17
    assert engine.graph_batch_sizes(1024, "blackwell")[-1] == 1024
    assert engine.graph_batch_sizes(4, "hopper") == (1, 2, 4, 8)
    assert engine.graph_batch_sizes(1, "hopper") == (1, 2)
    assert find_engine("hf").graph_batch_sizes(64, "hopper") == ()


@pytest.mark.parametrize(
    ("release", "sequences", "drafts", "largest", "added"),
    [
        ("0.9.2", 4, 0, 512, set()),  # whatever max_num_seqs is
        ("0.10", 4, 0, 8, set()),
        ("0.12", 32, 3, 64, set()),
        ("0.13", 32, 3, 256, set()),  # 32 x 4 x 2
        ("0.28", 30, 2, 176, set()),
        ("0.29", 30, 2, 176, {3, 6, 12, 90}),  # 1, 2, 4 and 30 requests of 3 tokens
        ("0.30", 100, 0, 200, set()),
        ("0.31", 100, 0, 200, {100}),
        ("0.31", 1000, 0, 512, set()),  # above the largest
    ],
)
def test_graph_sizes_by_release_of_vllm(
    release: str, sequences: int, drafts: int, largest: int, added: set[int]
) -> None:
    """As config.py and config/vllm.py of the wheels compute them, the sizes that are no step of 8 or 16 apart."""
    sizes = find_engine(f"vllm@{release}").graph_batch_sizes(sequences, "hopper", draft_tokens=drafts)
    assert sizes[-1] == largest
    stepped = {1, 2, 4, *range(8, 513, 8)}
    assert set(sizes) - stepped == added - stepped
    assert added <= set(sizes)


@given(sequences=st.integers(1, 4096), drafts=st.integers(0, 8), label=st.sampled_from(ALL_RELEASES))
def test_graph_sizes_ascend_within_their_cap(sequences: int, drafts: int, label: str) -> None:
    engine = find_engine(label)
    sizes = engine.graph_batch_sizes(sequences, "hopper", draft_tokens=drafts)
    assert list(sizes) == sorted(set(sizes))
    rows = 1 if engine.graph_batch_factor > 1 else 1 + drafts  # of a sequence, where the cap counts sequences
    cap = min(engine.graph_max_batch * rows, engine.graph_batch_factor * sequences * (1 + drafts))
    assert all(size <= cap for size in sizes)


@given(memory_gib=st.floats(1, 400), label=st.sampled_from(ALL_RELEASES))
def test_more_memory_never_lowers_the_default_limits(memory_gib: float, label: str) -> None:
    engine = find_engine(label)
    small = engine.default_limits(memory_gib * GIB, "hopper")
    large = engine.default_limits(memory_gib * 2 * GIB, "hopper")
    assert large.max_num_seqs >= small.max_num_seqs
    assert large.max_num_batched_tokens >= small.max_num_batched_tokens


def test_ranking_names_engines_whose_host_times_are_assumed() -> None:
    vllm, sglang = find_engine("vllm"), find_engine("sglang")
    (note,) = ranking_notes([vllm, sglang])
    assert "assumed host times of sglang:" in note
    assert ranking_notes([sglang]) == ranking_notes([vllm, vllm]) == ()


def test_graph_sizes_of_tensorrt_llm() -> None:
    """Source: TensorRT-LLM 1.0 to 1.2, llmapi/llm_args.py, CudaGraphConfig."""
    engine = find_engine("tensorrt-llm@1.2")
    assert engine.graph_batch_sizes(2048, "hopper") == (*range(1, 33), 64, 128)
    assert engine.graph_batch_sizes(2048, "hopper", padding=True) == (1, 2, 4, *range(8, 129, 8))
    assert engine.graph_batch_sizes(2048, "hopper", padding=True, most=600)[-4:] == (128, 256, 512, 600)
    assert engine.graph_batch_sizes(2048, "hopper", draft_tokens=3)[-3:] == (128, 256, 512)
    assert find_engine("sglang").graph_batch_sizes(10, "hopper", padding=False) == tuple(range(1, 11))
