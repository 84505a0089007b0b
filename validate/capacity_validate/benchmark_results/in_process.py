"""Results of benchmarks that run in the engine's own process, without a server: no HTTP, no client.

`llama-bench -o json` or `-o jsonl` (llama.cpp, tools/llama-bench) times single prompts and single sequences of tokens.
A test of `n_prompt` alone is a prefill (its time is a TTFT), one of `n_gen` alone decodes from an empty context, or
from one of `n_depth` tokens (the time of a token is a TPOT). `trtllm-bench throughput --report_json`: TensorRT-LLM,
tensorrt_llm/bench/dataclasses/reporting.py, `ReportUtility.get_statistics_dict`, 2026. `vllm bench throughput` and
`vllm bench latency --output-json`: vLLM 0.33, vllm/benchmarks/throughput.py and latency.py; neither file says what was
sent.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capacity.base.errors import MalformedFile
from capacity_validate.benchmark_results.measured_run import (
    Document,
    MeasuredRun,
    RequestColumns,
    ResultFormat,
    count,
    known,
    number,
    percentiles,
)
from capacity_validate.server_log import ServerLog


def _tests(path: Path, documents: Sequence[Any]) -> list[MeasuredRun]:
    entries = documents[0] if isinstance(documents[0], list) else documents
    runs = [run for entry in entries if (run := _test(path, entry)) is not None]
    if not runs:
        raise MalformedFile(path, "holds no test of prompts alone or of generated tokens alone")
    return runs


def _test(path: Path, entry: Document) -> MeasuredRun | None:
    """One test; None of prompt and generation together, and of a prompt at a depth: neither time stands for itself."""
    prompt, generated = count(entry.get("n_prompt")), count(entry.get("n_gen"))
    depth, rate = count(entry.get("n_depth")), number(entry.get("avg_ts"))
    if rate is None or rate <= 0 or (prompt is None) == (generated is None) or (prompt and depth):
        return None
    if entry.get("n_gpu_layers") == 0:
        raise MalformedFile(path, "was run with n_gpu_layers 0, on the CPU: such a run says nothing of a GPU")
    seconds = prompt / rate if prompt else 1.0 / rate
    return MeasuredRun(
        tool="llama-bench",
        path=str(path),
        completed=1,
        failed=0,
        latencies_ms={"ttft" if prompt else "tpot": {"mean": seconds * 1e3}},
        requests=RequestColumns(
            prompt_tokens=[prompt or depth or 1], output_tokens=[(generated or 0) + 1], start_s=[0.0]
        ),
        concurrency=1,
        num_requests=1,
        in_process=True,
        server=ServerLog(path=str(path), max_num_batched_tokens=count(entry.get("n_ubatch"))),
    )


def _is_llama_bench(documents: Sequence[Any]) -> bool:
    first = documents[0][0] if isinstance(documents[0], list) and documents[0] else documents[0]
    return isinstance(first, dict) and {"n_prompt", "n_gen", "avg_ts"} <= first.keys()


def _trtllm_bench(path: Path, document: Document) -> MeasuredRun:
    """Percentiles are of requests; TTFT and TPOT stand there with `--streaming` only."""
    world, requests = document.get("world_info") or {}, document["request_info"]
    performance, streaming = document["performance"], document.get("streaming_metrics") or {}
    latencies = {
        "ttft": _statistics(streaming.get("ttft_percentiles"), streaming.get("avg_ttft_ms")),
        "tpot": _statistics(streaming.get("tpot_percentiles"), streaming.get("avg_tpot_ms")),
        "e2el": _statistics(
            performance.get("request_latency_percentiles_ms"), performance.get("avg_request_latency_ms")
        ),
    }
    total_ms = number(performance.get("total_latency_ms"))
    tokens, seqs = count(world.get("max_num_tokens")), count(world.get("max_batch_size"))
    done = count(requests.get("num_requests")) or 0
    model = (document.get("engine") or {}).get("model")
    return MeasuredRun(
        tool="trtllm-bench",
        path=str(path),
        model=model if isinstance(model, str) else None,
        completed=done,
        failed=0,
        duration_s=None if total_ms is None else total_ms / 1e3,
        request_throughput=number(performance.get("request_throughput_req_s")),
        output_throughput=number(performance.get("system_output_throughput_tok_s")),
        latencies_ms={metric: values for metric, values in latencies.items() if values},
        num_requests=done,
        mean_prompt_tokens=number(requests.get("avg_input_length")),
        mean_output_tokens=number(requests.get("avg_output_length")),
        in_process=True,
        server=ServerLog(
            path=str(path),
            tensor_parallel_size=count(world.get("tp_size")),
            max_num_batched_tokens=tokens,
            max_num_seqs=min(seqs, tokens) if seqs and tokens else seqs,
        ),
        notices=(
            "the file does not say how many requests were let in at once: --concurrency N, or --request-rate inf",
        ),
    )


def _statistics(entry: object, mean: object) -> dict[str, float]:
    found = {"average": mean, **(entry if isinstance(entry, dict) else {})}
    return known(percentiles(found, mean="average"))


def _throughput(path: Path, document: Document) -> MeasuredRun:
    """All requests at once; `total_num_tokens` counts prompts too."""
    requests = count(document["num_requests"]) or 0
    return MeasuredRun(
        tool="vllm bench throughput",
        path=str(path),
        completed=requests,
        failed=0,
        duration_s=number(document["elapsed_time"]),
        request_throughput=number(document["requests_per_second"]),
        latencies_ms={},
        request_rate=math.inf,
        num_requests=requests,
        in_process=True,
    )


def _latency(path: Path, document: Document) -> MeasuredRun:
    """The time of one whole batch, of `--concurrency` requests here: its size is not in the file."""
    percentiles = document.get("percentiles") or {}
    values = {"mean": document["avg_latency"]} | {f"p{p}": percentiles.get(f"{p}") for p in (50, 90, 99)}
    return MeasuredRun(
        tool="vllm bench latency",
        path=str(path),
        completed=0,
        failed=0,
        latencies_ms={"e2el": known(values, 1e3)},
        num_requests=0,
        in_process=True,
        notices=("the file does not hold its --batch-size: --concurrency is taken for it",),
    )


LLAMA_BENCH = ResultFormat(tools=("llama-bench",), recognises=_is_llama_bench, read=_tests)
TRTLLM_BENCH = ResultFormat.of_objects(
    "trtllm-bench",
    read=_trtllm_bench,
    recognises=lambda document: all(
        isinstance(document.get(key), dict) for key in ("request_info", "performance")
    ),
)
VLLM_OFFLINE = (
    ResultFormat.of_objects(
        "vllm bench throughput",
        read=_throughput,
        recognises=lambda document: (
            {"elapsed_time", "num_requests", "requests_per_second"} <= document.keys()
        ),
    ),
    ResultFormat.of_objects(
        "vllm bench latency",
        read=_latency,
        recognises=lambda document: {"avg_latency", "latencies"} <= document.keys(),
    ),
)
