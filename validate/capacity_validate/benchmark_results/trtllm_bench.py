"""Results of `trtllm-bench throughput --report_json`: requests are made inside of the engine's process, without HTTP.

Layout: TensorRT-LLM, tensorrt_llm/bench/dataclasses/reporting.py, `ReportUtility.get_statistics_dict`, 2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capacity_validate.benchmark_results.run import MeasuredRun, ResultFormat
from capacity_validate.benchmark_results.values import Document, count, known, number
from capacity_validate.server_log import ServerLog


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


def _statistics(percentiles: object, mean: object) -> dict[str, float]:
    found = percentiles if isinstance(percentiles, dict) else {}
    return known(
        {"mean": found.get("average", mean)}
        | {name: found.get(name) for name in ("p50", "p90", "p95", "p99")}
    )


def _recognises(documents: Sequence[Any]) -> bool:
    return all(isinstance(documents[0].get(key), dict) for key in ("request_info", "performance"))


FORMATS = (
    ResultFormat(
        tools=("trtllm-bench",),
        recognises=_recognises,
        read=lambda path, documents: [_trtllm_bench(path, document) for document in documents],
    ),
)
