"""The launch of a plan names every setting that its predicted times depend on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capacity import estimate, from_launch
from capacity.answers.intervals import unspecified_settings
from capacity.deployment import Pool
from capacity.model import load_model
from capacity.planning.search.ranking import MEMORY_FLAG, launch_as_planned
from capacity.pool.resolve import resolve


@pytest.mark.parametrize(
    ("model", "changes", "backend"),
    [
        ("deepseek-r1", {}, "flashmla"),
        ("deepseek-r1", {"kv_cache_dtype": "auto"}, None),
        ("deepseek-r1", {"gpu": "b200"}, None),
        ("deepseek-r1", {"engine": "vllm@0.15"}, None),
        ("llama-3.1-8b", {}, None),
    ],
)
def test_fp8_latents_under_sglang_on_hopper_name_flashmla(
    model: str, changes: dict[str, Any], backend: str | None
) -> None:
    """SGLang's default there converts the whole KV pool to 16 bit in every step (sglang issue 35291)."""
    settings = {"gpu": "h200", "tensor_parallel_size": 8, "engine": "sglang@0.5.9", "kv_cache_dtype": "fp8"}
    resolved = resolve(load_model(model), Pool(**settings | changes))
    words = launch_as_planned(model, resolved).words
    named = words[words.index("--attention-backend") + 1] if "--attention-backend" in words else None
    assert named == backend


GGUF = {"quantization": "gguf-q4_k_m"}


@pytest.mark.parametrize(
    ("engine", "model", "fields"),
    [
        ("vllm", "llama-3.1-8b", {}),
        ("vllm@0.11", "qwen3-30b-a3b", {"kv_cache_dtype": "fp8"}),
        ("sglang", "llama-3.1-8b", {}),
        ("sglang", "qwen3-30b-a3b", {"tensor_parallel_size": 2, "enable_expert_parallel": True}),
        ("tensorrt-llm", "llama-3.1-8b", {}),
        ("tensorrt-llm", "llama-3.1-8b", {"kv_cache_dtype": "fp8", "enable_prefix_caching": False}),
        ("tensorrt-llm", "llama-3.1-8b", {"enable_chunked_prefill": True}),
        ("tgi", "llama-3.1-8b", {}),
        ("llama.cpp", "llama-3.1-8b", GGUF),
        ("ollama", "llama-3.1-8b", GGUF),
    ],
)
def test_launch_read_back_has_the_interval_and_settings_of_the_plan(
    engine: str, model: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    """As a plan prints it and `--output` writes it: the notes as comments, the files next to it."""
    pool = Pool(gpu="h100", engine=engine, max_model_len=8192, **fields)
    resolved = resolve(load_model(model), pool)
    launch = launch_as_planned(resolved.model.hf_id or model, resolved)
    for name, text in launch.files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = dict(launch.files).get("serve-ollama.sh", launch.text)
    script = tmp_path / "launch.sh"
    script.write_text("\n".join([*(f"# {note}" for note in launch.notes), command]), encoding="utf-8")
    found = from_launch(str(script), gpu="h100").pools[0]
    assert unspecified_settings(found) == ()
    again = resolve(load_model(model), found)
    for name in ("memory", "prefix_caching", "chunked_prefill"):
        assert getattr(again, name) == getattr(resolved, name), name
    load = {"request_rate": 1, "input_len": 1000, "output_len": 100, "client_latency_s": 0.005}
    planned = estimate(model, **pool.model_dump(exclude_unset=True), **load)
    read = estimate(model, **found.model_dump(exclude_unset=True), **load)
    assert read.as_found == {name: getattr(planned, name) for name in ("ttft_s", "tpot_s", "e2e_s")}
    assert read.launch == planned.launch
    said = {
        "max_num_seqs": planned.launch.max_num_seqs,
        "max_num_batched_tokens": planned.launch.max_num_batched_tokens,
    }
    if planned.launch.engine.partition("@")[0] in MEMORY_FLAG:
        said["gpu_memory_utilization"] = planned.launch.gpu_memory_utilization
    assert found.model_dump(include=set(said)) == said
