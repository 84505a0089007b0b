"""A question in any form becomes checked fields; the rest is returned as words that were not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capacity.answers.name_lookup import find_gpu, guess_model
from capacity.answers.parsed_question import parse_question
from capacity.deployment import Pool, Traffic, build
from capacity.model import model_names
from capacity.model.presets import is_known

B200 = {"tensor_parallel_size": 2, "gpu": "b200-sxm-180gb", "quantization": "fp8", "request_rate": 8.0}
COMPOSE = """services:
  server:
    image: vllm/vllm-openai:v0.11.0
    command: --model Qwen/Qwen3-8B --max-model-len 8192
"""


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("2xB200, FP8, double traffic", B200),
        ("2 x b200 fp8 8 requests/s", B200),
        ("-tp 2 --gpu b200 -q fp8 --request-rate 8", B200),
        ("--tensor-parallel-size=2 --gpu=b200-sxm-180gb --quantization=fp8 --request-rate=8", B200),
        ("half the load", {"request_rate": 2.0}),
        ("1.5x traffic on h200", {"request_rate": 6.0, "gpu": "h200-sxm-141gb"}),
        ("llama-3.1-70b sglang", {"model": "llama-3.1-70b", "engine": "sglang"}),
        ("--max-model-len 8k --kv-cache-dtype fp8", {"max_model_len": 8000, "kv_cache_dtype": "fp8"}),
        ("--max-concurrency 64 --input-len 2048", {"concurrency": 64, "input_len": 2048}),
        ("--enable-expert-parallel", {"enable_expert_parallel": True}),
        (
            "8xH100 70b fp8, isl 2048 osl 256, 20/s",
            {
                "model": "llama-3.3-70b",
                "gpu": "h100-sxm-80gb",
                "tensor_parallel_size": 8,
                "quantization": "fp8",
                "input_len": 2048,
                "output_len": 256,
                "request_rate": 20.0,
            },
        ),
        (
            "DeepSeek-R1 on 8xMI300X at 64 concurrency, 32k context",
            {
                "model": "deepseek-r1",
                "gpu": "mi300x-192gb",
                "tensor_parallel_size": 8,
                "concurrency": 64,
                "max_model_len": 32_000,
            },
        ),
        (
            "2K in / 256 out, 1,200 requests per hour",
            {"input_len": 2048, "output_len": 256, "request_rate": 1 / 3},
        ),
        ("p95 ttft < 0.5 s, tpot 40 ms, $2.5/h", {"ttft_ms": 500.0, "tpot_ms": 40.0, "price": "2.5"}),
        ("8 H100 PCIe with tp4", {"gpu": "h100-pcie-80gb", "tensor_parallel_size": 4}),
        ("nvidia/Llama-3.3-70B-Instruct-FP8", {"model": "llama-3.3-70b", "quantization": "fp8"}),
        (
            "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2 --mem-fraction-static 0.85",
            {
                "model": "qwen3-32b",
                "engine": "sglang",
                "tensor_parallel_size": 2,
                "gpu_memory_utilization": 0.85,
            },
        ),
        (
            "text-generation-launcher --model-id Qwen/Qwen3-8B --num-shard 2",
            {"model": "qwen3-8b", "engine": "tgi", "tensor_parallel_size": 2},
        ),
        (
            "trtllm-serve Qwen/Qwen3-8B --tp_size 2 --max_batch_size 64",
            {"model": "qwen3-8b", "engine": "tensorrt-llm", "tensor_parallel_size": 2, "max_num_seqs": 64},
        ),
        (COMPOSE, {"model": "qwen3-8b", "engine": "vllm@0.11", "max_model_len": 8192}),
    ],
)
def test_a_question_in_any_form_becomes_fields(text: str, fields: dict[str, Any]) -> None:
    found = parse_question(text, request_rate=4.0)
    assert found.not_read == ()
    assert fields.items() <= found.fields.items()
    assert all(found.fields[name] in (1, False, None) for name in found.fields.keys() - fields)


def test_a_command_followed_by_words_gives_both_and_the_flag_that_nobody_has() -> None:
    found = parse_question(
        "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 --max-num-seqs 256 --port 8000 --what 3 on 4xH200 isl 2048"
    )
    assert found.fields == {
        "model": "llama-3.1-70b",
        "gpu": "h200-sxm-141gb",
        "tensor_parallel_size": 4,
        "max_num_seqs": 256,
        "input_len": 2048,
    }
    assert found.not_read == ("--what",)


def test_users_of_a_use_case_become_its_lengths_and_rate() -> None:
    found = parse_question("70B chat on 8 H100, 1000 users")
    traffic = build(Traffic, {"use_case": "chat", "users": 1000})
    assert {name: found.fields[name] for name in ("input_len", "output_len", "request_rate")} == {
        "input_len": traffic.input_len,
        "output_len": traffic.output_len,
        "request_rate": traffic.request_rate,
    }
    assert parse_question("1000 users").fields["use_case"] == "chat"
    assert parse_question("1000 users of coding agents, 5/s").fields["request_rate"] == 5.0


USUAL_FLAGS = (  # the usual flags of `vllm serve` that change an answer, with the fields that they set
    ("--max-num-seqs 256", {"max_num_seqs": 256}),
    ("--gpu-memory-utilization 0.85", {"gpu_memory_utilization": 0.85}),
    ("--max-num-batched-tokens 4096", {"max_num_batched_tokens": 4096}),
    ("--enable-prefix-caching", {"enable_prefix_caching": True}),
    ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
    ("--enable-chunked-prefill", {"enable_chunked_prefill": True}),
    ("--dtype bfloat16", {"dtype": "bfloat16"}),
    (
        '--speculative-config \'{"method": "eagle3", "num_speculative_tokens": 3}\'',
        {"speculator": "eagle3", "num_speculative_tokens": 3},
    ),
    ("--data-parallel-size 2", {"data_parallel_size": 2}),
    ("--pipeline-parallel-size 2", {"pipeline_parallel_size": 2}),
    ("--enforce-eager", {"enforce_eager": True}),
    ("--block-size 32", {"block_size": 32}),
    ("--max-model-len 8192", {"max_model_len": 8192}),
    ("--kv-cache-dtype fp8", {"kv_cache_dtype": "fp8"}),
    ("--quantization fp8", {"quantization": "fp8"}),
    ("--enable-expert-parallel", {"enable_expert_parallel": True}),
    ("--tensor-parallel-size 8", {"tensor_parallel_size": 8}),
    ("--cpu-offload-gb 4", {"cpu_offload_gb": 4.0}),
)


@pytest.mark.parametrize(("flag", "fields"), USUAL_FLAGS)
def test_every_usual_flag_is_read_alone_and_in_a_command(flag: str, fields: dict[str, Any]) -> None:
    assert parse_question(flag).fields == fields
    whole = parse_question(f"vllm serve Qwen/Qwen3-8B {flag}")
    assert whole.fields == {"model": "qwen3-8b", **fields}
    assert whole.not_read == whole.notes == ()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("b2000", {}),
        ("2xquatsch", {}),
        ("-q fp7", {}),
        ("--tensor-parallel-size 2 --max-num-seqs two", {"tensor_parallel_size": 2}),
        ("--tensor-parallel-size", {}),
        ("--gpu /etc/passwd h200", {}),
        ("--model ../x", {}),
        ("--trace /etc/passwd", {}),
        ("vllm serve /etc/passwd -tp 2", {"tensor_parallel_size": 2}),
        ("vllm serve Qwen/Qwen3-8B --config /etc/passwd", {"engine": "vllm"}),
        ('--speculative-config \'{"method": "draft_model", "model": "/etc/passwd"}\'', {}),
        ("--host-cpu /etc/passwd", {}),
        ("fp8 'unended", {"quantization": "fp8"}),
        ("--request-rate nan", {}),
        ("foo/bar-7b tp2", {"tensor_parallel_size": 2}),
        ("apiVersion: v1\nkind: CronJob\n", {}),
        ('{"model_type": "llama"}', {}),
        ('{"a": 1}', {}),
        ("{", {}),
        ("\x00 \u202e --", {}),
    ],
)
def test_what_is_not_understood_is_returned_and_the_rest_is_read(text: str, read: dict[str, Any]) -> None:
    found = parse_question(text)
    assert read.items() <= found.fields.items()
    assert found.not_read or found.notes
    assert all("\n" not in note for note in found.notes)


def test_no_file_of_this_machine_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, options = tmp_path / "serve.sh", tmp_path / "options.yaml"
    command.write_text("vllm serve Qwen/Qwen3-8B -tp 8\n")
    options.write_text("tensor-parallel-size: 8\n")
    monkeypatch.chdir(tmp_path)
    for text in (
        str(command),
        command.name,
        f"vllm serve Qwen/Qwen3-8B --config {options.name}",
        f"./{command.name}",
    ):
        assert "tensor_parallel_size" not in parse_question(text).fields


def test_a_config_is_kept_if_it_is_a_models() -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048}
    config |= {
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "intermediate_size": 8192,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    }
    text = json.dumps(config)
    assert parse_question(f"  {text}\n").config == text


def test_every_preset_is_found_by_its_name() -> None:
    assert all(parse_question(f"{name} on h100").fields["model"] == name for name in model_names())


@pytest.mark.parametrize(
    ("words", "preset"),
    [
        ("70B", "llama-3.3-70b"),
        ("8b", "llama-3.1-8b"),
        ("llama 70b", "llama-3.3-70b"),
        ("qwen 32b", "qwen3-32b"),
        ("mixtral", "mixtral-8x22b"),
        ("4711b", None),
        ("chat", None),
        ("small", None),
    ],
)
def test_a_size_or_family_means_its_newest_preset(words: str, preset: str | None) -> None:
    assert guess_model(words) == preset
    assert preset is None or is_known(preset)


def test_a_gpu_is_found_by_its_usual_names() -> None:
    names = ("H100", "h100s", "NVIDIA H100", "H100 SXM", "h100-sxm-80gb")
    assert {find_gpu(name) for name in names} == {"h100-sxm-80gb"}
    assert find_gpu("users") is None


def test_fields_are_those_of_the_specs_and_pass_them_together() -> None:
    found = parse_question("vllm serve Qwen/Qwen3-8B -tp 2 --max-num-seqs 8 h200 rag 12/s")
    pool = {
        name: value for name, value in found.fields.items() if name in Pool.model_fields and name != "model"
    }
    assert build(Pool, pool).max_num_seqs == 8
