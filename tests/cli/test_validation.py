"""The harness's verbs refuse in one line before anything is measured."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from benchmark_files import write
from replayed_servers import result_file

from capacity.deployment import Pool, build
from capacity.pool.resolve import resolve


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("validate", "--format", "csv"), "--format is 'csv': must be one of table, json"),
        (("validate", "--budget", "soon"), "soon"),
        (("calibrate", "nowhere.jsonl", "--format", "csv"), "table, json"),
        (("calibrate", "nowhere.jsonl"), "nowhere.jsonl"),
        (("compare", "nowhere.json", "--format", "yaml"), "table, json, csv, html"),
        (("compare", "nowhere.json", "--gpu", "h100"), "nowhere.json"),
        (("compare", "llama-3.1-8b", "nowhere.json", "--gpu", "h100"), "give it with --model llama-3.1-8b"),
        (("calibrate", "--suggest", "llama-3.1-8b", "--gpu", "h100", "--overwrite"), "leave --overwrite out"),
        (("calibrate", "qwen3-8b", "--gpu", "h100"), "'qwen3-8b' is a model, not a result file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_one_line(run: Any, arguments: tuple[str, ...], says: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_compare_takes_only_the_traffic_that_a_benchmark_has(run: Any) -> None:
    assert "--burstiness" in run("compare", "nowhere.json", "--burstiness", "1").err


def test_suggested_calibration_has_the_deployment_name_and_output_of_the_command(
    run: Any, tmp_path: Path
) -> None:
    now = tmp_path / "now.toml"
    load = ("--input-len", "512", "--output-len", "64", "--request-rate", "4")
    assert run("estimate", "llama-3.1-8b", "--gpu", "h100", *load, "--output", str(now)).code == 0
    folder = str(tmp_path / "my profiles")
    chosen = ("--deployment", str(now), "-tp", "2", "--name", "test", "--output", folder)
    printed = run("calibrate", "--suggest", *chosen).out
    words = shlex.split(printed[printed.index("capacity calibrate") :])
    assert words[:3] == ["capacity", "calibrate", "run-1.json"]
    flags = [word for word in words[words.index("--deployment") :] if word != "\n"]  # continued lines
    expected = ["--deployment", str(now), "--tensor-parallel-size", "2", "--name", "test", "--output", folder]
    assert flags == expected
    code, _, err = run(*(word for word in words[1:] if word != "\n"))  # complete, but without results
    assert code == 2
    assert err.splitlines()[-1].startswith("MalformedFile: run-1.json")


def test_server_is_compared_calibrated_and_advised_without_a_flag_twice(run: Any, tmp_path: Path) -> None:
    """The launch line, a benchmark, the log and two scrapes of one server: three commands, and the GPU is named once
    in each."""
    launch = write(
        tmp_path / "launch.sh", f"vllm serve {HUB_MODEL} --quantization fp8 --max-model-len 8192\n"
    )
    served = resolve(
        "llama-3.1-8b", build(Pool, {"gpu": "h100", "quantization": "fp8", "max_model_len": 8192})
    )
    bench = result_file(tmp_path / "bench.json", served, 8, model_id=HUB_MODEL)
    document = {
        name: value for name, value in json.loads(bench.read_text()).items() if not isinstance(value, list)
    }
    write(bench, document)  # as --save-result alone writes it
    log = write(
        tmp_path / "server.log",
        "INFO [api_server.py:1896] vLLM API server version 0.33.0\n"
        "INFO [utils.py:233] non-default args: "
        f"{{'model': '{HUB_MODEL}', 'quantization': 'fp8', 'max_model_len': 8192}}\n"
        f"INFO Model loading took {served.memory.weights_bytes / 2**30:.2f} GiB\n"
        f"INFO GPU KV cache size: {served.memory.kv_capacity_tokens:,} tokens\n",
    )
    scrapes = [write(tmp_path / f"{n}.prom", scrape(HUB_MODEL, n)) for n in (100, 700)]
    for i, path in enumerate(scrapes):
        os.utime(path, (1.79e9 + 60 * i,) * 2)
    files = list(map(str, (bench, log, *scrapes)))
    compared = run("compare", *files, "--gpu", "h100")
    assert compared.code == 0
    assert "vllm@0.33" in compared.out
    assert "in the 60 s since" in " ".join(compared.out.split())
    out = str(tmp_path / "profiles")
    assert run("calibrate", *files, "--gpu", "h100", "--name", "prod", "--output", out).code == 0
    known = ("--from-launch", str(launch), "--gpu", "h100@prod", "--profiles", out)
    load = ("--input-len", "1000", "--output-len", "100", "--request-rate", "4")
    asked = run("estimate", *known, *load)
    assert asked.code == 0
    assert "calibrated on" in asked.out


HUB_MODEL = "meta-llama/Llama-3.1-8B-Instruct"


def scrape(model: str, served: int) -> str:
    """Metrics of a vLLM server that has served this many requests of 1,000 and 100 tokens."""
    label = f'model_name="{model}"'
    lines = [f'vllm:request_success_total{{finished_reason="length",{label}}} {served}']
    for name, low, high, mean in (
        ("request_prompt_tokens", 500, 1000, 1000),
        ("request_generation_tokens", 50, 100, 100),
        ("time_to_first_token_seconds", 0.04, 0.06, 0.05),
        ("request_time_per_output_token_seconds", 0.0, 0.01, 0.007),
    ):
        lines += [
            f'vllm:{name}_bucket{{{label},le="{le}"}} {n}'
            for le, n in ((low, 0), (high, served), ("+Inf", served))
        ]
        lines += [f"vllm:{name}_count{{{label}}} {served}", f"vllm:{name}_sum{{{label}}} {mean * served}"]
    return "\n".join(lines) + "\n"
