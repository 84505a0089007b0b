"""Files of engines: names, releases and the source of every constant."""

from __future__ import annotations

from collections import Counter

import pytest
from engine_releases import ALL_RELEASES, NEWEST_VLLM

from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment.engines import engine_names, find_engine
from capacity.deployment.engines.files import read_engine_file


def test_the_engines() -> None:
    promised = {"vllm", "sglang", "tensorrt-llm", "tgi", "deepspeed-mii", "llama.cpp", "hf-transformers"}
    assert promised | {"static", "naive"} <= set(engine_names())
    versions = tuple(release.version for release in read_engine_file("vllm").releases)
    assert versions[:8] == ("0.6", "0.6.4", "0.8-v0", "0.8", "0.9", "0.9.1", "0.9.2", "0.10")
    assert versions[8:13] == ("0.10.1", "0.10.2", "0.10.2-flashinfer", "0.11", "0.11-flashinfer")
    assert versions[13:22] == ("0.11.1", "0.12", "0.13", "0.14", "0.15", "0.16", "0.17", "0.18", "0.19")
    assert versions[22:29] == ("0.20", "0.21", "0.22", "0.23", "0.24", "0.25", "0.26")
    assert versions[29:] == ("0.27", "0.28", "0.29", "0.30", "0.31", "0.32", "0.33")


@pytest.mark.parametrize("label", ALL_RELEASES)
def test_every_release_reads_and_every_constant_has_a_source(label: str) -> None:
    engine = find_engine(label)
    assert engine.label == label
    of_every_release = {
        "baseline",
        "kernel_family",
        "data_parallel_divides_limits",
        "limits_requests_to_kv",
        "reserves_output",
        "host_memory",
        "lacks",
    }
    described = {"name", "version", "aliases", "notes", "origins"} | of_every_release
    constants = set(type(engine).model_fields) - described
    optional = {"expert_padding", "forks_samples", "default_drafts", "weight_kernels", "weight_kernels_on"}
    optional |= {"nontorch_bytes_tpn_without_nvls", "graph_reference_layers", "profiles_images"}
    optional |= {"rotary_value_bytes", "kept_expert_rows", "large_graph_reserve", "prefill_graph_reserve"}
    optional |= {"draft_reserve_bytes", "graph_smallest", "graph_padding", "unpadded_graph_sizes"}
    optional |= {"graph_doubling_from", "graphs_for_prompts", "synchronous_stage_drafts", "runner_v2_models"}
    optional |= {
        "sparse_kv_cache_dtype",
        "plain_sparse_fp8_heads",
        "host_serial_s",
        "missing_scheduling_rules",
        "host_serial_per_sequence_s",
        "penalty_host_s",
        "penalty_host_per_sequence_s",
        "all_reduce_one_shot_rows",
        "all_reduce_families",
    }
    optional |= {"sparse_short_prompts_dense", "sparse_kernels_fill_top_k", "sinks_prefill_slowdown"}
    optional |= {
        "window_pools",
        "serial_stages",
        "parallel_indexer_rows",
        "quantize_launches",
        "fuses_qk_norm_with_rope",
        "results_after_launch",
        "launches_wait",
    }
    optional |= {"splits_fp32_router_on", "expert_kernels_on", "early_block_experts", "early_platforms"}
    optional |= {
        "chooses_moe_backend",
        "moe_backends",
        "fuses_biased_routing",
        "separate_products",
        "whole_expert_kernels_on",
        "deepgemm_experts_below",
    }
    optional |= {"marlin_experts_need_whole_groups", "request_s", "input_token_s"}
    optional |= {
        "state_memory_ratio",
        "states_per_request",
        "overlaps_cached_states",
        "uncached_prefixes",
        "fp8_latent_backend",
        "graph_max_batch_of_models",
        "graphs_count_drafts",
        "graphs_fit_decodes",
        "caches_hybrid_prefixes",
    }
    assert constants - optional <= set(engine.origins) <= constants
    assert all(len(origin.source) > 8 for origin in engine.origins.values())


@pytest.mark.parametrize(
    ("asked", "label", "noted"),
    [
        ("vllm", f"vllm@{NEWEST_VLLM}", False),
        ("VLLM@0.33", "vllm@0.33", False),
        ("vllm@v0.17.1", "vllm@0.17", True),
        ("vllm@0.33.0", "vllm@0.33", True),
        ("vllm@99.0", f"vllm@{NEWEST_VLLM}", True),
        ("vllm@0.7", "vllm@0.6.4", True),
        ("vllm@0.8-v0", "vllm@0.8-v0", False),
        ("vllm@0.9.1", "vllm@0.9.1", False),
        ("vllm@0.9.0.1", "vllm@0.9", True),
        ("vllm@0.33rc1", "vllm@0.32", True),
        ("trtllm", "tensorrt-llm@1.2", False),
        ("TensorRT_LLM", "tensorrt-llm@1.2", False),
        ("hf", "hf-transformers@5", False),
        ("llama-cpp", "llama.cpp@b7000", False),
        ("llama.cpp@b8123", "llama.cpp@b7000", True),
    ],
)
def test_names_and_versions(asked: str, label: str, noted: bool) -> None:
    engine = find_engine(asked)
    assert engine.label == label
    assert any("is not listed" in note for note in engine.notes) is noted


def test_unknown_names_and_versions() -> None:
    with pytest.raises(UnknownName, match=r"no engine 'vlm'.*'vllm'"):
        find_engine("vlm")
    with pytest.raises(InvalidInput, match="older than every listed release"):
        find_engine("vllm@0.2")
    with pytest.raises(UnknownName, match="vllm version"):
        find_engine("vllm@newest")


def test_what_changed_between_vllm_releases() -> None:
    new, old = find_engine("vllm@0.33"), find_engine("vllm@0.11")
    assert (new.gpu_memory_utilization, old.gpu_memory_utilization) == (0.92, 0.90)
    assert (new.graphs_in_budget, old.graphs_in_budget) == (True, False)
    assert [find_engine(f"vllm@{version}").graphs_in_budget for version in ("0.19", "0.20")] == [False, True]
    assert (new.async_scheduling, old.async_scheduling) == (True, False)
    v0 = find_engine("vllm@0.8-v0")
    assert v0.scheduler == "vllm-v0"
    assert not v0.mixes_prefill_with_decode


@pytest.mark.parametrize("name", engine_names())
def test_a_source_is_written_once(name: str) -> None:
    file = read_engine_file(name)
    uses = Counter(constant.source for release in file.releases for constant in release.constants.values())
    assert [source for source, count in uses.items() if count > 1 and source not in file.sources] == []
    assert [key for key in file.sources if uses[key] < 2] == []
    sources = find_engine(name).origins.values()
    assert not {origin.source for origin in sources} & set(file.sources), (
        "keys are read as what they stand for"
    )


def test_a_release_changes_only_what_it_lists() -> None:
    file = read_engine_file("vllm")
    older, newer = find_engine("vllm@0.32"), find_engine("vllm@0.33")
    listed = set(next(release for release in file.releases if release.version == "0.33").constants)
    changed = {field for field in newer.origins if newer.origins[field] != older.origins[field]}
    assert changed <= listed
    assert find_engine("naive").origins.keys() == find_engine("static").origins.keys()
    assert find_engine("naive").baseline


def test_mxfp4_came_with_vllm_0_10_1() -> None:
    formats = {
        version: find_engine(f"vllm@{version}").weight_formats for version in ("0.10", "0.10.1", "0.10.2")
    }
    assert [version for version, known in formats.items() if "mxfp4" in known] == ["0.10.1", "0.10.2"]
