"""`simulate`: its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from schema_checks import validator

import capacity
from capacity.deployment import DeploymentFile, Pool, Traffic, read_deployment, write_deployment


def test_a_simulation_validates_against_its_schema() -> None:
    answer = capacity.simulate("llama-3.1-8b", gpu="h100", input_len=64, output_len=4, num_prompts=5)
    validator("simulation").validate(json.loads(json.dumps(answer.to_dict())))


def test_what_clients_ask_for_narrows_the_engines_that_reserve_it(tmp_path: Path) -> None:
    """By keyword and by file: TensorRT-LLM runs fewer at once, vLLM V1 the same to the picosecond."""
    words = {"input_len": 1012, "output_len": 20, "num_prompts": 200}
    for engine, narrows in (("tensorrt-llm", True), ("vllm", False)):
        pool = {"gpu": "h100", "engine": engine, "kv_cache_memory_bytes": 8 << 30, "max_model_len": 8192}
        plain = capacity.simulate("llama-3.1-8b", **pool, **words)
        asked = capacity.simulate("llama-3.1-8b", **pool, **words, max_tokens=4096)
        assert (asked.run.mean_batch_size < 0.7 * plain.run.mean_batch_size) == narrows
        assert (asked.run.summary == plain.run.summary) != narrows
        path = tmp_path / "deployment.toml"
        file = DeploymentFile(
            schema="capacity/deployment/v1",
            model="llama-3.1-8b",
            pools=(Pool(**pool),),
            traffic=Traffic(**words, max_tokens=4096),
        )
        write_deployment(file, path)
        assert capacity.simulate(read_deployment(path)).run.summary == asked.run.summary


def test_goodput_replaces_the_slo_of_the_use_case() -> None:
    load: dict[str, Any] = {"use_case": "chat", "request_rate": 5, "num_prompts": 50}
    limits: dict[str, Any]
    for limits, expected in (
        ({}, ["ttft:p99:450ms", "tpot:p99:40ms"]),
        ({"goodput": ["ttft:500"]}, []),
        ({"goodput": ["ttft:500"], "slo": ["tpot:p99:50ms"]}, ["tpot:p99:50ms"]),
    ):
        run = capacity.simulate("llama-3.1-8b", gpu="h100", **load, **limits)
        assert [level.slo for level in run.slos] == expected
