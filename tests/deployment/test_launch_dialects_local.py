"""The lines of TGI, llama.cpp and Ollama, flag by flag: settings of the environment, GGUF names, and Modelfiles."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment.launch_command import read_launch
from capacity.model import load_model


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (
            "text-generation-launcher --model-id m --quantize bitsandbytes-nf4 --speculate 2 --max-total-tokens 8192",
            {
                "quantization": "nf4",
                "speculator": "ngram",
                "num_speculative_tokens": 2,
                "max_model_len": 8192,
            },
        ),
        (
            "llama-server -m m-Q8_0.gguf -c 16384 -np 4 -ctk q8_0 -ctv q8_0 -b 512",
            {"max_num_seqs": 4, "max_model_len": 4096, "kv_cache_dtype": "int8", "quantization": "gguf-q8_0"},
        ),
        (
            "OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_KV_CACHE_TYPE=q4_0 ollama run qwen3:32b-q8_0",
            {"max_model_len": 8192, "kv_cache_dtype": "int4", "quantization": "gguf-q8_0"},
        ),
    ],
)
def test_flags_are_read_in_a_pools_words(line: str, fields: dict[str, Any]) -> None:
    pool = read_launch(line).pool("h100")
    assert {name: getattr(pool, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("file", "model", "quantization"),
    [
        ("Llama-3.1-8B-Instruct-Q4_K_M.gguf", "Llama-3.1-8B-Instruct", "gguf-q4_k_m"),
        ("/models/qwen3-32b.q8_0.gguf", "qwen3-32b", "gguf-q8_0"),
        ("gpt-oss-20b-mxfp4.gguf", "gpt-oss-20b", "mxfp4"),
        ("phi-4-F16.gguf", "phi-4", None),
    ],
)
def test_a_gguf_file_says_its_model_and_format(file: str, model: str, quantization: str | None) -> None:
    read = read_launch(f"llama-server -m {file}")
    assert (read.model, read.pool("h100").quantization) == (model, quantization)


def test_split_modes_are_parallelism() -> None:
    row = read_launch("llama-server -m m.gguf -sm row -ts 3,1").pool("h100")
    layer = read_launch("llama-server -m m.gguf -ts 1,1,1").pool("h100")
    assert (row.tensor_parallel_size, row.pipeline_parallel_size) == (2, 1)
    assert (layer.tensor_parallel_size, layer.pipeline_parallel_size) == (1, 3)


def test_settings_of_the_environment_are_tgis_flags() -> None:
    pool = read_launch(
        "docker run -e USE_PREFIX_CACHING=0 -e NUM_SHARD=4 -e MODEL_ID=m "
        "ghcr.io/huggingface/text-generation-inference:3"
    ).pool("h100")
    assert (pool.enable_prefix_caching, pool.tensor_parallel_size, pool.engine) == (False, 4, "tgi")
    with pytest.raises(InvalidInput, match="must have the same KV cache format"):
        read_launch("llama-server -m m.gguf -ctk q8_0 -ctv q4_0")


@pytest.mark.parametrize(
    ("said", "layers"), [("0", 0), ("20", 20), ("99", 99), ("999", None), ("all", None), ("-1", None)]
)
def test_layers_on_the_gpu_are_those_of_the_line(said: str, layers: int | None) -> None:
    assert read_launch(f"llama-server -m m.gguf -ngl {said}").pool("rtx-4090").n_gpu_layers == layers


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("llama3.3", "llama-3.3-70b"),
        ("mistral:latest", "mistral-7b"),
        ("phi4", "phi-4"),
        ("deepseek-r1:70b", "deepseek-r1-distill-llama-70b"),
        ("deepseek-r1:671b", "deepseek-r1"),
        ("gemma3", "gemma-3-4b"),
        ("qwen2.5:14b", "qwen2.5-14b"),
        ("llama3.2:3b-instruct-q8_0", "llama-3.2-3b"),
    ],
)
def test_names_of_ollamas_library_are_presets(name: str, preset: str) -> None:
    assert load_model(read_launch(f"ollama run {name}").model).name == preset


def test_the_smallest_r1_of_ollama_is_not_the_whole_one() -> None:
    assert read_launch("ollama run deepseek-r1").model == "deepseek-r1-8b"


def test_ollama_serves_a_short_context_unless_told() -> None:
    assert read_launch("ollama run gemma3:27b").pool("rtx-4090").max_model_len == 4096
    said = read_launch("OLLAMA_CONTEXT_LENGTH=32768 ollama run gemma3:27b")
    assert said.pool("rtx-4090").max_model_len == 32768
