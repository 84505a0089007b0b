"""vLLM's own flags: each read from the command line, from Python, from a file and from a pasted command, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import capacity
from capacity.answers.engine_setup import scheduler_limits
from capacity.base.errors import InvalidInput
from capacity.cli.main import app
from capacity.deployment import DeploymentFile, Pool, build, read_deployment, write_deployment
from capacity.deployment.vllm_command import read_vllm_command
from capacity.pool.resolve import resolve
from capacity.report.launching import launch_command

LLAMA = "llama-3.1-8b"
EAGLE = {"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}
PRODUCER = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}


def pool(**fields: Any) -> Pool:
    found: Pool = build(Pool, {"gpu": "h100", **fields}, flags=True)
    return found


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
    assert "--kv-cache-memory-bytes asks for 90.0 GB" in str(too_much.reason)


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


@pytest.mark.parametrize("config", [EAGLE, json.dumps(EAGLE)])
def test_speculative_config_is_a_speculator(config: object) -> None:
    assert pool(speculative_config=config) == pool(speculator="eagle3-chain", num_speculative_tokens=3)
    assert pool(speculative_config="{}") == pool()
    with pytest.raises(InvalidInput, match="give one of them"):
        pool(speculative_config=config, speculator="ngram")


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("speculative_config", "{", "--speculative-config is {: it is not JSON"),
        ("speculative_config", "[1]", "must be a JSON object"),
        ("speculative_config", '{"method": "suffix"}', "method 'suffix' is not one of ngram"),
        ("speculative_config", '{"method": "ngram", "parallel_drafting": true}', "is not modelled; read are"),
        ("kv_transfer_config", '{"kv_role": "both"}', "kv_role 'both' is not one of kv_producer"),
        ("kv_transfer_config", '{"kv_connector": "OffloadingConnector"}', "--kv-offloading-size"),
        ("decode_context_parallel_size", 2, "--decode-context-parallel-size is 2: decodes that share"),
        ("decode_context_parallel_size", 0, "greater than or equal to 1"),
        ("max_model_len", 0, "--max-model-len is 0: must be greater than or equal to 1"),
        ("max_model_len", "long", "--max-model-len is long"),
        ("kv_cache_memory_bytes", 0, "--kv-cache-memory-bytes is 0"),
        ("dtype", "int8", "--dtype is int8"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(field: str, value: object, complaint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        pool(**{field: value})
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_kv_role_is_a_pool_of_a_disaggregated_deployment(tmp_path: Path) -> None:
    consumer = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_consumer"})
    assert pool(kv_transfer_config=PRODUCER).role == "prefill"
    assert pool(kv_transfer_config='{"kv_connector": "NixlConnector", "kv_role": "kv_both"}').role == "both"
    file = tmp_path / "pools.toml"
    pools = (pool(kv_transfer_config=PRODUCER), pool(kv_transfer_config=consumer))
    write_deployment(DeploymentFile(model=LLAMA, pools=pools), file)
    assert [each.role for each in read_deployment(file).pools] == ["prefill", "decode"]


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
        speculator="eagle3-chain",
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
    assert found.ignored == (
        "--tensor-paralel-size 2 (did you mean --tensor-parallel-size?)",
        "--served-model-name x",
    )
