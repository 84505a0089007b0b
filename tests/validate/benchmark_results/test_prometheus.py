"""Scrapes of engines' metrics."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
from benchmark_files import write
from capacity_validate.benchmark_results import MeasuredRun, read_results
from capacity_validate.benchmark_results.metrics_scrape import MAX_REPLAYED_REQUESTS, is_metrics
from capacity_validate.evidence import read_evidence
from capacity_validate.server_metrics import Histogram, parse_metrics

from capacity.base.errors import InvalidInput, MalformedFile

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
    assert run.latencies_ms == {  # 1,800 of 2,000 in the bucket up to 0.1 s
        "ttft": {"mean": pytest.approx(80.0), "p50": pytest.approx(1e5 / 1800), "p90": pytest.approx(100.0)},
        "tpot": {"mean": pytest.approx(21.0)},
        "itl": {"mean": pytest.approx(20.0)},
    }
    assert (run.mean_prompt_tokens, run.mean_output_tokens) == (800.0, 200.0)
    assert run.client_latency_s == 0.0  # the server's own clock
    assert run.deviations["p90_ttft_ms"] == pytest.approx(math.log(10) / math.sqrt(12))
    assert run.requests is None  # no length histogram with bounds


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


def histogram(name: str, counts: dict[str, float], total: float) -> str:
    """A histogram as vLLM writes it; `counts`: cumulative, by upper bound."""
    label = 'model_name="m"'
    buckets = "".join(f'vllm:{name}_bucket{{{label},le="{le}"}} {n}\n' for le, n in counts.items())
    return (
        f"{buckets}vllm:{name}_count{{{label}}} {max(counts.values())}\nvllm:{name}_sum{{{label}}} {total}\n"
    )


def server_scrape(served: int, *, start_s: float = 1.79e9) -> str:
    """A vLLM server that has served this many requests; bounds and labels as in vLLM 0.33."""
    return (
        f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {start_s}\n"
        'vllm:num_requests_running{model_name="m"} 5.0\nvllm:num_requests_waiting{model_name="m"} 1.0\n'
        'vllm:cache_config_info{block_size="16",cache_dtype="fp8_e4m3",calculate_kv_scales="False",'
        'enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.85",kv_cache_size_tokens="160016",'
        'num_gpu_blocks="10001",num_gpu_blocks_override="None",sliding_window="None"} 1.0\n'
        f'vllm:request_success_total{{finished_reason="stop",model_name="m"}} {served}\n'
        f'vllm:prefix_cache_queries_total{{model_name="m"}} {800 * served}\n'
        f'vllm:prefix_cache_hits_total{{model_name="m"}} {200 * served}\n'
        f'vllm:generation_tokens_total{{model_name="m"}} {120 * served}\n'
        + histogram(
            "request_prompt_tokens", {"500.0": 0.25 * served, "1000.0": served, "+Inf": served}, 800 * served
        )
        + histogram("request_generation_tokens", {"100.0": 0, "200.0": served, "+Inf": served}, 120 * served)
        + histogram("time_to_first_token_seconds", {"0.06": 0, "0.08": served, "+Inf": served}, 0.07 * served)
        + histogram("e2e_request_latency_seconds", {"1.5": 0, "2.0": served, "+Inf": served}, 1.8 * served)
    )


def test_scrape_of_a_server_needs_no_flag(tmp_path: Path) -> None:
    path = write(tmp_path / "m.prom", server_scrape(400))
    os.utime(path, (1.79e9 + 100,) * 2)
    (run,) = read_results(path)
    assert run.requests is not None
    prompts, outputs = np.array(run.requests.prompt_tokens), np.array(run.requests.output_tokens)
    assert prompts.mean() == pytest.approx(800, rel=1e-3)
    assert np.mean(prompts <= 500) == pytest.approx(0.25, abs=0.01)
    assert prompts.max() <= 1000
    assert outputs.mean() == pytest.approx(120, rel=0.01)
    assert (outputs.min(), outputs.max()) >= (100, 120)
    assert run.request_rate == pytest.approx(4.0)  # 400 requests in 100 s
    assert run.rate_varies
    assert run.prefix_hit_rate == pytest.approx(0.25)
    assert run.deviations["p99_ttft_ms"] == pytest.approx(math.log(8 / 6) / math.sqrt(12))
    assert run.server is not None
    assert run.server.kv_fields(16) == {"num_gpu_blocks_override": 10_001}
    wanted = {"engine": "vllm", "kv_cache_dtype": "fp8_e4m3", "enable_prefix_caching": True, "block_size": 16}
    assert wanted.items() <= run.server.settings.items()
    assert "5 running, 1 waiting" in run.notices[0]


def windows(
    folder: Path, *served: int, apart_s: float = 60.0, starts: tuple[float, ...] = ()
) -> list[MeasuredRun]:
    files = []
    for i, number in enumerate(served):
        text = server_scrape(number, start_s=starts[i] if starts else 1.79e9)
        files.append(write(folder / f"{i}.prom", text + f"# scrape {i}\n"))
        os.utime(files[-1], (1.79e9 + 1000 + apart_s * i,) * 2)
    return list(read_evidence(files).runs)


def test_two_scrapes_of_one_server_are_the_time_between_them(tmp_path: Path) -> None:
    (run,) = windows(tmp_path, 400, 1000)
    assert run.completed == 600
    assert run.request_rate == pytest.approx(10.0)
    assert not run.rate_varies
    assert run.latencies_ms["ttft"]["mean"] == pytest.approx(70.0)
    assert "in the 60 s since" in run.notices[0]
    assert [each.completed for each in windows(tmp_path, 1000, 400, 1100)] == [600, 100]  # in any order


def test_scrapes_without_new_requests_or_of_another_process(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match=r"no request that .*0.prom does not contain"):
        windows(tmp_path, 400, 400)
    restarted = windows(tmp_path, 400, 500, starts=(1.79e9, 1.79e9 + 900))
    assert sorted(run.completed for run in restarted) == [400, 500]  # two servers, each since its start
    same = write(tmp_path / "copy.prom", server_scrape(7))
    with pytest.raises(InvalidInput, match="same content"):
        read_evidence([same, write(tmp_path / "again.prom", server_scrape(7))])


def test_created_samples_give_the_start_of_a_server_without_its_process_metrics() -> None:
    text = server_scrape(5).replace("process_start_time_seconds 1", "other 1")
    assert parse_metrics("m", text).start_s is None
    created = 'vllm:request_success_created{finished_reason="stop",model_name="m"} 1.79e+09\n'
    assert parse_metrics("m", text + created).start_s == 1.79e9


def test_scrapes_of_two_addresses_are_two_servers() -> None:
    one, other = (
        parse_metrics(f"http://{host}/metrics", server_scrape(n)) for host, n in (("a", 3), ("b", 9))
    )
    assert not other.follows(one)


def test_file_times_that_cannot_be_those_of_the_scrapes_are_not_used(tmp_path: Path) -> None:
    (run,) = windows(tmp_path, 400, 1000, apart_s=0.5)  # shorter than a request: the files were copied
    assert run.request_rate is None
    one, other = (parse_metrics(str(n), server_scrape(n)) for n in (3, 9))
    assert other.minus(one).served == 6
    with pytest.raises(InvalidInput, match="not an earlier scrape"):
        one.minus(other)


def test_values_spread_over_a_histogram_keep_its_mean_and_shares() -> None:
    for total in (520.0, 650.0, 990.0):  # means that the buckets allow
        made = Histogram(bounds=(10, 100, math.inf), counts=(5, 10, 10), count=10, total=total / 2)
        values = made.spread_values(1000)
        assert values.mean() == pytest.approx(total / 20)
        assert np.mean(values <= 10) == pytest.approx(0.5, abs=0.01)
    assert Histogram(bounds=(1, math.inf), counts=(0, 4), count=4, total=40).quantile(0.5) is None
