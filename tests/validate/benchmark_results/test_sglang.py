"""Results of SGLang's load generator."""

import json
from pathlib import Path

from benchmark_files import write
from capacity_validate.benchmark_results import read_results


def test_sglang_lines(tmp_path: Path) -> None:
    line = {
        "backend": "sglang",
        "request_rate": 8.0,
        "max_concurrency": None,
        "sharegpt_output_len": None,
        "duration": 10.0,
        "completed": 2,
        "total_input_tokens": 30,
        "total_output_tokens": 9,
        "request_throughput": 0.2,
        "input_throughput": 3.0,
        "output_throughput": 0.9,
        "mean_e2e_latency_ms": 500.0,
        "median_e2e_latency_ms": 490.0,
        "mean_ttft_ms": 40.0,
        "mean_tpot_ms": 10.0,
        "accept_length": 2.4,
        "input_lens": [10, 20],
        "output_lens": [4, 5],
    }
    runs = read_results(write(tmp_path / "s.jsonl", json.dumps(line) + "\n" + json.dumps(line)))
    assert len(runs) == 2
    assert runs[0].tool == "sglang.bench_serving"
    assert runs[0].latencies_ms["e2el"] == {"mean": 500.0, "p50": 490.0}
    assert runs[0].accepted_length == 2.4
    assert runs[0].workload() is None  # no start times: arrivals have to be drawn


def test_what_sglang_says_of_its_server_and_of_failures(tmp_path: Path) -> None:
    line = {
        "duration": 10.0,
        "completed": 2,
        "num_prompts": 5,
        "sharegpt_output_len": None,
        "errors": ["", "", "Not Found", "timeout"],
        "server_info": {
            "model_path": "meta-llama/Llama-3.1-8B-Instruct",
            "tp_size": 2,
            "chunked_prefill_size": 8192,
            "max_running_requests": 256,
            "internal_states": [{"memory_usage": {"token_capacity": 500_000}}],
        },
    }
    (run,) = read_results(write(tmp_path / "s.jsonl", line))
    assert run.failed == 3
    assert run.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert run.server is not None
    assert run.server.settings == {
        "engine": "sglang",
        "data_parallel_size": 1,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 256,
        "tensor_parallel_size": 2,
    }
    assert run.server.kv_fields(1) == {"num_gpu_blocks_override": 500_000}
    odd = {**line, "server_info": {"tp_size": "two", "internal_states": [3]}, "errors": "none"}
    (run,) = read_results(write(tmp_path / "odd.jsonl", odd))
    assert run.failed == 3
    assert run.server is not None
    assert run.server.tensor_parallel_size is None
