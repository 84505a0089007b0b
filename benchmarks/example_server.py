"""Write the dashboard's example files of a server: a start-up log, two benchmark results and a /metrics scrape.

`python benchmarks/example_server.py` simulates the server and replaces app/capacity_app/example_server_files.
The simulated server differs from its GPU's profile by `DIFFERENCES`, so that a calibration has something to find.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capacity_validate.replaying import replay_metrics

from capacity.answers.engine_setup import requests_of
from capacity.deployment import Pool, Traffic, build
from capacity.hardware.adjustment import NO_ADJUSTMENT
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.workload import Workload, random_requests

FOLDER = Path(__file__).parents[1] / "app" / "capacity_app" / "example_server_files"
MODEL, GPU, RELEASE = "meta-llama/Llama-3.1-8B-Instruct", "h100-sxm-80gb", "0.30.0"
SETTINGS: Mapping[str, Any] = {"max_num_seqs": 128, "kv_cache_dtype": "fp8"}
DIFFERENCES = {
    "memory": 0.15,
    "compute": 0.15,
    "host": 0.4,
}  # logarithms of time factors; assumed, 2026-11-28
LOADS = {"result-c8.json": 8, "result-c64.json": 64}  # concurrency by file
STARTED_S = 1_790_000_000.0


def simulated_server() -> ResolvedPool:
    """Return the simulated server."""
    pool = build(Pool, {"gpu": GPU, "engine": f"vllm@{RELEASE.removesuffix('.0')}", **SETTINGS})
    return resolve(MODEL, pool).adjusted_by(NO_ADJUSTMENT.shift_means(DIFFERENCES))


def example_files() -> dict[str, bytes]:
    """Return the content of the example's files by name."""
    server = simulated_server()
    files = {"server.log": _log(server), "metrics.txt": _scrape(server, _workload(request_rate=6.0))}
    files |= {name: _result(server, _workload(concurrency=clients)) for name, clients in LOADS.items()}
    return {name: text.encode() for name, text in files.items()}


def _workload(*, concurrency: int | None = None, request_rate: float = math.inf) -> Workload:
    """Return requests of a closed loop, or at a rate in requests per second."""
    requests = random_requests(
        num_requests=300,
        input_len=1024,
        output_len=128,
        range_ratio=0.2,
        request_rate_per_s=request_rate,
        concurrency=concurrency,
        seed=3,
    )
    return requests_of(Traffic(), requests)


def _log(server: ResolvedPool) -> str:
    """Return the start-up lines of vLLM 0.30."""
    arguments = {"model": MODEL, **SETTINGS}
    config = f"model='{MODEL}', tensor_parallel_size=1, quantization=None, enforce_eager=False"
    lines = (
        f"[api_server.py:1896] vLLM API server version {RELEASE}",
        f"[utils.py:253] non-default args: {arguments}",
        f"[core.py:94] Initializing a V1 LLM engine (v{RELEASE}) with config: {config}, kv_cache_dtype=fp8",
        f"[gpu_model_runner.py:4879] Model loading took {server.memory.weights_bytes / 2**30:.2f} GiB memory",
        f"[kv_cache_utils.py:1229] GPU KV cache size: {server.memory.kv_capacity_tokens:,} tokens",
    )
    return "".join(f"INFO 11-20 09:12:03 {line}\n" for line in lines)


def _result(server: ResolvedPool, load: Workload) -> str:
    """Return what `vllm bench serve --save-result --save-detailed` writes."""
    metrics = replay_metrics(server, load)
    measured = {
        name: float(value) for name, value in metrics.items() if name.endswith(("_ms", "_throughput"))
    }
    return json.dumps(
        {
            "backend": "vllm",
            "model_id": MODEL,
            "num_prompts": len(load),
            "completed": len(load),
            "request_rate": "inf",
            "max_concurrency": load.concurrency,
            "duration": float(metrics["duration"]),
            "total_input_tokens": int(load.prompt_tokens.sum()),
            "total_output_tokens": int(load.output_tokens.sum()),
            "input_lens": load.prompt_tokens.tolist(),
            "output_lens": load.output_tokens.tolist(),
            **measured,
        }
    )


def _scrape(server: ResolvedPool, load: Workload) -> str:
    """Return the lines of vLLM's /metrics that count requests, and sum their times and lengths."""
    metrics = replay_metrics(server, load)
    sums = {
        "time_to_first_token_seconds": metrics["mean_ttft_ms"] / 1e3 * len(load),
        "request_time_per_output_token_seconds": metrics["mean_tpot_ms"] / 1e3 * len(load),
        "request_prompt_tokens": float(load.prompt_tokens.sum()),
        "request_generation_tokens": float(load.output_tokens.sum()),
    }
    label = f'{{model_name="{MODEL}"}}'
    lines = [
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {STARTED_S}",
        f"vllm:request_success_total{label} {len(load)} {round((STARTED_S + metrics['duration']) * 1e3)}",
    ]
    for name, total in sums.items():
        lines += [f"vllm:{name}_count{label} {len(load)}", f"vllm:{name}_sum{label} {total:.6f}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for name, content in example_files().items():
        (FOLDER / name).write_bytes(content)
