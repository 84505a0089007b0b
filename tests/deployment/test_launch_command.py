"""Launch lines of every engine: read by their first words, and the same deployment when what was written is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from launch_files import written

import capacity
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.deployment.launch_command import read_launch
from capacity.deployment.launch_writers import launch_command
from capacity.pool.resolve import resolve

MODEL = "llama-3.1-8b"
SHARED: list[dict[str, Any]] = [
    {},
    {"tensor_parallel_size": 2, "max_model_len": 4096, "max_num_seqs": 32},
    {"max_num_batched_tokens": 8192, "max_model_len": 8192, "gpu_memory_utilization": 0.8},
    {"enable_prefix_caching": False},
]
WRITTEN: dict[str, list[dict[str, Any]]] = {  # pools that the engine's line can say
    "vllm": [
        *SHARED,
        {"quantization": "fp8", "kv_cache_dtype": "fp8", "block_size": 32, "enforce_eager": True},
        {"max_loras": 4, "max_lora_rank": 32, "max_cpu_loras": 9},
        {"draft": "llama-3.2-1b", "num_speculative_tokens": 4},
        {"speculator": "ngram", "num_speculative_tokens": 5, "scheduling_policy": "priority"},
    ],
    "sglang": [
        *SHARED,
        {"quantization": "fp8", "kv_cache_dtype": "fp8", "enforce_eager": True},
        {"enable_chunked_prefill": False, "scheduler_recv_interval": 30, "role": "decode"},
        {"speculator": "eagle3", "num_speculative_tokens": 3},
        {"draft": "llama-3.2-1b", "num_speculative_tokens": 4, "data_parallel_size": 2},
        {"max_cudagraph_capture_size": 64, "pipeline_parallel_size": 2, "dtype": "half"},
    ],
    "tensorrt-llm": [
        *({k: v for k, v in each.items() if k != "enable_prefix_caching"} for each in SHARED),
        {"kv_cache_dtype": "fp8", "speculator": "eagle3", "num_speculative_tokens": 3},
        {"draft": "llama-3.2-1b", "num_speculative_tokens": 4, "role": "prefill"},
        {"speculator": "ngram", "num_speculative_tokens": 5, "pipeline_parallel_size": 2},
    ],
    "tgi": [
        *SHARED,
        {
            "quantization": "fp8",
            "kv_cache_dtype": "fp8",
            "enforce_eager": True,
            "enable_chunked_prefill": True,
        },
        {"quantization": "int8-weight-only", "dtype": "float16"},
        {"quantization": "awq"},
        {"speculator": "ngram", "num_speculative_tokens": 3},
    ],
    "llama.cpp": [
        {},
        {"max_num_seqs": 4, "max_model_len": 8192, "quantization": "gguf-q4_k_m", "kv_cache_dtype": "int8"},
        {"pipeline_parallel_size": 2, "quantization": "gguf-q8_0", "enable_prefix_caching": False},
        {"tensor_parallel_size": 4, "quantization": "gguf-q5_k_s", "max_num_batched_tokens": 512},
    ],
    "ollama": [
        {"quantization": "gguf-q4_k_m"},
        {"max_num_seqs": 4, "max_model_len": 8192, "quantization": "gguf-q8_0", "kv_cache_dtype": "int8"},
        {"pipeline_parallel_size": 2, "quantization": "gguf-q6_k", "max_num_batched_tokens": 1024},
    ],
}


@pytest.mark.parametrize(
    ("engine", "fields"), [(engine, fields) for engine, pools in WRITTEN.items() for fields in pools]
)
def test_what_is_written_reads_back_as_the_same_deployment(
    engine: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    pool = Pool(gpu="h100", engine=engine, **fields)
    read = read_launch(written(launch_command(engine, MODEL, pool), tmp_path))
    assert read.model == MODEL
    assert read.unknown == ()
    found = read.pool("h100")
    before, after = resolve(MODEL, pool), resolve(MODEL, found)
    for name in (
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "scheme",
        "prefix_caching",
        "chunked_prefill",
    ):
        assert getattr(after, name) == getattr(before, name), name
    assert after.memory == before.memory
    for name in (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "role",
        "enforce_eager",
    ):
        assert getattr(found, name) == getattr(pool, name), name
    for name in (
        "speculator",
        "draft",
        "num_speculative_tokens",
        "max_loras",
        "max_lora_rank",
        "max_cpu_loras",
    ):
        assert getattr(found, name) == getattr(pool, name), name
    for name in ("scheduling_policy", "scheduler_recv_interval", "block_size", "max_cudagraph_capture_size"):
        assert getattr(found, name) == getattr(pool, name), name


@pytest.mark.parametrize(
    ("line", "engine", "model"),
    [
        ("vllm serve org/m -tp 2", "vllm", "org/m"),
        ("python3 -m vllm.entrypoints.openai.api_server --model org/m", "vllm", "org/m"),
        ("docker run --gpus all vllm/vllm-openai:v0.11.0 --model org/m", "vllm@0.11", "org/m"),
        ("python -m sglang.launch_server --model-path org/m", "sglang", "org/m"),
        ("sglang serve --model org/m --port 1", "sglang", "org/m"),
        (
            "docker run --gpus all lmsysorg/sglang:latest python3 -m sglang.launch_server --model-path org/m",
            "sglang",
            "org/m",
        ),
        ("trtllm-serve org/m --tp_size 2", "tensorrt-llm", "org/m"),
        ("trtllm-serve serve org/m", "tensorrt-llm", "org/m"),
        ("trtllm-build --checkpoint_dir ./m --max_batch_size 64", "tensorrt-llm", "./m"),
        ("MODEL_ID=org/m text-generation-launcher --num-shard 2", "tgi", "org/m"),
        (
            "docker run -p 8080:80 -e MODEL_ID=org/m ghcr.io/huggingface/text-generation-inference:3.2.0",
            "tgi@3.2",
            "org/m",
        ),
        ("./build/bin/llama-server -m models/Llama-3.1-8B-Q4_K_M.gguf", "llama.cpp", "Llama-3.1-8B"),
        ("llama-server -hf ggml-org/gpt-oss-20b-GGUF:mxfp4", "llama.cpp", "ggml-org/gpt-oss-20b"),
        ("OLLAMA_NUM_PARALLEL=2 ollama run llama3.1:8b", "ollama", "llama3.1-8b"),
    ],
)
def test_the_first_words_name_the_engine(line: str, engine: str, model: str) -> None:
    read = read_launch(line)
    assert (read.fields.get("engine", "vllm"), read.model) == (engine, model)
    assert read.unknown == ()


def test_what_is_not_read_is_told_apart() -> None:
    read = read_launch(
        "python -m sglang.launch_server --model-path m --port 30000 --attention-backend fa3 --bogus 3 "
        "--trust-remote-code"
    )
    assert read.ignored == ("--port", "--trust-remote-code")
    assert [text.partition(" (")[0] for text in read.not_modelled] == ["--attention-backend fa3"]
    assert read.unknown == ("--bogus",)
    with pytest.raises(InvalidInput, match="--bogus"):
        capacity.from_launch("text-generation-launcher --model-id m --bogus 3", gpu="h100")
    with pytest.warns(UserWarning, match="max-batch-total-tokens"):
        found = capacity.from_launch(
            "text-generation-launcher --model-id llama-3.1-8b --max-batch-total-tokens 9", gpu="h100"
        )
    assert capacity.fit(found).fits


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "must contain a command that launches a server, such as vllm serve, python -m sglang"),
        ("systemctl start foo", "must contain a command that launches a server"),
        ("python -m sglang.launch_server --model m --tp two", "--tp-size is two: must be a whole number"),
        ("python -m sglang.launch_server --model m --speculative-algorithm LOOK", "must be one of EAGLE"),
        ("python -m sglang.launch_server --model m --tp 3 --dp 2 --enable-dp-attention", "does not divide"),
        ("trtllm-serve m --extra_llm_api_options nowhere.yaml", "nowhere.yaml, which does not exist"),
        ("llama-server -m m.gguf -ctk q8_0 -ctv q4_0", "must have the same KV cache format"),
        ("ollama create m -f nowhere", "nowhere, which does not exist"),
        ("vllm serve 'open", "cannot be split into words"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(line: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        read_launch(line).pool("h100")
    if line:
        with pytest.raises(InvalidInput):
            capacity.from_launch(line, gpu="h100")


@pytest.mark.parametrize(
    "line",
    [
        "nohup vllm serve Qwen/Qwen3-32B -tp 2 > vllm.log 2>&1 &",
        "cd /opt && CUDA_VISIBLE_DEVICES=0,1 vllm serve Qwen/Qwen3-32B -tp 2 | tee log.txt",
        "docker run vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-32B -tp 2 >>log",
        "python -m sglang.launch_server --model Qwen/Qwen3-32B --tp 2 && echo up",
    ],
)
def test_the_shells_part_of_a_line_is_none_of_the_engines(line: str) -> None:
    read = read_launch(line)
    assert (read.model, read.unknown) == ("Qwen/Qwen3-32B", ())
    assert read.pool("h100").tensor_parallel_size == 2


@pytest.mark.parametrize(
    ("line", "backend", "left"),
    [
        ("python -m sglang.launch_server --model-path org/m --moe-runner-backend triton", "triton", ()),
        ("vllm serve org/m --moe-backend flashinfer_trtllm", "flashinfer_trtllm", ()),
        (  # no kernels of that name are told apart
            "python -m sglang.launch_server --model-path org/m --moe-runner-backend flashinfer_mxfp4",
            "auto",
            ("--moe-runner-backend flashinfer_mxfp4",),
        ),
    ],
)
def test_expert_kernels_of_a_line(line: str, backend: str, left: tuple[str, ...]) -> None:
    read = read_launch(line)
    assert read.pool("b200").moe_backend == backend
    assert all(any(text.startswith(name) for text in read.not_modelled) for name in left)
    assert bool(read.not_modelled) == bool(left)


@pytest.mark.parametrize(
    ("engine", "flag"), [("vllm", "--moe-backend triton"), ("sglang", "--moe-runner-backend triton")]
)
def test_expert_kernels_are_written_by_the_engines_own_flag(engine: str, flag: str) -> None:
    launch = launch_command(
        engine, "Qwen/Qwen3-30B-A3B", Pool(gpu="b200", engine=engine, moe_backend="triton")
    )
    assert flag in " ".join(launch.words)
