"""Results of `vllm bench serve`."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from benchmark_files import vllm_result, write
from capacity_validate.benchmark_results import read_results


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
    assert run.mean_prompt_tokens == 150


def test_the_template_of_vllm_033_is_read(shared_dir: Path) -> None:
    (run,) = read_results(shared_dir / "traces" / "vllm_bench_serve_template.json")
    assert run.tool == "vllm bench serve"
    assert run.completed == 200
