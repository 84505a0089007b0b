"""Results of TensorRT-LLM's own benchmark."""

import math
from pathlib import Path
from typing import Any

from benchmark_files import write
from capacity_validate.benchmark_results import read_results


def report(**changes: Any) -> dict[str, Any]:
    """Keys as `trtllm-bench throughput --streaming --report_json` writes them."""
    percentiles = {
        "minimum": 5.0,
        "maximum": 9.0,
        "average": 7.0,
        "p50": 6.9,
        "p90": 8.0,
        "p95": 8.2,
        "p99": 8.9,
    }
    return {
        "engine": {"model": "meta-llama/Llama-3.1-8B", "model_path": "None", "version": "1.2.0", "backend": "Pytorch"},
        "machine": {"name": "NVIDIA H200", "memory.total": 139.8, "clocks.mem": 3.2},
        "world_info": {
            "tp_size": 2, "pp_size": 1, "ep_size": -1, "world_size": 2, "max_batch_size": 4096,
            "max_num_tokens": 2048, "scheduling_policy": "GUARANTEED_NO_EVICT", "issue_rate": 9e5,
        },
        "request_info": {
            "num_requests": 30, "avg_num_concurrent_requests": 14.2, "avg_input_length": 128.0,
            "avg_output_length": 64.0,
        },
        "performance": {
            "total_latency_ms": 2000.0, "avg_request_latency_ms": 450.0, "request_throughput_req_s": 15.0,
            "system_output_throughput_tok_s": 960.0, "request_latency_percentiles_ms": percentiles,
        },
        "streaming_metrics": {
            "avg_ttft_ms": 30.0, "avg_tpot_ms": 7.0, "tpot_percentiles": percentiles,
            "ttft_percentiles": {**percentiles, "average": 30.0},
        },
        **changes,
    }  # fmt: skip


def test_a_streaming_report(tmp_path: Path) -> None:
    (run,) = read_results(write(tmp_path / "r.json", report()))
    assert (run.tool, run.model, run.completed) == ("trtllm-bench", "meta-llama/Llama-3.1-8B", 30)
    assert run.latencies_ms["ttft"] == {"mean": 30.0, "p50": 6.9, "p90": 8.0, "p95": 8.2, "p99": 8.9}
    assert run.latencies_ms["tpot"]["mean"] == 7.0
    assert (run.duration_s, run.request_throughput, run.output_throughput) == (2.0, 15.0, 960.0)
    assert run.in_process
    assert run.server is not None
    assert run.server.tensor_parallel_size == 2
    assert run.server.max_num_batched_tokens == 2048
    assert run.server.max_num_seqs == 2048  # no step holds more sequences than tokens


def test_without_streaming_there_is_no_first_token(tmp_path: Path) -> None:
    document = report(streaming_metrics=None, world_info={"tp_size": math.nan})
    (run,) = read_results(write(tmp_path / "r.json", document))
    assert set(run.latencies_ms) == {"e2el"}
    assert run.server is not None
    assert run.server.tensor_parallel_size is None
