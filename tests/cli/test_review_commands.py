"""Commands that users found wrong answers with, and the line or figure that was wrong.

Answers that a test of their own unit covers are not repeated here.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from capacity.answers.interval_parts import Z_90
from capacity.hardware.spreads import load_spreads

Run = Callable[..., Any]

USERS = "llama-3.3-70b --gpu h100 -tp 4 --use-case chat --users 2000 --price-tier on-demand"
DAY = "--day-peak-to-mean 2 --request-rate 10 --input-len 1500 --output-len 300"
PLAN = (
    "plan llama-3.1-70b --gpus h100,h200 --tensor-parallel-sizes 2 --quantizations fp8 --speculators none "
    "--kv-cache-dtypes auto --serving aggregated --request-rate 5 --input-len 1024 --output-len 256 "
    "--slo ttft:p95:1s --slo tpot:p95:50ms --price-tier on-demand"
)
LINES = {  # command: exit code, what its text has, what it must not have
    f"simulate qwen3-30b-a3b --gpu h100 --arrivals diurnal {DAY}": (
        0,
        [r"the busiest .* of 24 h \(20 requests/s; mean 10/s\)", r"overloaded: 20\.\d requests/s offered"],
        [" 3% of the capacity", "stable"],
    ),
    f"cost qwen3-30b-a3b --gpu h100 --arrivals diurnal {DAY} --price-tier on-demand": (
        1,
        [r"vllm@0\.33 overloaded: 20\.\d requests/s", r"needed: 3 .* 10 requests/s \(20\.\d+/s at peak"],
        [r"utilization 1[1-9]\d"],
    ),
    "simulate qwen3-30b-a3b --gpu h100 --arrivals ramp --request-rate 1 --end-request-rate 40 --ramp-s 7200 "
    "--input-len 1500 --output-len 300": (
        0,
        [r"the busiest .* of 2 h \(40 requests/s; mean 20\.5/s\)", r"overloaded: 40\.\d requests/s offered"],
        [],
    ),
    f"cost {USERS} --api all": (
        1,
        [r"vllm@0\.33 overloaded: 66\.\d requests/s",
         r"needed: no .*; without these limits: 8 replicas \(32 GPUs\), \$91,104", r"utilization 100\.0%",
         r"offered 66\.67"],
        [r"utilization 1[1-9]\d"],
    ),
    f"estimate {USERS}": (
        0,
        [r"client latency [\d.]+ ms overloaded: ", r"without these limits: 8 replicas \(32 GPUs\), \$91,104 a month"],
        [],
    ),
    "estimate llama-3.3-70b --gpu h100 -tp 4 --use-case chat --request-rate 2": (  # its SLO was named, not checked
        0,
        [r"client latency [\d.]+ ms stable: .* needed: no number of replicas meets ttft:p99:450ms and tpot:p99:40ms"],
        [],
    ),
    f"{PLAN} --budget 10 --max-gpus 64 --detail": (1, ["allowed by --budget 10 at"], ["--max-gpus 64"]),
    "fit deepseek-v3.2 --gpu h200 -tp 8 --engine vllm@0.18": (0, [r"KV per token 76\.5 KiB"], []),
    "kv deepseek-v3.2 --gpu h200": (0, [r"mla 76\.5 .* 76\.49"], []),  # KiB a token, GiB at 1M
    "fit llama-3.2-11b-vision --gpu h200": (0, [r"KV per token 128\.0 KiB"], []),
    "fit llama-3.2-90b-vision --gpu h200 -tp 4": (0, [r"KV per token 320\.0 KiB"], []),
    "estimate --help": (0, [r"--users N Number of concurrent users; .* \+ response time\)\. --"], []),
    "curve llama-3.3-70b --gpu h100 -tp 4 --use-case chat --num-prompts 300 --replications 1": (
        0,
        ["Highest rate within the SLO"],
        ["knee", "busiest"],  # 0.3 requests/s are far below it, and generated steady traffic has no busiest 15 minutes
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", LINES, ids=lambda command: " ".join(command.split()[:4]))
def test_command_prints_the_right_line(run: Run, command: str) -> None:
    code, has, lacks = LINES[command]
    ran = run(*shlex.split(command))
    text = " ".join(ran.out.split())
    assert ran.code == code, ran.err
    for pattern in has:
        assert re.search(pattern, text), f"{pattern} in\n{text}"
    for pattern in lacks:
        assert not re.search(pattern, text), f"{pattern} in\n{text}"


def served(run: Run, command: str) -> Any:
    """The JSON of a simulation."""
    return run("simulate", *shlex.split(command), "--format", "json").json


def test_first_token_after_one_more_token_than_the_largest_graph_lies_in_the_same_interval(run: Run) -> None:
    """512 tokens fit into a CUDA graph, 513 do not: the intervals of 27 to 63 and 100 to 186 ms were disjoint."""
    command = "estimate qwen3-next-80b-a3b --gpu h200 -tp 2 --osl 50 --batch-size 1 --format json --isl"
    below, above = (run(*command.split(), isl).json["ttft_s"] for isl in ("512", "513"))
    for here, there in ((below, above), (above, below)):
        assert here["low"] <= there["value"] <= here["high"]


def test_redundant_flag_does_not_narrow_an_interval(run: Run) -> None:
    """The KV format that `auto` means reduced the half-width of TPOT from 22 to 5 %."""
    command = (
        "llama-3.1-8b --gpu h100 --input-len 1000 --output-len 1000 --concurrency 16 --num-prompts 64 "
        "--engine vllm@0.15 --client-latency 0.002 --max-num-batched-tokens 8192 --max-num-seqs 256 "
        "--max-model-len 4096 --gpu-memory-utilization 0.9 --no-enable-prefix-caching --random-range-ratio 0"
    )
    formats = ("", "--kv-cache-dtype auto", "--kv-cache-dtype bfloat16")
    found = [served(run, f"{command} {each}")["prediction_intervals"] for each in formats]
    assert found[0] == found[1] == found[2]
    tpot = found[0]["mean_tpot_ms"]
    machine = load_spreads().other_machines["dense"].tpot  # the part that no flag narrows
    assert tpot["high"] / tpot["low"] > math.exp(2 * Z_90 * machine) > 1.08


@pytest.mark.parametrize(
    ("command", "first", "second", "most"),
    [
        # MXFP4 experts: SGLang took 2.6 times vLLM's TPOT, measured 1.0 to 1.2
        ("gpt-oss-120b --gpu h200 -tp 2 --input-len 1024 --output-len 256 --concurrency 64 --num-prompts 96",
         "--engine vllm", "--engine sglang", 1.3),
        # FP8 KV of latent attention: half the bytes took twice the time
        ("deepseek-r1 --gpu h200 -tp 8 --engine sglang@0.5.9 --input-len 8192 --output-len 256 --concurrency 64 "
         "--num-prompts 96 --max-model-len 10240", "--kv-cache-dtype auto", "--kv-cache-dtype fp8", 1.02),
    ],
)  # fmt: skip
def test_tpot_of_a_variant_is_no_longer_than_measured(
    run: Run, command: str, first: str, second: str, most: float
) -> None:
    base, variant = (served(run, f"{command} {each}")["mean_tpot_ms"] for each in (first, second))
    assert 0.5 < variant / base <= most


def test_offline_batch_is_not_limited_by_an_api_server(run: Run) -> None:
    """Whatever the settings, TensorRT-LLM answered 11,055 output tokens/s; published are 53,812."""
    command = (
        "gpt-oss-20b --gpu b200 --engine tensorrt-llm@1.0 --input-len 1000 --output-len 1000 --request-rate inf "
        "--num-prompts 1200 --max-model-len 2064 --kv-cache-dtype fp8 --random-range-ratio 0"
    )
    assert served(run, command)["output_throughput"] > 30_000
    with_server = run("simulate", *command.split(), "--client-latency", "same-machine")
    assert "API server" in " ".join(with_server.out.split())


def test_mi300x_interval_contains_the_measured_tpot(run: Run) -> None:
    """5.5 ms was answered, vLLM's published run of this command has 9.5 ms."""
    answer = served(
        run,
        "ministral-3-8b -q fp8 --gpu mi300x --engine vllm@0.20 --input-len 1024 --output-len 1024 --concurrency 32 "
        "--num-prompts 64 --random-range-ratio 0",
    )
    tpot = answer["prediction_intervals"]["mean_tpot_ms"]
    assert tpot["low"] < 9.5 < tpot["high"]
    assert answer["mean_tpot_ms"] > 0.75 * 9.5
