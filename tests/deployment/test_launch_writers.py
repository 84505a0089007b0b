"""Commands for other programs: what they say, and that vLLM's reads back as the pool it came from."""

from __future__ import annotations

import contextlib
import json
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Pool
from capacity.deployment.launch_command import read_line as read_vllm_command
from capacity.deployment.launch_writers import launch_command
from capacity.pool.resolve import resolve
from capacity.step import decode_shape, prefill_shape

POOL = Pool(
    gpu="h100",
    tensor_parallel_size=4,
    quantization="fp8",
    kv_cache_dtype="fp8",
    max_num_batched_tokens=2048,
    enable_prefix_caching=False,
)


def test_each_engine_is_told_the_same() -> None:
    vllm = launch_command("vllm", "org/model", POOL).words
    assert vllm[:3] == ("vllm", "serve", "org/model")
    assert vllm[3:5] == ("--tensor-parallel-size", "4")
    assert "--no-enable-prefix-caching" in vllm
    sglang = launch_command("sglang", "org/model", POOL).text
    for part in (
        "--tp-size 4",
        "--chunked-prefill-size 2048",
        "--kv-cache-dtype fp8_e4m3",
        "--disable-radix-cache",
    ):
        assert part in sglang
    tensorrt = launch_command("tensorrt-llm", "org/model", POOL)
    assert "--tp_size 4" in tensorrt.text
    assert "--extra_llm_api_options trtllm.yaml" in tensorrt.text
    options = "kv_cache_config:\n  dtype: fp8\n  enable_block_reuse: false\n"
    assert tensorrt.files == (("trtllm.yaml", options),)
    with pytest.raises(InvalidInput, match="'static' is a baseline and cannot be launched"):
        launch_command("static", "org/model", POOL)
    with pytest.raises(UnknownName, match="engine"):
        launch_command("olama", "org/model", POOL)


def test_a_format_that_needs_its_own_checkpoint_is_said() -> None:
    launch = launch_command("vllm", "org/model", Pool(gpu="h100", quantization="int4"))
    assert "--quantization awq" in launch.text
    assert "checkpoint in that format" in launch.notes[0]


def test_words_are_quoted_for_a_shell() -> None:
    text = launch_command("vllm", "my model; rm -rf /", POOL).text
    assert shlex.split(text.replace("\\\n", " "))[2] == "my model; rm -rf /"


@given(
    tp=st.sampled_from((1, 2, 8)),
    quantization=st.sampled_from((None, "fp8")),
    cache=st.sampled_from(("auto", "fp8")),
    seqs=st.none() | st.integers(1, 4096),
    budget=st.none() | st.integers(1, 65536),
    length=st.none() | st.integers(1, 1 << 20),
    chunked=st.sampled_from((None, True, False)),
    eager=st.booleans(),
)
def test_a_launch_command_reads_back(tp, quantization, cache, seqs, budget, length, chunked, eager) -> None:  # type: ignore[no-untyped-def]
    pool = Pool(
        gpu="h100",
        tensor_parallel_size=tp,
        quantization=quantization,
        kv_cache_dtype=cache,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_model_len=length,
        enable_chunked_prefill=chunked,
        enforce_eager=eager,
        language_model_only=not eager,
    )
    read = read_vllm_command(launch_command("vllm", "org/model", pool).text)
    assert read.model == "org/model"
    assert read.pool("h100") == pool
    assert read.ignored == ("--port",)


@pytest.mark.parametrize("role", ["both", "prefill", "decode"])
@pytest.mark.parametrize("drafts", [{}, {"speculator": "eagle3", "num_speculative_tokens": 4}])
@pytest.mark.parametrize("quantization", [None, "fp8", "int4", "nvfp4"])
def test_what_a_planner_finds_reads_back(role: Any, drafts: dict[str, Any], quantization: str | None) -> None:
    """Drafts, both sides of a disaggregated deployment and every default format: the same engine in each figure."""
    pool = Pool(gpu="b200", tensor_parallel_size=2, quantization=quantization, role=role, **drafts)
    read = read_vllm_command(launch_command("vllm", "org/model", pool).text)
    found = read.pool("b200")
    assert read.ignored == ("--port",)
    assert found.model_copy(update={"quantization": quantization}) == pool
    before, after = resolve("llama-3.1-8b", pool), resolve("llama-3.1-8b", found)
    assert after.memory == before.memory
    for shape in (prefill_shape(1, 700), decode_shape(30, 900)):
        assert after.step_model.step_seconds(shape) == before.step_model.step_seconds(shape)


def test_drafts_are_said_in_each_engines_words() -> None:
    pool = Pool(gpu="h100", speculator="eagle3", num_speculative_tokens=3)
    vllm = launch_command("vllm", "org/model", pool)
    config = json.loads(vllm.words[vllm.words.index("--speculative-config") + 1])
    assert config == {"method": "eagle3", "model": "DRAFT-CHECKPOINT", "num_speculative_tokens": 3}
    assert any("DRAFT-CHECKPOINT" in note for note in vllm.notes)
    sglang = launch_command("sglang", "org/model", pool).text
    assert "--speculative-algorithm EAGLE3" in sglang
    assert "--speculative-eagle-topk 1" in sglang
    assert "--speculative-num-draft-tokens 4" in sglang
    ((_, options),) = launch_command("tensorrt-llm", "org/model", pool).files
    assert "decoding_type: Eagle3" in options
    assert "max_draft_len: 3" in options
    lookup = launch_command("vllm", "m", Pool(gpu="h100", speculator="ngram"))
    assert json.loads(lookup.words[lookup.words.index("--speculative-config") + 1]) == {"method": "ngram"}
    mtp = Pool(gpu="h100", speculator="mtp", num_speculative_tokens=2)
    assert "num_nextn_predict_layers: 2" in launch_command("tensorrt-llm", "m", mtp).files[0][1]


def test_a_pasted_command_with_all_that_people_write() -> None:
    read = read_vllm_command(
        """CUDA_VISIBLE_DEVICES=0,1 vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 2 \\
        --max_model_len 32k --gpu-memory-utilization=0.85 --enable-prefix-caching --trust-remote-code \\
        --served-model-name big --speculative-config '{"method": "eagle", "num_speculative_tokens": 3}' -q fp8"""
    )
    assert read.model == "meta-llama/Llama-3.1-70B-Instruct"
    assert read.fields == {
        "tensor_parallel_size": "2",
        "max_model_len": "32k",
        "gpu_memory_utilization": "0.85",
        "enable_prefix_caching": True,
        "quantization": "fp8",
        "speculative_config": '{"method": "eagle", "num_speculative_tokens": 3}',
    }
    assert (read.pool("h100").speculator, read.pool("h100").max_model_len) == ("eagle", 32_000)
    assert [word.split()[0] for word in read.ignored] == ["--trust-remote-code", "--served-model-name"]
    assert read.pool("h100").tensor_parallel_size == 2
    module = read_vllm_command(
        "python -m vllm.entrypoints.openai.api_server --model m --tensor-parallel-size 8"
    )
    assert (module.model, module.fields) == ("m", {"tensor_parallel_size": "8"})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must contain"),
        ("ls -l", "must contain"),
        ("vllm serve", "does not contain a model"),
        ("vllm serve 'm", "no closing quotation"),
    ],
)
def test_what_is_no_vllm_command(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        read_vllm_command(text)


@given(st.text(max_size=200))
def test_anything_pasted_gives_a_command_or_one_line(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert read_vllm_command("vllm serve m " + text).model == "m"
