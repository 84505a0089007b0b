"""vLLM's own flags: each read from the command line, from Python, from a file and from a pasted command, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vllm_pools import EAGLE, LLAMA, PRODUCER, pool

import capacity
from capacity.answers.engine_setup import scheduler_limits
from capacity.base.errors import InvalidInput
from capacity.cli.main import app
from capacity.deployment.launch_command import read_launch
from capacity.deployment.launch_command import read_line as read_vllm_command
from capacity.deployment.launch_writers import launch_command
from capacity.pool.resolve import resolve


def test_dtype_halves_or_doubles_what_is_not_quantized() -> None:
    half, auto, single = (capacity.fit(LLAMA, gpu="h100", dtype=name) for name in ("half", "auto", "float32"))
    assert half.memory.weights_bytes == auto.memory.weights_bytes
    assert single.memory.weights_bytes == pytest.approx(2 * auto.memory.weights_bytes, rel=0.01)
    assert (half.weight_format, half.kv_cache_dtype, single.kv_cache_dtype) == ("fp16", "fp16", "fp32")
    assert single.kv_bytes_per_token == 2 * auto.kv_bytes_per_token
    same = capacity.fit(LLAMA, gpu="h100", dtype="bfloat16")
    assert same == auto


def test_kv_cache_memory_is_taken_as_given() -> None:
    given = 20 * 2**30
    found = capacity.fit(LLAMA, gpu="h100", kv_cache_memory_bytes="20G", gpu_memory_utilization=0.5)
    assert found.memory.kv_cache_bytes == given
    block_bytes = found.kv_bytes_per_token * found.kv_block_tokens
    assert found.kv_capacity_blocks == given // block_bytes
    too_much = capacity.fit(LLAMA, gpu="h100", kv_cache_memory_bytes=90 * 10**9)
    assert not too_much.fits
    assert "--kv-cache-memory-bytes requests 83.82 GiB" in str(too_much.reason)


def test_fewer_tokens_may_be_scheduled_than_memory_is_kept_for() -> None:
    wide = resolve(LLAMA, pool(max_num_batched_tokens=8192))
    narrow = resolve(LLAMA, pool(max_num_batched_tokens=8192, max_num_scheduled_tokens="1k"))
    assert scheduler_limits(narrow).max_num_batched_tokens == 1000
    assert narrow.memory == wide.memory
    assert capacity.estimate(LLAMA, gpu="h100", input_len=4000, output_len=10, batch_size=1).ttft_s.value < (
        capacity.estimate(
            LLAMA, gpu="h100", input_len=4000, output_len=10, batch_size=1, max_num_scheduled_tokens=512
        ).ttft_s.value
    )
    with pytest.raises(InvalidInput, match="--max-num-scheduled-tokens 9000 is above"):
        resolve(LLAMA, pool(max_num_batched_tokens=8192, max_num_scheduled_tokens=9000))


@pytest.mark.parametrize("text", ["auto", "-1", -1])
def test_max_model_len_auto_is_what_fits(text: object) -> None:
    assert capacity.fit(LLAMA, gpu="h100", max_model_len=text).max_model_len == 131072
    full = capacity.fit(LLAMA, gpu="l4")
    assert not full.fits
    found = capacity.fit(LLAMA, gpu="l4", max_model_len=text)
    assert found.fits
    assert 0 < found.max_model_len < 131072
    assert any("auto" in warning for warning in found.warnings)
    longer = capacity.fit(LLAMA, gpu="l4", max_model_len=found.max_model_len + found.kv_block_tokens)
    assert not longer.fits, "one block more does not fit"


def test_a_pasted_command_says_the_same() -> None:
    command = read_vllm_command(
        f"vllm serve org/model --dtype half -dcp 1 --max-model-len auto --kv-cache-memory-bytes 20G "
        f"--max-num-scheduled-tokens 4k --speculative-config '{json.dumps(EAGLE)}' "
        f"--kv-transfer-config '{json.dumps(PRODUCER)}'"
    )
    assert command.ignored == ()
    assert command.pool("h100") == pool(
        dtype="half",
        decode_context_parallel_size=1,
        max_model_len="auto",
        kv_cache_memory_bytes=20 * 2**30,
        max_num_scheduled_tokens=4000,
        speculator="eagle3",
        num_speculative_tokens=3,
        role="prefill",
    )


def test_the_command_line_takes_them() -> None:
    from typer.testing import CliRunner

    given = ["fit", LLAMA, "--gpu", "h100", "--dtype", "half", "--max-model-len", "auto", "-dcp", "1"]
    result = CliRunner().invoke(app, [*given, "--kv-cache-memory-bytes", "20G", "--format", "json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.output)
    assert (answer["weight_format"], answer["memory"]["kv_cache_bytes"]) == ("fp16", 20 * 2**30)


def test_a_launch_command_says_the_same() -> None:
    given = pool(
        dtype="half",
        max_model_len="auto",
        kv_cache_memory_bytes=20 * 2**30,
        max_num_batched_tokens=8192,
        max_num_scheduled_tokens=4096,
    )
    assert read_vllm_command(launch_command("vllm", "org/model", given).text).pool("h100") == given
    for engine in ("sglang", "tensorrt-llm"):
        assert "auto" not in launch_command(engine, "org/model", given).words


def test_a_container_of_vllm_is_a_pasted_command() -> None:
    found = read_vllm_command(
        "docker run --gpus all -p 8000:8000 --ipc host vllm/vllm-openai:latest --model org/name -tp 2"
    )
    assert (found.model, found.fields, found.ignored) == ("org/name", {"tensor_parallel_size": "2"}, ())


def test_switches_are_those_of_the_pool() -> None:
    read = read_vllm_command(
        "vllm serve m --no-enable-prefix-caching --enforce-eager false --scheduler-reserve-full-isl "
        "--long-prefill-token-threshold 2k"
    )
    assert read.fields == {
        "enable_prefix_caching": False,
        "enforce_eager": False,
        "scheduler_reserve_full_isl": True,
        "long_prefill_token_threshold": "2k",
    }
    assert read.pool("h100").long_prefill_token_threshold == 2000


def test_a_slip_of_the_pen_is_named_beside_what_is_ignored() -> None:
    found = read_vllm_command("vllm serve org/name --tensor-paralel-size 2 --served-model-name x")
    assert found.ignored == ("--served-model-name",)
    assert found.unknown == ("--tensor-paralel-size (did you mean --tensor-parallel-size?)",)


def test_what_is_not_read_is_told_apart() -> None:
    """What changes no answer, what would change one, and what nobody knows."""
    found = read_vllm_command(
        "vllm serve m --port 80 --hf-overrides {} --bogus-flag 3 --enable-eplb --seed 0 --max-lora-rank 64"
    )
    assert found.ignored == ("--port", "--seed")
    assert [text.partition(" (")[0] for text in found.not_modelled] == [
        "--hf-overrides {}",
        "--enable-eplb",
        "--max-lora-rank 64",
    ]
    assert found.unknown == ("--bogus-flag",)
    assert found.fields == {}


def test_adapters_are_read_where_they_are_enabled() -> None:
    one = read_vllm_command("vllm serve m --enable-lora")
    assert one.pool("h100").max_loras == 1
    read = read_vllm_command(
        "vllm serve m --enable-lora --max-loras 4 --max-lora-rank 32 --lora-modules a=x b=y"
    )
    assert (read.pool("h100").max_loras, read.pool("h100").max_lora_rank) == (4, 32)
    assert "--num-adapters" in read.not_modelled[0]


@pytest.mark.parametrize(
    ("image", "engine"),
    [
        ("vllm/vllm-openai:v0.11.0", "vllm@0.11"),
        ("docker.io/vllm/vllm-openai:v0.10.2-cu128", "vllm@0.10.2"),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai", None),
    ],
)
def test_an_images_tag_is_the_engines_release(image: str, engine: str | None) -> None:
    read = read_vllm_command(f"docker run --gpus all -p 8000:8000 {image} --model org/name")
    assert (read.fields.get("engine"), read.model) == (engine, "org/name")


def test_v0s_words_for_drafts_are_read() -> None:
    read = read_vllm_command("vllm serve m --speculative-model JackFram/llama-68m --num-speculative-tokens 5")
    pool = read.pool("h100")
    assert (pool.speculator, pool.draft, pool.num_speculative_tokens) == (
        "draft-model",
        "JackFram/llama-68m",
        5,
    )
    lookup = read_vllm_command(
        "vllm serve m --speculative-model [ngram] --num-speculative-tokens 5 --ngram-prompt-lookup-max 4"
    )
    assert lookup.pool("h100").speculator == "ngram"
    assert lookup.not_modelled[0].startswith("--ngram-prompt-lookup-max 4")


@pytest.mark.parametrize(
    ("given", "kernel"),
    [("awq", "awq"), ("gptq", "gptq"), ("awq_marlin", "w4a16"), ("gptq_marlin", "w4a16")],
)
def test_naming_a_method_to_vllm_forbids_marlin(given: str, kernel: str) -> None:
    """vLLM on awq: "forcing awq. Use quantization=awq_marlin for faster inference"."""
    command = read_vllm_command(f"vllm serve {LLAMA} --quantization {given}")
    resolved = resolve(LLAMA, pool(**command.fields))
    assert resolved.scheme.dense_ffn.kernel == kernel


def test_the_file_of_config_is_read_beside_the_line(tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text(
        "model: openai/gpt-oss-120b\nkv-cache-dtype: fp8\nmax-num-seqs: 512\nno-enable-prefix-caching: true\n"
        "compilation-config:\n  cudagraph_mode: FULL\nport: 8000\n"
    )
    script = tmp_path / "launch.sh"
    script.write_text("vllm serve --tensor-parallel-size 2 --max-num-seqs 128 --config serve.yaml\n")
    read = read_launch(str(script))
    found = read.pool("h200")
    assert read.model == "openai/gpt-oss-120b"
    assert (found.kv_cache_dtype, found.tensor_parallel_size, found.enable_prefix_caching) == (
        "fp8",
        2,
        False,
    )
    assert found.max_num_seqs == 128  # the line overrules the file
    assert read.ignored == ("--port",)
    assert [each.partition(" (")[0] for each in read.not_modelled] == [
        "--compilation-config.cudagraph_mode FULL"
    ]
    with pytest.raises(
        InvalidInput, match=r"serve\.yaml, which does not exist: it must be next to the launch file"
    ):
        read_launch(script.read_text())


def test_images_of_a_prompt_are_said_by_their_flag() -> None:
    read = read_vllm_command("vllm serve google/gemma-3-27b-it --limit-mm-per-prompt '{\"image\": 4}'")
    assert "--images-per-prompt" in read.not_modelled[0]


def test_json_options_of_a_pasted_line_are_read_and_their_other_keys_named() -> None:
    """As vLLM 0.28 was started for MiniMax-M3 with EAGLE3 (ai-dynamo/aisimulate, docs/experiments)."""
    attention = json.dumps({"indexer_kv_dtype": "fp8", "backend": "FLASHINFER"})
    drafts = {
        "method": "eagle3",
        "model": "org/MiniMax-M3-EAGLE3-GQA",
        "num_speculative_tokens": 3,
        "attention_backend": "FLASH_ATTN",
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 2.78,
    }
    line = f"vllm serve org/m3 -tp 4 --attention-config '{attention}' --speculative-config '{json.dumps(drafts)}'"
    command = read_vllm_command(line)
    read = command.pool("b200")
    assert (read.indexer_kv_dtype, read.speculator, read.num_speculative_tokens) == ("fp8", "eagle3", 3)
    assert read.acceptance == "length:2.78"
    assert command.unknown == ()
    for key in (
        "--attention-config backend",
        "--speculative-config attention_backend",
        "rejection_sample_method",
    ):
        assert any(key in text for text in command.not_modelled)
    dotted = read_vllm_command("vllm serve org/m3 --attention-config.indexer_kv_dtype fp8").pool("b200")
    assert dotted.indexer_kv_dtype == "fp8"
    assert "--attention-config.indexer_kv_dtype fp8" in launch_command("vllm", "org/m3", dotted).text
    with pytest.raises(InvalidInput, match="it is not JSON"):
        read_vllm_command("vllm serve org/m3 --attention-config {")
