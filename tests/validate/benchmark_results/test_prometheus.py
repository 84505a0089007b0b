"""Scrapes of engines' metrics."""

from pathlib import Path

import pytest
from benchmark_files import write
from capacity_validate.benchmark_results import read_results
from capacity_validate.benchmark_results.metrics_scrape import MAX_REPLAYED_REQUESTS, is_metrics

from capacity.base.errors import MalformedFile

VLLM = """# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 146351.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-32B"} 6.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="Qwen/Qwen3-32B"} 1500.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="Qwen/Qwen3-32B"} 500.0
vllm:request_success_created{engine="0",finished_reason="length",model_name="Qwen/Qwen3-32B"} 1.75e+09
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="Qwen/Qwen3-32B"} 1800.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="Qwen/Qwen3-32B"} 2000.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="Qwen/Qwen3-32B"} 2000.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="Qwen/Qwen3-32B"} 160.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="Qwen/Qwen3-32B"} 400000.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="Qwen/Qwen3-32B"} 8000.0
vllm:request_time_per_output_token_seconds_count{engine="0",model_name="Qwen/Qwen3-32B"} 2000.0
vllm:request_time_per_output_token_seconds_sum{engine="0",model_name="Qwen/Qwen3-32B"} 42.0
vllm:request_prompt_tokens_count{engine="0",model_name="Qwen/Qwen3-32B"} 2000.0
vllm:request_prompt_tokens_sum{engine="0",model_name="Qwen/Qwen3-32B"} 1.6e+06
vllm:request_generation_tokens_count{engine="0",model_name="Qwen/Qwen3-32B"} 2000.0
vllm:request_generation_tokens_sum{engine="0",model_name="Qwen/Qwen3-32B"} 400000.0
"""
SGLANG = """# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="m",is_streaming="true"} 1000.0
sglang:generation_tokens_total{model_name="m",is_streaming="true"} 200.0
sglang:num_requests_total{model_name="m",is_streaming="true"} 6.0
sglang:num_requests_total{model_name="m",is_streaming="false"} 4.0
sglang:time_to_first_token_seconds_sum{model_name="m",is_streaming="true"} 1.0
sglang:time_to_first_token_seconds_count{model_name="m",is_streaming="true"} 10.0
sglang:inter_token_latency_seconds_sum{model_name="m"} 4.0
sglang:inter_token_latency_seconds_count{model_name="m"} 200.0
"""


def test_vllm_means_over_label_sets(tmp_path: Path) -> None:
    (run,) = read_results(write(tmp_path / "metrics.txt", VLLM))
    assert (run.tool, run.model, run.completed) == ("vLLM metrics", "Qwen/Qwen3-32B", 2000)
    assert run.num_requests == MAX_REPLAYED_REQUESTS
    assert run.latencies_ms == {
        "ttft": {"mean": pytest.approx(80.0)},
        "tpot": {"mean": pytest.approx(21.0)},
        "itl": {"mean": pytest.approx(20.0)},
    }
    assert (run.mean_prompt_tokens, run.mean_output_tokens) == (800.0, 200.0)
    assert run.client_latency_s == 0.0  # the server's own clock


def test_sglang_means(tmp_path: Path) -> None:
    (run,) = read_results(write(tmp_path / "metrics.prom", SGLANG))
    assert (run.tool, run.completed) == ("SGLang metrics", 10)
    assert run.latencies_ms["ttft"]["mean"] == pytest.approx(100.0)
    assert run.latencies_ms["tpot"]["mean"] == pytest.approx(20.0)
    assert (run.mean_prompt_tokens, run.mean_output_tokens) == (100.0, 20.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# TYPE up gauge\nup 1\n", "of neither vLLM nor SGLang"),
        (VLLM + SGLANG, "of both vLLM and SGLang"),
        (VLLM + 'vllm:request_success_total{model_name="other"} 1.0\n', "several models"),
        (
            '# TYPE vllm:x gauge\nvllm:num_requests_running{model_name="m"} 0.0\n',
            "no completed request",
        ),
        ('# TYPE vllm:x gauge\nvllm:request_success_total{model_name="m"} NaN\n', "neither"),
        ('# HELP a b\nvllm:request_success_total{model_name="m"} 1e300\n', "no completed request"),
    ],
)
def test_scrapes_that_say_nothing_are_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(MalformedFile, match=said) as refused:
        read_results(write(tmp_path / "metrics.txt", text))
    assert "\n" not in str(refused.value)


def test_a_scrape_is_known_by_how_it_begins() -> None:
    assert is_metrics(VLLM)
    assert is_metrics('vllm:request_success_total{model_name="m"} 3')
    assert not is_metrics('{"a": 1}')
    assert not is_metrics("INFO 11-06 10:51:48 [gpu_worker.py:349] Available KV cache memory: 51.53 GiB")
    assert not is_metrics("[2025-05-27 20:14:38 TP0] Decode batch. #running-req: 18")
