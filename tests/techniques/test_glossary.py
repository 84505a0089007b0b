"""The glossary: every term has a definition and a sentence with numbers, and the numbers are the estimate's."""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from typing import Any

import jsonschema
import pytest

import capacity
from capacity.base.errors import UnknownName
from capacity.deployment import Pool
from capacity.model import load_model, model_names
from capacity.pool.resolve import resolve
from capacity.report.schemas import json_schema
from capacity.techniques.glossary import Situation, define, find_term, is_term, terms

LOAD: dict[str, Any] = {"input_len": 1000, "output_len": 200, "concurrency": 16, "price": "2.50"}


@lru_cache(maxsize=4)
def situation(model: str = "llama-3.1-8b", tp: int = 1, gpu: str = "h100") -> Situation:
    return Situation(
        pool=resolve(model, Pool(gpu=gpu, tensor_parallel_size=tp)),
        estimate=capacity.estimate(model, gpu=gpu, tensor_parallel_size=tp, **LOAD),
    )


@pytest.mark.parametrize("term", terms(), ids=lambda term: term.name)
def test_every_term_is_defined_and_has_numbers(term: object) -> None:
    found = define(term.name, situation())  # type: ignore[attr-defined]
    assert found.definition.endswith(".")
    assert found.yours is not None
    assert any(character.isdigit() for character in found.yours)
    assert define(found.term).yours is None


def test_the_numbers_are_the_users() -> None:
    """Llama-3.1-8B at 1,200 tokens: 75 blocks of 16, none wasted; 128 KiB a token are 0.15 GiB a request."""
    assert "ends with 75 blocks and wastes 0.0%" in (define("paged attention", situation()).yours or "")
    assert "128 KiB per token, 0.15 GiB" in (define("KV cache", situation()).yours or "")
    estimate = situation().estimate
    assert f"{estimate.ttft_s.value * 1e3:,.1f} ms" in (define("ttft", situation()).yours or "")
    assert "295 FLOP/byte" in (define("ridge", situation()).yours or "")
    assert "32 query heads on 8 KV heads" in (define("gqa", situation()).yours or "")
    assert "2 GPUs" in (define("tp", situation(tp=2)).yours or "")
    assert "is dense" in (define("moe", situation()).yours or "")
    assert "$2.50 per hour" in (define("price", situation()).yours or "")


def test_memory_efficiency_is_weights_and_used_kv_over_the_gpu() -> None:
    """Llama-3.1-8B: 16 requests of 1,100 tokens at 128 KiB are 2.1 GiB."""
    pool = situation().pool
    used = 16 * 1100 * 128 / 2**20
    share = (pool.memory.weights_bytes / 2**30 + used) / (pool.memory.total_bytes / 2**30)
    assert f"{share:.0%};" in (define("memory efficiency", situation()).yours or "")


def test_fusion_saves_at_most_the_elementwise_part() -> None:
    decode = situation().estimate.breakdown.decode
    part = next(op.seconds for op in decode if op.name == "norms, rope, activation")
    assert f"take {part * 1e3:,.1f} ms of a decode step" in (define("kernel fusion", situation()).yours or "")


FIELD = (
    "ttft", "tpot", "itl", "e2e", "throughput", "goodput", "slo", "percentile", "p99", "queueing",
    "burstiness", "ridge", "roofline", "arithmetic-intensity", "mbu", "mfu", "hbm", "nvlink", "pcie",
    "energy", "cuda-graph", "host-time", "prefill", "decode", "kv-cache", "paged-attention", "kv-block",
    "prefix-caching", "prompt-caching", "lru", "eviction", "offload", "kv-quantization", "context-window",
    "sliding-window", "attention-sinks", "streamingllm", "chunked-attention", "flashattention", "gqa",
    "mqa", "mha", "mla", "linear-attention", "continuous-batching", "static-batching", "dynamic-batching",
    "padding", "chunked-prefill", "disaggregation", "preemption", "max_num_seqs", "max_num_batched_tokens",
    "gpu_memory_utilization", "concurrency", "little's-law", "tensor-parallelism", "pipeline-parallelism",
    "bubble", "expert-parallelism", "all-to-all", "data-parallelism", "dp-attention",
    "context-parallelism", "sequence-parallelism", "ring-attention", "all-reduce", "moe",
    "speculative-decoding", "acceptance", "draft-model", "draft-tree", "eagle", "eagle2", "eagle3", "mtp",
    "medusa", "n-gram", "prompt-lookup", "verification", "quantization", "w8a8", "smoothquant", "fp8",
    "awq", "gptq", "nf4", "mxfp4", "nvfp4", "gguf", "perplexity", "cost-per-token",
    "memory-efficiency", "start-up-time", "cold-start", "kernel-fusion", "fuse_layers", "builder_opt_level",
)  # fmt: skip


@pytest.mark.parametrize("word", FIELD)
def test_the_fields_words_are_there(word: str) -> None:
    assert is_term(word)


def test_no_word_means_two_things() -> None:
    words = [word.lower() for term in terms() for word in (term.name, *term.aliases)]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize("model", ["deepseek-v3", "gemma-3-27b", "qwen3-next-80b-a3b", "gpt-oss-120b"])
def test_every_term_has_numbers_for_every_kind_of_model(model: str) -> None:
    """A latent, windows, linear attention, experts: each sentence holds a number, and none raises."""
    for term in terms():
        yours = define(term.name, situation(model, 8, "h200")).yours
        assert yours is not None
        assert any(character.isdigit() for character in yours), (term.name, yours)
        assert "nan" not in yours.split()
        assert "\n" not in yours


@pytest.mark.parametrize(
    ("pool", "load"),
    [
        ({"gpu": "h100", "pipeline_parallel_size": 2}, {"input_len": 900, "output_len": 90, "concurrency": 9}),
        ({"gpu": "h100", "engine": "ollama", "quantization": "q4-k-m"},
         {"input_len": 1, "output_len": 1, "batch_size": 1}),
        ({"gpu": "l4", "engine": "tgi", "max_model_len": 4096}, {"input_len": 1, "output_len": 2, "batch_size": 1}),
    ],
    ids=["pipeline", "one token", "small GPU"],
)  # fmt: skip
def test_no_term_stumbles_over_an_odd_pool(pool: dict[str, Any], load: dict[str, int]) -> None:
    found = Situation(
        pool=resolve("llama-3.1-8b", Pool(**pool)), estimate=capacity.estimate("llama-3.1-8b", **pool, **load)
    )
    for term in terms():
        yours = define(term.name, found).yours
        assert yours
        assert "nan" not in yours.split()


def test_the_techniques_numbers_by_hand() -> None:
    """1,200 tokens and a concurrency of 16 on one H100: H(16) = 3.38; 1,000 tokens are 131 MB of KV at 128 KiB."""
    assert "3.38 times fewer steps" in (define("continuous batching", situation()).yours or "")
    assert "waste 70% of their slots" in (define("static batching", situation()).yours or "")
    assert "131 MB" in (define("disaggregation", situation()).yours or "")
    assert "4.16 bits" in (define("awq", situation()).yours or "")
    assert "8 KV heads" in (define("dp attention", situation()).yours or "")
    assert "53,250 tokens in prefill" in (define("crossover", situation()).yours or "")
    estimate = situation().estimate
    flight = estimate.requests_per_s.value * estimate.e2e_s.value
    assert f"= {flight:,.1f} requests in flight" in (define("little's law", situation()).yours or "")


def test_spelling_does_not_matter_and_unknown_words_are_refused() -> None:
    assert find_term("Paged-Attention") is find_term("paged_attention") is find_term("PagedAttention")
    assert find_term("time to first token").name == "TTFT"
    with pytest.raises(UnknownName, match="term"):
        find_term("flux capacitor")
    assert not is_term("llama-3.1-8b")


def test_no_model_has_the_name_of_a_term() -> None:
    assert not [name for name in model_names() if is_term(name) or is_term(load_model(name).name)]


def test_explain_takes_a_term(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from capacity.cli.main import main

    def explained(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["capacity", "explain", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        assert caught.value.code == 0, printed.err
        return printed.out

    assert "arrival" in explained("ttft")
    load = ("--gpu", "h100", "--isl", "1000", "--osl", "200", "--concurrency", "16")
    answer = json.loads(explained("ridge", "llama-3.1-8b", *load, "--format", "json"))
    assert answer["schema"] == "capacity/definition/v1"
    jsonschema.validate(answer, json_schema("definition"))
    jsonschema.validate(json.loads(explained("ridge", "--format", "json")), json_schema("definition"))
    assert "h100-sxm-80gb" in answer["yours"]
    assert "Effect of faster hardware" in explained("llama-3.1-8b", *load)
