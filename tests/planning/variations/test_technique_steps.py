"""The techniques: what each technique is without and with, for deployments that say something about it already."""

from __future__ import annotations

import pytest

from capacity.answers.engine_setup import make_workload
from capacity.deployment import Pool, Traffic
from capacity.planning.variations.technique_steps import (
    ORDER,
    TechniqueStep,
    naive_fields,
    techniques_by_name,
)
from capacity.pool.resolve import resolve
from capacity.workload import Workload

MODEL = "llama-3.1-8b"


def workload(**fields: object) -> Workload:
    return make_workload(
        Traffic.model_validate(
            {"input_len": 300, "output_len": 50, "concurrency": 4, "num_prompts": 8} | fields
        )
    )


def techniques(
    model: str = MODEL, requests: Workload | None = None, **fields: object
) -> dict[str, TechniqueStep]:
    pool = Pool.model_validate({"gpu": "h100"} | fields)
    return techniques_by_name(resolve(model, pool), requests or workload())


def test_there_is_one_for_each_name_in_order() -> None:
    assert tuple(techniques()) == ORDER
    for technique in techniques().values():
        assert set(technique.on) <= set(Pool.model_fields)
        assert set(technique.off) <= set(Pool.model_fields)
        assert all(ORDER.index(need) < ORDER.index(technique.name) for need in technique.needs)


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("cuda-graphs", {"enforce_eager": True}, "--enforce-eager"),
        ("cuda-graphs", {"engine": "hf-transformers"}, "not supported by"),
        ("continuous-batching", {"engine": "hf-transformers"}, "uses static batching"),
        ("static-batching", {"max_num_seqs": 1}, "--max-num-seqs 1"),
        ("chunked-prefill", {"enable_chunked_prefill": False}, "--no-enable-chunked-prefill"),
        ("prefix-caching", {"enable_prefix_caching": False}, "--no-enable-prefix-caching"),
        ("prefix-caching", {}, "no prompt of this traffic"),
        ("paged-kv", {"kv_layout": "contiguous"}, "--kv-layout contiguous"),
        ("flash-attention", {"attn_implementation": "eager", "max_model_len": 4096}, "eager"),
        ("bf16", {"dtype": "float32"}, "--dtype float32"),
        ("tensor-parallelism", {}, "-tp 2"),
    ],
)
def test_what_was_turned_off_is_no_rung(name: str, fields: dict[str, object], says: str) -> None:
    refused = techniques(**fields)[name].refused
    assert refused is not None
    assert says in refused


def test_traffic_that_shares_has_prefix_caching() -> None:
    assert techniques(requests=workload(random_prefix_len=128))["prefix-caching"].refused is None


def test_layers_without_kv_heads_have_no_eager_kernel() -> None:
    technique = techniques("deepseek-v2-lite")["flash-attention"]
    assert "mla" in (technique.refused or "")
    assert technique.off == {}


def test_what_the_pool_says_is_what_its_rung_takes() -> None:
    found = techniques(quantization="awq", kv_cache_dtype="fp8_e5m2", max_num_seqs=17, tensor_parallel_size=2)
    assert found["quantized-weights"].on == {"quantization": "awq"}
    assert found["fp8-kv"].on == {"kv_cache_dtype": "fp8_e5m2"}
    assert found["static-batching"].on == {"max_num_seqs": 17}
    assert found["tensor-parallelism"].on == {"tensor_parallel_size": 2}


@pytest.mark.parametrize(("asked", "taken"), [(None, 1024), (5000, 5000)])
def test_contexts_are_as_long_as_the_traffic_needs_unless_said(asked: int | None, taken: int) -> None:
    resolved = resolve(MODEL, Pool(gpu="h100", max_model_len=asked, quantization="fp8"))
    naive = naive_fields(resolved, techniques_by_name(resolved, workload()), workload())
    assert naive["max_model_len"] == taken
    assert (naive["quantization"], naive["dtype"], naive["use_cache"]) == (None, "float32", False)


def test_drafts_are_those_asked_for_or_the_best_for_the_batch() -> None:
    where = resolve(MODEL, Pool(gpu="h100"))
    choose, asked = (
        techniques()["speculation"].drafting,
        techniques(speculator="ngram")["speculation"].drafting,
    )
    assert choose is not None
    assert asked is not None
    few, many = (choose(where, batch, 400)["num_speculative_tokens"] for batch in (1, 512))
    assert isinstance(few, int)
    assert isinstance(many, int)
    assert few > many
    assert asked(where, 1, 400)["speculator"] == "ngram"


@pytest.mark.parametrize("engine", ["llama.cpp", "ollama", "deepspeed-mii", "hf-transformers"])
def test_an_engine_is_left_as_it_is_where_it_has_no_setting(engine: str) -> None:
    """The pool without any technique resolves, and says nothing that the engine lacks."""
    weights = (
        {"quantization": "gguf-q4_k_m", "max_model_len": 4096} if engine in ("llama.cpp", "ollama") else {}
    )
    resolved, requests = (
        resolve(MODEL, Pool.model_validate({"gpu": "h100", "engine": engine, **weights})),
        workload(),
    )
    bare = Pool.model_validate(naive_fields(resolved, techniques_by_name(resolved, requests), requests))
    assert not bare.enforce_eager
    assert resolve(MODEL, bare).engine.name == engine
