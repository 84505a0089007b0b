"""Comparison with a real server: a run made by the simulator itself must come back, and gaps must name their cause."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from capacity_validate import compare
from capacity_validate.benchmark_results import read_results
from capacity_validate.comparison import RunComparison, inside_text
from capacity_validate.rebuilt_load import rebuild_workload
from capacity_validate.replaying import replay_metrics

import capacity
from capacity.answers.deployment_run import run_service
from capacity.answers.engine_setup import requests_of
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, Service, Traffic, build
from capacity.deployment.client_latency import USUAL_S
from capacity.pool.resolve import resolve
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.schemas import json_schema
from capacity.report.tables import render
from capacity.workload import random_requests

MODEL, GPU = "llama-3.1-8b", "h100"


def served(path: Path, *, slower: float = 1.0, later_s: float = 0.0, concurrency: int | None = None) -> Path:
    """A result file of a server that is the simulator: optionally with slower tokens, or later first ones."""
    workload = random_requests(
        num_requests=40,
        input_len=600,
        output_len=40,
        range_ratio=0.3,
        request_rate_per_s=6.0 if concurrency is None else math.inf,
        concurrency=concurrency,
        seed=3,
    )
    workload = requests_of(Traffic(), workload)  # the usual client
    records = run_service([resolve(MODEL, build(Pool, {"gpu": GPU}))], Service(), workload).records
    rows = [r for r in records if r.ttft_s is not None and r.tpot_s is not None and r.e2e_s is not None]
    ttfts = [(r.ttft_s or 0.0) + later_s for r in rows]
    gaps = [[(r.tpot_s or 0.0) * slower] * (r.output_tokens - 1) for r in rows]
    duration = max(r.finish_s or 0.0 for r in rows) - rows[0].arrival_s
    document: dict[str, Any] = {
        "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B", "num_prompts": len(rows), "completed": len(rows),
        "failed": 0, "request_rate": 6.0 if concurrency is None else "inf", "burstiness": 1.0,
        "max_concurrency": concurrency, "duration": duration, "total_input_tokens": sum(r.prompt_tokens for r in rows),
        "total_output_tokens": sum(r.output_tokens for r in rows), "request_throughput": len(rows) / duration,
        "output_throughput": sum(r.output_tokens for r in rows) / duration,
        "input_lens": [r.prompt_tokens for r in rows], "output_lens": [r.output_tokens for r in rows],
        "start_times": [r.arrival_s for r in rows], "ttfts": ttfts, "itls": gaps, "label": path.stem,
    }  # fmt: skip
    path.write_text(json.dumps(document))
    return path


def only(path: Path, **options: Any) -> RunComparison:
    (run,) = compare([path], model=MODEL, gpu=GPU, **options).runs
    return run


def test_a_run_of_the_simulator_is_predicted_exactly(tmp_path: Path) -> None:
    run = only(served(tmp_path / "r.json"))
    assert run.workload == "replayed request by request"
    for name in ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "output_throughput"):
        assert run.error(name) == pytest.approx(0.0, abs=1e-6), name
    assert run.causes == ("none: the differences are within the known error of the model",)


def test_a_closed_loop_of_the_simulator_is_predicted_exactly(tmp_path: Path) -> None:
    run = only(served(tmp_path / "r.json", concurrency=8))
    assert run.error("mean_tpot_ms") == pytest.approx(0.0, abs=1e-6)
    assert run.error("mean_ttft_ms") == pytest.approx(0.0, abs=1e-6)


def test_slow_decode_and_late_first_tokens_are_told_apart(tmp_path: Path) -> None:
    slow = only(served(tmp_path / "slow.json", slower=1.5))
    assert any("decode steps take longer" in cause for cause in slow.causes)
    late = only(served(tmp_path / "late.json", later_s=0.2))
    assert any("TTFT is 200 ms longer" in cause for cause in late.causes)
    assert not any("decode steps" in cause for cause in late.causes)


def test_throughput_outside_its_interval_is_a_gap_although_latencies_agree(tmp_path: Path) -> None:
    path = served(tmp_path / "paused.json")
    result = json.loads(path.read_text())
    for name in ("request_throughput", "output_throughput"):
        result[name] /= 3
    path.write_text(json.dumps(result | {"duration": 3 * result["duration"]}))
    run = only(path)
    assert run.error("mean_tpot_ms") == pytest.approx(0.0, abs=1e-6)
    assert [cause.partition(":")[0] for cause in run.causes] == ["none found"]


def test_fitted_overheads_recover_what_was_added(tmp_path: Path) -> None:
    files = [served(tmp_path / "a.json", later_s=0.2), served(tmp_path / "b.json", later_s=0.2)]
    answer = compare(files, model=MODEL, gpu=GPU, fit_overheads=True)
    assert answer.overheads is not None
    engine = resolve(MODEL, build(Pool, {"gpu": GPU})).engine
    own_s = engine.request_latency_s + engine.response_latency_s
    assert answer.overheads.request_s == pytest.approx(0.2 + own_s, rel=0.05)
    assert answer.overheads.fitted_to == (str(files[0]),)
    assert abs(answer.runs[1].error("mean_ttft_ms") or 1.0) < 0.02


def test_a_fitted_time_per_step_brings_slow_decode_home(tmp_path: Path) -> None:
    """Tokens that take half as long again are 1.5 times the step: the constant found is half a step."""
    files = [served(tmp_path / "a.json", slower=1.5), served(tmp_path / "b.json", slower=1.5)]
    answer = compare(files, model=MODEL, gpu=GPU, fit_overheads=True)
    assert answer.overheads is not None
    step_s = next(r.measured for r in answer.runs[0].metrics if r.name == "mean_tpot_ms") / 1.5e3
    assert 0.2 * step_s < answer.overheads.step_s < 0.6 * step_s
    assert abs(answer.runs[1].error("mean_tpot_ms") or 1.0) < 0.02


def test_a_server_log_overrides_the_estimate(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("INFO Model loading took 14.99 GiB\nINFO GPU KV cache size: 4,096 tokens\n")
    answer = compare([served(tmp_path / "r.json")], model=MODEL, gpu=GPU, server_log=log, max_model_len=4080)
    assert answer.kv_capacity_measured
    assert answer.kv_capacity_tokens == 4096
    weights = next(row for row in answer.memory if row.name == "weights_gib")
    assert weights.error == pytest.approx(0.0, abs=0.01)


def without_requests(path: Path, *lacking: str) -> Path:
    """The file without its lists, as `--save-result` alone writes it, and without the fields `lacking`."""
    document = {k: v for k, v in json.loads(path.read_text()).items() if not isinstance(v, list)}
    kept = {k: v for k, v in document.items() if k not in lacking}
    path.write_text(json.dumps({**kept, "mean_ttft_ms": 50.0, "mean_tpot_ms": 8.0}))
    return path


def test_what_a_file_lacks_is_asked_for_not_assumed(tmp_path: Path) -> None:
    path = without_requests(served(tmp_path / "r.json"), "total_input_tokens")
    with pytest.raises(InvalidInput, match=r"not contain the lengths.*: give --input-len as in"):
        only(path)
    run = only(path, input_len=600, output_len=40, random_range_ratio=0.3)
    assert run.workload.startswith("lengths and arrivals resampled")
    with pytest.raises(InvalidInput, match="no GPU"):
        compare([path], model=MODEL)
    with pytest.raises(InvalidInput, match="no result file"):
        compare([], gpu=GPU)


def test_mean_lengths_of_a_file_are_used_with_wider_intervals(tmp_path: Path) -> None:
    detailed = only(served(tmp_path / "r.json", concurrency=8))
    path = without_requests(served(tmp_path / "means.json", concurrency=8))
    means, given = only(path), only(path, random_range_ratio=0.3)
    assert means.workload.startswith("mean lengths in the file")
    assert any("lognormal lengths" in notice for notice in means.notices)
    assert not any("lognormal lengths" in notice for notice in given.notices)

    def width(run: RunComparison) -> float:
        (row,) = [row for row in run.metrics if row.name == "mean_ttft_ms"]
        return (row.high or 0.0) / (row.low or 1.0)

    assert width(means) > 1.2 * max(width(given), width(detailed))


def test_hits_of_the_prefix_cache_shorten_the_predicted_ttft(tmp_path: Path) -> None:
    (run,) = read_results(without_requests(served(tmp_path / "r.json", concurrency=8)))
    server = resolve(MODEL, build(Pool, {"gpu": GPU}))
    cold, half = (
        replay_metrics(server, rebuild_workload(replace(run, prefix_hit_rate=rate), {})[0])
        for rate in (None, 0.5)
    )
    assert half["mean_ttft_ms"] < 0.9 * cold["mean_ttft_ms"]
    assert half["total_input_tokens"] == cold["total_input_tokens"]


def test_kernel_times_are_refused_by_compare(tmp_path: Path) -> None:
    (tmp_path / "k.jsonl").write_text('{"schema": "capacity/measurements/v1"}\n')
    with pytest.raises(InvalidInput, match="times of kernels, not of requests: use `capacity calibrate`"):
        compare([tmp_path / "k.jsonl"], gpu=GPU)


def test_the_same_run_twice_is_refused_in_one_line(tmp_path: Path) -> None:
    one = served(tmp_path / "a.json")
    (tmp_path / "b.json").write_text(one.read_text())
    with pytest.raises(InvalidInput, match=r"b.json has the same content as .*a.json") as refused:
        compare([one, tmp_path / "b.json"], model=MODEL, gpu=GPU)
    assert "\n" not in str(refused.value)


def test_the_answer_has_a_schema_and_ends_in_a_sentence(tmp_path: Path) -> None:
    answer = compare([served(tmp_path / "r.json")], model=MODEL, gpu=GPU)
    document = json.loads(json.dumps(answer.to_dict()))
    assert document["schema"] == "capacity/comparison/v1"
    jsonschema.validate(json.loads(render(answer, "json")), json_schema("compare"))
    first = document["runs"][0]["metrics"][0]
    assert first["error"] == pytest.approx(0.0, abs=1e-6)
    assert first["low"] < first["measured"] < first["high"]
    assert first["inside"] is True
    said = " ".join(render(answer, "table").split())
    assert said.endswith("%. 19 of 19 measured values lie within the 90 % interval.")
    assert render(answer, "csv").count("\n") == 1 + len(answer.runs[0].metrics)


def test_intervals_are_those_of_a_simulation_of_the_same_requests(tmp_path: Path) -> None:
    """Of a server with unknown settings, as `simulate` has them by the same names, for an open and a closed loop."""
    for concurrency in (None, 8):
        path = served(tmp_path / "r.json", concurrency=concurrency)
        rows = {row.name: row for row in only(path).metrics}
        (run,) = read_results(path)
        workload = run.workload()
        assert workload is not None
        simulated = capacity.simulate(MODEL, gpu=GPU, workload=requests_of(Traffic(), workload))
        assert len(simulated.as_found_ms) == 15
        for name, quantity in simulated.as_found_ms.items():
            row = rows[name]
            assert (row.predicted, row.low, row.high) == (quantity.value, quantity.low, quantity.high), name


def test_a_client_that_is_known_narrows_the_first_token(tmp_path: Path) -> None:
    path = served(tmp_path / "r.json")
    usual, said = (
        next(row for row in run.metrics if row.name == "mean_ttft_ms")
        for run in (only(path), only(path, client_latency_s=USUAL_S))
    )
    assert usual.low is not None
    assert usual.high is not None
    assert said.predicted == pytest.approx(usual.predicted)
    assert usual.low < (said.low or 0.0)
    assert (said.high or 0.0) < usual.high


def test_what_was_measured_beyond_an_interval_is_said_and_drawn(tmp_path: Path) -> None:
    answer = compare([served(tmp_path / "slow.json", slower=1.5)], model=MODEL, gpu=GPU)
    (run,) = answer.runs
    rows = {row.name: row for row in run.metrics}
    assert rows["mean_tpot_ms"].inside is False
    assert rows["mean_ttft_ms"].inside is True
    assert inside_text(rows["mean_tpot_ms"]) == "above"
    (chart,) = answer_charts(answer)
    (bars,) = chart.figure.data
    place = next(place for place, name in enumerate(bars.y) if name.startswith("mean TPOT, ms: "))
    assert bars.y[place].endswith("outside")
    assert bars.x[place] + bars.error_x.array[place] < 0  # the whisker does not reach what was measured
    page = render(answer, "html", command="capacity compare slow.json")
    for shown in (
        "Do the predictions agree with your server?",
        "<svg",
        "90 % interval",
        "capacity compare slow.json",
        "above",
    ):
        assert shown in page
