"""Results of benchmarks that run inside the engine's process, without HTTP and without a client.

`llama-bench -o json` or `-o jsonl` (llama.cpp, tools/llama-bench) times single prompts and single token sequences. A
test with only `n_prompt` is a prefill, so its time is a TTFT. A test with only `n_gen` decodes from an empty context,
or from `n_depth` tokens, so its time per token is a TPOT. `trtllm-bench throughput --report_json`: TensorRT-LLM,
tensorrt_llm/bench/dataclasses/reporting.py, `ReportUtility.get_statistics_dict`, 2026. `vllm bench throughput` and
`vllm bench latency --output-json`: vLLM 0.33, vllm/benchmarks/throughput.py and latency.py; neither file contains the
workload.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capacity.base.errors import MalformedFile
from capacity_validate.benchmark_results.measured_run import (
    TOOLS,
    Document,
    MeasuredRun,
    RequestColumns,
    ResultFormat,
    finite_statistics,
    has_keys,
    measured_run,
    percentiles,
    to_count,
    to_number,
    value_at,
)
from capacity_validate.server_log import ServerLog


def _read_llama_bench(path: Path, documents: Sequence[Any]) -> list[MeasuredRun]:
    entries = documents[0] if isinstance(documents[0], list) else documents
    runs = [run for entry in entries if (run := _read_test(path, entry)) is not None]
    if not runs:
        raise MalformedFile(path, "contains no test that times only prompts or only generated tokens")
    return runs


def _read_test(path: Path, entry: Document) -> MeasuredRun | None:
    """Return one llama-bench test as a run; None if it times prefill and decode together, or a prefill after a context
    of `n_depth` tokens."""
    prompt, generated = to_count(entry.get("n_prompt")), to_count(entry.get("n_gen"))
    depth, rate = to_count(entry.get("n_depth")), to_number(entry.get("avg_ts"))
    if rate is None or rate <= 0 or (prompt is None) == (generated is None) or (prompt and depth):
        return None
    if entry.get("n_gpu_layers") == 0:
        raise MalformedFile(
            path, "was run with n_gpu_layers 0, on the CPU, so it gives no information about a GPU"
        )
    seconds = prompt / rate if prompt else 1.0 / rate
    tokens = {"prompt_tokens": [prompt or depth or 1], "output_tokens": [(generated or 0) + 1]}
    return measured_run(
        "llama-bench",
        path,
        entry,
        latencies={"ttft" if prompt else "tpot": {"mean": seconds * 1e3}},
        completed=1,
        requests=RequestColumns(**tokens, start_s=[0.0]),
        concurrency=1,
        in_process=True,
        server=ServerLog(path=str(path), max_num_batched_tokens=to_count(entry.get("n_ubatch"))),
    )


def _read_trtllm_bench(path: Path, document: Document) -> MeasuredRun:
    """Read a trtllm-bench report with percentiles of its requests; TTFT and TPOT exist only with `--streaming`."""
    total_ms = to_number(value_at(document, "performance.total_latency_ms"))
    tokens, seqs = (
        to_count(value_at(document, f"world_info.{name}")) for name in ("max_num_tokens", "max_batch_size")
    )
    return measured_run(
        "trtllm-bench",
        path,
        document,
        latencies={
            metric: percentiles(
                {"average": value_at(document, mean), **(value_at(document, where) or {})}, mean="average"
            )
            for metric, (where, mean) in TOOLS["trtllm-bench"]["latencies"].items()
        },
        duration_s=None if total_ms is None else total_ms / 1e3,
        in_process=True,
        server=ServerLog(
            path=str(path),
            tensor_parallel_size=to_count(value_at(document, "world_info.tp_size")),
            max_num_batched_tokens=tokens,
            max_num_seqs=min(seqs, tokens) if seqs and tokens else seqs,
        ),
    )


def _read_throughput(path: Path, document: Document) -> MeasuredRun:
    """Read `vllm bench throughput`: all requests start at the same time; `total_num_tokens` includes prompt tokens."""
    return measured_run(
        "vllm bench throughput", path, document, latencies={}, request_rate=math.inf, in_process=True
    )


def _read_latency(path: Path, document: Document) -> MeasuredRun:
    """Read the latency of one batch. The file lacks the batch size, so the user gives it as `--concurrency`."""
    values = {"mean": document["avg_latency"]} | {
        f"p{p}": value_at(document, f"percentiles.{p}") for p in (50, 90, 99)
    }
    return measured_run(
        "vllm bench latency",
        path,
        document,
        latencies={"e2el": finite_statistics(values, 1e3)},
        completed=0,
        in_process=True,
    )


LLAMA_BENCH = ResultFormat(
    tools=("llama-bench",),
    recognises=lambda documents: has_keys(documents, "n_prompt", "n_gen", "avg_ts"),
    read=_read_llama_bench,
)
TRTLLM_BENCH = ResultFormat.of_objects(
    "trtllm-bench",
    read=_read_trtllm_bench,
    recognises=lambda document: all(
        isinstance(document.get(key), dict) for key in ("request_info", "performance")
    ),
)
VLLM_OFFLINE = (
    ResultFormat.of_objects("vllm bench throughput", read=_read_throughput),
    ResultFormat.of_objects("vllm bench latency", read=_read_latency),
)
