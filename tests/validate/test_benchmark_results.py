"""Result files of six load generators: what each calls its metrics, what it leaves out, and how it is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from capacity_validate.benchmark_results import read_results
from capacity_validate.server_log import read_server_log

from capacity.base.errors import MalformedFile


def write(path: Path, document: Any) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def vllm_result(**changes: Any) -> dict[str, Any]:
    """Three requests, one of which failed; keys as `vllm bench serve` 0.33 writes them."""
    return {
        "backend": "vllm",
        "model_id": "meta-llama/Llama-3.1-8B-Instruct",
        "num_prompts": 3,
        "request_rate": 2.0,
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": 2.0,
        "completed": 2,
        "failed": 1,
        "total_input_tokens": 300,
        "total_output_tokens": 7,
        "request_throughput": 1.0,
        "request_goodput": None,
        "output_throughput": 3.5,
        "mean_ttft_ms": 75.0,
        "median_ttft_ms": 75.0,
        "p99_ttft_ms": 99.5,
        "input_lens": [100, 50, 200],
        "output_lens": [3, 0, 4],
        "ttfts": [0.1, 0.0, 0.05],
        "itls": [[0.01, 0.03], [], [0.02, 0.02, 0.02]],
        "start_times": [100.0, 100.4, 99.5],
        **changes,
    }


def test_a_detailed_vllm_result_is_replayed_as_sent(tmp_path: Path) -> None:
    (run,) = read_results(write(tmp_path / "r.json", vllm_result()))
    workload = run.workload()
    assert workload is not None
    assert workload.arrival_s.tolist() == [0.0, 0.5]
    assert workload.prompt_tokens.tolist() == [200, 100]
    assert workload.output_tokens.tolist() == [4, 3]
    assert run.failed == 1
    assert any("1 failed" in notice for notice in workload.notices)


def test_a_missing_e2el_is_the_first_token_and_the_gaps(tmp_path: Path) -> None:
    (run,) = read_results(write(tmp_path / "r.json", vllm_result()))
    assert run.latencies_ms["e2el"]["mean"] == pytest.approx((140 + 110) / 2)
    assert run.latencies_ms["tpot"]["mean"] == pytest.approx((20 + 20) / 2)
    assert run.latencies_ms["ttft"]["mean"] == pytest.approx(75)


def test_latencies_kept_without_details_still_count(tmp_path: Path) -> None:
    kept = vllm_result(latencies=[0.2, 0.0, 0.3])
    (run,) = read_results(write(tmp_path / "r.json", kept))
    assert run.latencies_ms["e2el"]["mean"] == pytest.approx(250)


def test_older_forks_lack_failed_and_spell_goodput_with_a_colon(tmp_path: Path) -> None:
    old = vllm_result(**{"request_goodput:": None, "best_of": 1, "request_rate": "inf"})
    del old["failed"], old["request_goodput"]
    (run,) = read_results(write(tmp_path / "r.json", old))
    assert run.failed == 1  # num_prompts less completed
    assert run.request_rate == math.inf


def test_appended_results_are_runs_of_their_own(tmp_path: Path) -> None:
    text = json.dumps(vllm_result()) + "\n" + json.dumps(vllm_result(request_rate=4.0)) + "\n"
    assert [run.request_rate for run in read_results(write(tmp_path / "r.json", text))] == [2.0, 4.0]


def test_a_closed_loop_does_not_replay_the_servers_own_pace(tmp_path: Path) -> None:
    closed = vllm_result(max_concurrency=2, request_rate="inf")
    (run,) = read_results(write(tmp_path / "r.json", closed))
    workload = run.workload()
    assert workload is not None
    assert workload.concurrency == 2
    assert workload.arrival_s.tolist() == [0.0, 0.0]


def test_queue_times_give_back_when_a_capped_client_wanted_to_send(tmp_path: Path) -> None:
    capped = vllm_result(max_concurrency=1, queue_times=[0.3, 0.0, 0.0])
    (run,) = read_results(write(tmp_path / "r.json", capped))
    workload = run.workload()
    assert workload is not None
    np.testing.assert_allclose(workload.arrival_s, [0.0, 0.2])


def test_a_summary_alone_says_what_it_lacks(tmp_path: Path) -> None:
    summary = {k: v for k, v in vllm_result().items() if not isinstance(v, list)}
    (run,) = read_results(write(tmp_path / "r.json", summary))
    assert run.workload() is None
    assert run.missing == ("--input-len", "--output-len")
    assert run.mean_prompt_tokens == 150


def test_the_template_of_vllm_033_is_read(shared_dir: Path) -> None:
    (run,) = read_results(shared_dir / "traces" / "vllm_bench_serve_template.json")
    assert run.tool == "vllm bench serve"
    assert run.completed == 200


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


def test_aiperfs_inter_token_latency_is_our_tpot(tmp_path: Path) -> None:
    aggregate = {
        "request_latency": {"unit": "ms", "avg": 900.0, "p50": 880.0, "p99": 1200.0},
        "time_to_first_token": {"unit": "ms", "avg": 80.0, "p99": 120.0},
        "inter_token_latency": {"unit": "ms", "avg": 9.0},
        "request_throughput": {"unit": "requests/sec", "avg": 3.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 300.0},
        "request_count": {"unit": "requests", "avg": 60.0},
        "input_sequence_length": {"unit": "tokens", "avg": 550.0},
        "output_sequence_length": {"unit": "tokens", "avg": 100.0},
        "input_config": {"endpoint": {"model_names": ["m"]}, "loadgen": {"concurrency": 4}},
    }
    (run,) = read_results(write(tmp_path / "profile_export_aiperf.json", aggregate))
    assert run.latencies_ms["tpot"] == {"mean": 9.0}
    assert (run.concurrency, run.model, run.completed) == (4, "m", 60)
    assert "--input-len" in run.missing


def test_aiperf_records_are_replayed_and_units_converted(tmp_path: Path) -> None:
    def record(start_ns: int, ttft: float, unit: str) -> dict[str, Any]:
        return {
            "metadata": {"request_start_ns": start_ns, "request_end_ns": start_ns + 10**9},
            "metrics": {
                "input_sequence_length": {"value": 550, "unit": "tokens"},
                "output_sequence_length": {"value": 9, "unit": "tokens"},
                "time_to_first_token": {"value": ttft, "unit": unit},
                "inter_token_latency": {"value": 5.0, "unit": "ms"},
            },
            "error": None,
        }

    failed = {"metadata": {"request_start_ns": 0, "request_end_ns": 1}, "metrics": {}, "error": {"code": 499}}
    rows = [record(2 * 10**9, 0.25, "s"), record(10**9, 250.0, "ms"), failed]
    (run,) = read_results(write(tmp_path / "profile_export.jsonl", "\n".join(map(json.dumps, rows))))
    workload = run.workload()
    assert workload is not None
    np.testing.assert_allclose(workload.arrival_s, [0.0, 1.0])
    assert run.latencies_ms["ttft"]["p99"] == pytest.approx(250)
    assert run.failed == 1


def test_guidellm_report_is_read_run_by_run(shared_dir: Path) -> None:
    runs = read_results(shared_dir / "traces" / "guidellm_report_v2.json")
    assert len(runs) == 2
    first = runs[0]
    assert (first.tool, first.request_rate, first.burstiness) == ("guidellm", 2.0, math.inf)
    # its time_per_output_token_ms (2.44) includes the first token; TPOT is its inter_token_latency_ms
    assert first.latencies_ms["tpot"]["mean"] == pytest.approx(1.1508, abs=1e-4)
    assert first.latencies_ms["e2el"]["mean"] == pytest.approx(19.789, abs=1e-3)  # given in seconds


def test_inference_perf_summary_is_in_seconds(tmp_path: Path) -> None:
    summary = {
        "load_summary": {"count": 10, "requested_rate": 5.0},
        "successes": {
            "count": 9,
            "latency": {
                "time_to_first_token": {"mean": 0.05, "median": 0.04, "p99": 0.2},
                "time_per_output_token": {"mean": 0.01},
                "request_latency": {"mean": 1.2},
            },
            "throughput": {"requests_per_sec": 4.5, "output_tokens_per_sec": 450.0},
            "prompt_len": {"mean": 800.0},
            "output_len": {"mean": 100.0},
        },
        "failures": {"count": 1},
    }
    (run,) = read_results(write(tmp_path / "summary_lifecycle_metrics.json", summary))
    assert run.latencies_ms["ttft"] == {"mean": 50.0, "p50": 40.0, "p99": 200.0}
    assert (run.failed, run.duration_s, run.request_rate) == (1, 2.0, 5.0)


def test_inference_perf_requests_have_the_instant_of_every_token(tmp_path: Path) -> None:
    requests = [
        {"start_time": 5.0, "end_time": 6.0, "error": None,
         "info": {"input_tokens": 10, "output_tokens": 3, "output_token_times": [5.2, 5.6, 6.0]}},
        {"start_time": 4.0, "end_time": 4.1, "error": {"error_type": "x"}, "info": {}},
    ]  # fmt: skip
    (run,) = read_results(write(tmp_path / "per_request_lifecycle_metrics.json", requests))
    assert run.latencies_ms["ttft"]["mean"] == pytest.approx(200)
    assert run.latencies_ms["tpot"]["mean"] == pytest.approx(400)
    assert (run.completed, run.failed) == (1, 1)


def test_newer_inference_perf_nests_its_tokens(tmp_path: Path) -> None:
    request = {
        "start_time": 5.0,
        "end_time": 6.0,
        "error": None,
        "info": {
            "request_metrics": {"text": {"input_tokens": 10}},
            "response_metrics": {"output_tokens": 3, "output_token_times": [5.2, 5.6, 6.0]},
        },
    }
    (run,) = read_results(write(tmp_path / "per_request_lifecycle_metrics.json", [request]))
    assert run.requests is not None
    assert (list(run.requests.prompt_tokens), list(run.requests.output_tokens)) == ([10], [3])
    assert run.latencies_ms["tpot"]["mean"] == pytest.approx(400)


@pytest.mark.parametrize(
    ("config", "rate", "concurrency", "model"),
    [
        ({"loadgen": {"concurrency": 4}, "endpoint": {"model_names": ["m"]}}, None, 4, "m"),
        ({"perf_analyzer": {"stimulus": {"concurrency": 8}}, "model_names": ["m"]}, None, 8, "m"),
        (
            {
                "models": {"items": [{"name": "m"}]},
                "phases": [
                    {"name": "warmup", "type": "concurrency", "concurrency": 1},
                    {"name": "profiling", "type": "poisson", "rate": 3.5},
                ],
            },
            3.5,
            None,
            "m",
        ),
        (
            {"phases": {"profiling": {"type": "concurrency", "concurrency": 40}}, "models": ["m"]},
            None,
            40,
            "m",
        ),
        ({"phases": {"type": "concurrency", "concurrency": 2}}, None, 2, None),
        ({}, None, None, None),
    ],
)
def test_aiperf_has_said_its_load_in_three_ways(
    tmp_path: Path, config: dict[str, Any], rate: float | None, concurrency: int | None, model: str | None
) -> None:
    document = {"request_latency": {"unit": "ms", "avg": 900.0}, "input_config": config}
    (run,) = read_results(write(tmp_path / "profile_export_aiperf.json", document))
    assert (run.request_rate, run.concurrency, run.model) == (rate, concurrency, model)


KNOWN: dict[str, Any] = {
    "vllm": vllm_result(),
    "sglang": {"input_throughput": 3.0, "duration": 1.0, "input_lens": [1, 2], "output_lens": [3, 4], "completed": 2},
    "aiperf": {
        "request_latency": {"unit": "ms", "avg": 9.0},
        "input_config": {"phases": [{"name": "profiling", "concurrency": 2}], "endpoint": {"model_names": ["m"]}},
    },
    "aiperf requests": {
        "metadata": {"request_start_ns": 1, "request_end_ns": 2},
        "metrics": {"input_sequence_length": {"value": 5, "unit": "tokens"}},
    },
    "guidellm": {
        "benchmarks": [
            {
                "config": {"strategy": {"type_": "constant", "rate": 2.0}},
                "metrics": {"request_totals": {"successful": 1}, "request_latency": {"successful": {"count": 1}}},
                "requests": {"successful": [{"request_start_time": 1.0, "prompt_tokens": 5, "output_tokens": 3}]},
                "duration": 3.0,
            }
        ]
    },
    "inference-perf": {
        "load_summary": {"requested_rate": 1.0},
        "successes": {"count": 1, "latency": {"request_latency": {"mean": 1.0}}, "throughput": {}},
    },
    "inference-perf requests": [
        {"start_time": 1.0, "end_time": 2.0,
         "info": {"input_tokens": 5, "output_tokens": 2, "output_token_times": [1.5, 2.0]}}
    ],
}  # fmt: skip
HOSTILE = (
    None,
    -1,
    1e308,
    10**30,
    float("nan"),
    float("inf"),
    True,
    "x",
    "",
    [],
    [None],
    {},
    {"a": []},
    [[1]],
)


def changed(document: Any, bad: Any) -> Iterator[Any]:
    """The document with each of its values in turn, at any depth, replaced by `bad`."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield {**document, key: bad}
            for inner in changed(value, bad):
                yield {**document, key: inner}
    elif isinstance(document, list):
        for index, value in enumerate(document):
            for inner in (bad, *changed(value, bad)):
                yield [*document[:index], inner, *document[index + 1 :]]


@pytest.mark.parametrize("tool", KNOWN)
def test_no_value_of_a_wrong_kind_gets_further_than_one_line(tmp_path: Path, tool: str) -> None:
    """Each value replaced by each of a dozen hostile ones: a result or MalformedFile, nothing else."""
    path = tmp_path / "r.json"
    read = complaints = 0
    for bad in HOSTILE:
        for document in changed(KNOWN[tool], bad):
            write(path, document)
            try:
                runs = read_results(path)
            except MalformedFile as error:
                text = str(error)
                complaints += "\n" in text
                continue
            read += 1
            for run in runs:
                assert all(np.isfinite(v) for values in run.latencies_ms.values() for v in values.values())
                assert isinstance(run.missing, tuple)
    assert read > 10
    assert not complaints


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("{", "not JSON"),
        ("42", "bare int"),
        ("{}", "no known benchmark result"),
        ("[[" * 100_000, "not JSON"),
        ('[{"a": 1}]', "not of inference-perf"),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(MalformedFile, match=problem) as caught:
        read_results(write(tmp_path / "bad.json", text))
    assert "\n" not in str(caught.value)


def test_what_vllm_prints_at_start_up(tmp_path: Path) -> None:
    lines = """
INFO 11-06 10:51:48 [gpu_model_runner.py:4879] Model loading took 14.99 GiB memory and 31.6 seconds
INFO 11-06 10:51:48 [gpu_worker.py:349] Available KV cache memory: 51.53 GiB
(EngineCore_DP0 pid=1) INFO 11-06 10:51:48 [kv_cache_utils.py:1229] GPU KV cache size: 422,112 tokens
INFO 11-06 10:51:48 [kv_cache_utils.py:1234] Maximum concurrency for 131,072 tokens per request: 3.22x
INFO 11-06 10:52:10 [gpu_model_runner.py:5100] Graph capturing finished in 21 secs, took 0.53 GiB
INFO Chunked prefill is enabled with max_num_batched_tokens=8192.
"""
    log = read_server_log(write(tmp_path / "server.log", lines))
    assert log.kv_tokens == 422_112
    assert log.weights_bytes == int(14.99 * 2**30)
    assert log.overrides(16) == {
        "max_num_batched_tokens": 8192,
        "max_model_len": 131_072,
        "num_gpu_blocks_override": 26_382,
    }


def test_older_and_other_engines_logs(tmp_path: Path) -> None:
    v0 = read_server_log(write(tmp_path / "v0.log", "INFO # cuda blocks: 7191, # CPU blocks: 512"))
    assert v0.overrides(16) == {"num_gpu_blocks_override": 7191}
    sglang = read_server_log(
        write(
            tmp_path / "sglang.log",
            "KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB",
        )
    )
    assert sglang.kv_tokens == 367_404


def test_a_log_without_start_up_lines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match="none of the lines"):
        read_server_log(write(tmp_path / "x.log", "hello"))
