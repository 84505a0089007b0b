"""The other engines' commands: flags that each one has, with the limits that were simulated."""

from __future__ import annotations

import ast
import shlex
import subprocess
from itertools import pairwise
from typing import Any

import pytest

from capacity.deployment import Pool
from capacity.deployment.engines import engine_names, find_engine
from capacity.deployment.launch_writers import LAUNCH_WRITERS, launch_command

# of text-generation-launcher 3 and of llama-server, 2026-11
TGI_FLAGS = {
    "--model-id", "--num-shard", "--quantize", "--dtype", "--kv-cache-dtype", "--max-input-tokens",
    "--max-total-tokens", "--max-batch-prefill-tokens", "--max-batch-size", "--max-concurrent-requests",
    "--cuda-memory-fraction", "--cuda-graphs", "--speculate", "--port",
}  # fmt: skip
LLAMA_FLAGS = {
    "--model", "--alias", "--n-gpu-layers", "--split-mode", "--tensor-split", "--parallel", "--ctx-size",
    "--batch-size", "--cache-type-k", "--cache-type-v", "--flash-attn", "--no-cache-prompt", "--host", "--port",
}  # fmt: skip
EVERYTHING: dict[str, Any] = {
    "gpu": "h100", "tensor_parallel_size": 2, "max_model_len": 4096, "max_num_seqs": 8, "max_num_batched_tokens": 1024,
    "enable_prefix_caching": False, "enforce_eager": True, "gpu_memory_utilization": 0.8, "dtype": "half",
}  # fmt: skip


def flags(words: tuple[str, ...]) -> dict[str, str]:
    return {flag: value for flag, value in pairwise((*words, "")) if flag.startswith("--")}


def test_every_engine_but_the_baselines_is_launched() -> None:
    assert {name for name in engine_names() if name not in LAUNCH_WRITERS} == {"naive", "static"}


def test_tgi_is_told_its_limits_and_to_let_requests_wait() -> None:
    pool = Pool(engine="tgi", quantization="nf4", kv_cache_dtype="fp8", **EVERYTHING)
    launch = launch_command("tgi", "org/model", pool)
    said = flags(launch.words)
    assert set(said) <= TGI_FLAGS
    assert launch.words[:3] == ("env", "USE_PREFIX_CACHING=0", "text-generation-launcher")
    expected = {
        "--num-shard": "2", "--quantize": "bitsandbytes-nf4", "--kv-cache-dtype": "fp8_e4m3fn", "--cuda-graphs": "0",
        "--max-total-tokens": "4096", "--max-input-tokens": "4095", "--max-batch-size": "8",
        "--max-batch-prefill-tokens": "1024", "--dtype": "float16",
    }  # fmt: skip
    assert expected.items() <= said.items()
    assert int(said["--max-concurrent-requests"]) > 128
    assert "docker run --gpus all" in launch.notes[-1]
    plain = launch_command("tgi@3", "org/model", Pool(gpu="h100", engine="tgi@3"))
    assert plain.words[0] == "text-generation-launcher"
    assert "--quantize" not in plain.words


def test_llama_cpp_has_as_many_slots_as_were_simulated_each_with_the_whole_context() -> None:
    pool = Pool(engine="llama.cpp", quantization="gguf-q4_k_m", kv_cache_dtype="int8", **EVERYTHING)
    launch = launch_command("llamacpp", "org/model", pool)
    said = flags(launch.words)
    assert set(said) <= LLAMA_FLAGS
    assert (said["--parallel"], said["--ctx-size"], said["--split-mode"]) == ("8", "32768", "row")
    assert (said["--cache-type-k"], said["--cache-type-v"], said["--flash-attn"]) == ("q8_0", "q8_0", "on")
    assert "--no-cache-prompt" in said
    assert launch.notes == ("MODEL-Q4_K_M.gguf: replace it by the model's GGUF file in that format",)
    plain = flags(launch_command("llama.cpp", "m", Pool(gpu="h100", engine="llama.cpp")).words)
    assert plain["--parallel"] == str(find_engine("llama.cpp").limits[0].max_num_seqs)
    assert plain["--split-mode"] == "none"


def test_ollama_has_a_modelfile_and_its_environment() -> None:
    pool = Pool(engine="ollama", kv_cache_dtype="int8", **EVERYTHING)
    launch = launch_command("ollama", "org/Model-7B", pool)
    files = dict(launch.files)
    assert files["Modelfile"] == (
        "# model org/Model-7B\nFROM ./MODEL-F16.gguf\nPARAMETER num_batch 1024\nPARAMETER num_ctx 4096\n"
    )
    script = files["serve-ollama.sh"]
    for setting in ("NUM_PARALLEL=8", "KV_CACHE_TYPE=q8_0", "SCHED_SPREAD=1", "HOST=0.0.0.0:8000"):
        assert f"export OLLAMA_{setting}\n" in script
    assert "ollama create model-7b -f" in script
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    assert launch.words == ("sh", "serve-ollama.sh")


@pytest.mark.parametrize("engine", ["hf-transformers", "deepspeed-mii"])
def test_libraries_have_a_program(engine: str) -> None:
    launch = launch_command(engine, "org/it's a model", Pool(engine=engine, **EVERYTHING))
    ((name, text),) = launch.files
    tree = ast.parse(text)
    constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert "org/it's a model" in constants
    assert launch.words[-1] == name
    assert shlex.split(launch.text.replace("\\\n", " ")) == list(launch.words)
    if engine == "hf-transformers":
        assert launch.words == ("torchrun", "--nproc-per-node", "2", "generate.py")
        assert {8, "float16", "auto"} <= constants
        return
    (call,) = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    said = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    assert (said["tensor_parallel"], said["max_length"], said["restful_api_port"]) == (2, 4096, 8000)
