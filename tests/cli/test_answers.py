"""The first verbs: answers in the contract's words, files beside them, and nothing answered in silence."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from schema_checks import validator

import capacity
from capacity.answers.listings import gpus, models
from capacity.report.display import time_and_interval
from capacity.report.tables import render
from capacity.simulator.core import library

LLAMA_8B = ("llama-3.1-8b", "--gpu", "h100")


LENGTHS = ("--input-len", "512", "--output-len", "64")


def test_fit_answers_in_the_contracts_words(run: Any) -> None:
    ran = run("fit", *LLAMA_8B, "--format", "json")
    assert ran.code == 0
    validator("fit").validate(ran.json)
    assert ran.json["schema"] == "capacity/fit/v1"
    assert ran.json["model"] == {
        "name": "llama-3.1-8b",
        "total_params": 8_030_261_248,
        "active_params": 8_030_261_248,
    }
    memory = ran.json["memory"]
    parts = ("weights_bytes", "activations_bytes", "overhead_bytes", "kv_cache_bytes")
    assert sum(memory[part] for part in parts) == pytest.approx(memory["usable_bytes"], abs=4)
    assert ran.json["kv_bytes_per_token"] == 2 * 32 * 8 * 128 * 2
    assert ran.json["kv_capacity_tokens"] == ran.json["kv_capacity_blocks"] * ran.json["kv_block_tokens"]


@pytest.mark.parametrize("load", [("--batch-size", "8"), ("--concurrency", "8", "--random-range-ratio", "0")])
def test_estimate_answers_in_the_contracts_words(run: Any, load: tuple[str, ...]) -> None:
    ran = run("estimate", *LLAMA_8B, *LENGTHS, *load, "--price", "2.50", "--format", "json")
    assert ran.code == 0, ran.err
    answer = ran.json
    validator("estimate").validate(answer)
    assert answer["e2e_s"]["value"] == pytest.approx(
        answer["ttft_s"]["value"] + 63 * answer["tpot_s"]["value"]
    )
    assert answer["output_tokens_per_s"]["value"] == pytest.approx(64 * answer["requests_per_s"]["value"])
    for name in ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "requests_per_s"):
        assert answer[name]["low"] < answer[name]["value"] < answer[name]["high"]
    cost = answer["cost"]
    assert cost["usd_per_hour"] == 2.5
    per_request = (
        512 * cost["usd_per_million_input_tokens"] + 64 * cost["usd_per_million_output_tokens"]
    ) / 1e6
    assert per_request == pytest.approx(2.5 / 3600 / answer["requests_per_s"]["value"])


@pytest.mark.ci
def test_every_gpu_is_compared_as_the_library_compares(run: Any) -> None:
    asked = ("llama-3.1-70b", "--gpu", "all", *LENGTHS, "--batch-size", "4", "--price-tier", "on-demand")
    ran = run("estimate", *asked, "--order", "ttft", "--format", "json")
    assert ran.code == 0
    validator("gpu-comparison").validate(ran.json)
    direct = capacity.compare_gpus(
        "llama-3.1-70b",
        order="ttft",
        input_len=512,
        output_len=64,
        batch_size=4,
        price_tier="on-demand",
    )
    assert ran.json == json.loads(json.dumps(direct.to_dict()))
    table = run("estimate", *asked).out
    assert all(row.gpu in table for row in direct.rows)
    best = direct.rows[0]
    assert best.ttft_s is not None
    assert time_and_interval(best.ttft_s)[0] in table
    assert len(run("estimate", *asked, "--format", "csv").out.splitlines()) == len(direct.rows) + 1
    alone = run("estimate", *LLAMA_8B, *LENGTHS, "--batch-size", "1", "--order", "ttft")
    assert (alone.code, alone.err.count("\n")) == (2, 1)
    assert "--gpu all" in alone.err


def test_estimate_of_users_names_the_replicas_needed(run: Any) -> None:
    asked = ("estimate", *LLAMA_8B, "--use-case", "chat", "--users", "2000", "--price-tier", "on-demand")
    assert (
        "\nneeded: 5 replicas (5 GPUs), $14,235 a month, for 66.67 requests/s within ttft:p99:450ms"
        in run(*asked).out
    )
    assert run(*asked, "--format", "json").json["replicas_needed"]["within_slo"]["replicas"] == 5
    few = run("estimate", *LLAMA_8B, *LENGTHS, "--request-rate", "2", "--format", "json").json
    assert few["replicas_needed"] is None
    refused = run("estimate", *LLAMA_8B, *LENGTHS, "--batch-size", "2", "--slo", "ttft:p95:1s")
    assert (refused.code, refused.err.count("\n")) == (2, 1)


def test_without_a_price_there_is_no_cost(run: Any) -> None:
    assert run("estimate", *LLAMA_8B, *LENGTHS, "--batch-size", "1", "--format", "json").json["cost"] is None


def test_simulate_answers_in_the_contracts_words(run: Any) -> None:
    command = ("simulate", *LLAMA_8B, *LENGTHS, "--request-rate", "20", "--num-prompts", "60", "--seed", "3")
    ran = run(*command, "--goodput", "ttft:1000", "tpot:50", "--format", "json")
    assert ran.code == 0, ran.err
    answer = ran.json
    assert answer["schema"] == "capacity/simulation/v1"
    assert answer["completed"] == 60
    assert answer["failed"] == 0
    assert answer["total_output_tokens"] == pytest.approx(60 * 64, rel=1e-3)  # the sample has the mean
    for metric in ("ttft", "tpot", "itl", "e2el"):
        for statistic in ("mean", "median", "std", "p50", "p90", "p95", "p99"):
            assert answer[f"{statistic}_{metric}_ms"] >= 0
    assert answer["request_goodput"] == pytest.approx(answer["request_throughput"])
    for name in (
        "preemptions",
        "prefix_cache_hit_fraction",
        "kv_utilization_mean",
        "mean_batch_size",
        "steps",
    ):
        assert answer[name] is not None
    assert run(*command, "--format", "json").json["mean_ttft_ms"] == answer["mean_ttft_ms"]


def test_python_answers_what_the_command_line_prints(run: Any) -> None:
    same: dict[str, Any] = {"gpu": "h200", "tensor_parallel_size": 2, "kv_cache_dtype": "fp8"}
    flags = ("--gpu", "h200", "-tp", "2", "--kv-cache-dtype", "fp8", "--format", "json")
    fitted = capacity.fit("llama-3.1-70b", **same)
    assert json.loads(json.dumps(fitted.to_dict())) == run("fit", "llama-3.1-70b", *flags).json
    load = {"input_len": 100, "output_len": 10, "concurrency": 4}
    estimated = capacity.estimate("llama-3.1-70b", **same, **load)
    load_flags = ("--isl", "100", "--osl", "10", "--concurrency", "4")
    assert (
        json.loads(json.dumps(estimated.to_dict()))
        == run("estimate", "llama-3.1-70b", *flags, *load_flags).json
    )
    simulated = capacity.simulate("llama-3.1-70b", **same, **load, num_prompts=12)
    ran = run("simulate", "llama-3.1-70b", *flags, *load_flags, "--num-prompts", "12")
    assert json.loads(json.dumps(simulated.to_dict())) == ran.json


def test_the_lists_have_the_contracts_keys(run: Any) -> None:
    listed = run("models", "--format", "json").json
    assert listed == models()
    assert len(listed) >= 30
    assert set(listed[0]) == {"name", "hf_id", "total_params", "active_params", "kv_bytes_per_token"}
    listed = run("gpus", "--format", "json").json
    assert listed == gpus()
    assert {
        "name",
        "memory_bytes",
        "hbm_bytes_per_s",
        "dense_flops_per_s",
        "link_bytes_per_s",
        "tdp_watts",
    } == set(listed[0])


def test_csv_and_tables_hold_the_same_answer(run: Any) -> None:
    header, row, *rest = run("fit", *LLAMA_8B, "--format", "csv").out.splitlines()
    assert "memory.kv_cache_bytes" in header.split(",")
    assert "llama-3.1-8b" in row
    assert rest == []
    table = run("fit", *LLAMA_8B).out
    assert "fits" in table
    assert "GiB" in table


def test_a_simulation_is_one_row_of_csv() -> None:
    """Every answer with a schema has rows, `Simulation` too, whose summary is made by hand."""
    found = capacity.simulate("llama-3.1-8b", gpu="h100", input_len=100, output_len=10, num_prompts=20)
    (row,) = csv.DictReader(io.StringIO(render(found, "csv")))
    assert float(row["mean_ttft_ms"]) == found.to_dict()["mean_ttft_ms"]
    assert list(found.to_frame()["completed"]) == [20]


@pytest.mark.parametrize("name", ["fit", "estimate", "simulation", "deployment"])
def test_every_schema_is_exported(run: Any, name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(run("schema", name).json)


SCENARIO = {
    "name": "two",
    "block_size": 4,
    "num_blocks": 64,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 8,
    "max_model_len": 256,
    "step_time": {"base": 0.01, "per_token": 0.001},
    "requests": [
        {"id": "a", "arrival": 0, "prompt": [[1, 10]], "max_tokens": 2},
        {"id": "b", "arrival": 0, "prompt": [[2, 3]], "max_tokens": 2},
    ],
}


def test_schedule_writes_steps_as_lines_tables_and_charts(run: Any, tmp_path: Path) -> None:
    """By hand: a fills the budget of 8, then a's last 2 tokens and b's 3 share a step, then both decode."""
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(SCENARIO))
    line = run("schedule", str(path), "--policy", "vllm-v1").json
    rows = [[row[:2] for row in step[2]] for step in line["steps"]]
    assert rows == [[["a", 8]], [["a", 2], ["b", 3]], [["a", 1], ["b", 1]]]
    assert line["status"] == "ok"
    chart = run("schedule", str(path), "--format", "gantt").out
    assert chart.splitlines()[-2:] == ["a PPd", "b  Pd"]
    assert "b:3@0" in run("schedule", str(path), "--format", "table").out
    assert run("schedule", str(path), "--policy", "vllm-v1", "--engine-loop", "events").json == line
    path.write_text(
        json.dumps({**SCENARIO, "requests": SCENARIO["requests"][:1], "long_prefill_token_threshold": 4})
    )
    chart = run("schedule", str(path), "--engine", "vllm@0.30", "--format", "gantt").out
    assert chart.splitlines()[-1] == "a PPPd"  # 0.31 is the first release that does not limit a lone request


@pytest.mark.parametrize(
    ("text", "flags", "says"),
    [
        ("", (), "scenario"),
        ("[1]", (), "must be an object"),
        ("{}", (), "missing"),
        ("nonsense", (), "not JSON"),
        (json.dumps(SCENARIO), ("--policy", "vllm-v2"), "Did you mean"),
        (json.dumps(SCENARIO), ("--policy", "vllm-v0", "--engine", "vllm"), "schedules with vllm-v1-async"),
        (json.dumps(SCENARIO), ("--format", "xml"), "jsonl, table, gantt"),
        (json.dumps(SCENARIO), ("--engine-loop", "event"), "Did you mean 'events'"),
        (json.dumps({**SCENARIO, "requests": 5}), (), "must be a list"),
    ],
)
def test_a_bad_scenario_gets_one_line_and_exit_2(
    run: Any, tmp_path: Path, text: str, flags: tuple[str, ...], says: str
) -> None:
    path = tmp_path / "scenario.json"
    path.write_text(text)
    ran = run("schedule", str(path), *flags)
    assert ran.code == 2, ran.out
    assert says in ran.err
    assert len(ran.err.splitlines()) == 1


def test_explain_adds_up_and_points_the_right_way(run: Any) -> None:
    command = ("explain", "llama-3.1-70b", "--gpu", "h100", "-tp", "4", *LENGTHS, "--concurrency", "8")
    answer = run(*command, "--format", "json").json
    validator("explain").validate(answer)
    assert sum(answer["prefill"].values()) == pytest.approx(1)
    assert sum(answer["decode"].values()) == pytest.approx(1)
    by_name = {response["resource"]: response for response in answer["responses"]}
    for name in ("HBM bandwidth", "compute rate", "link bandwidth", "host time"):
        assert by_name[name]["tpot"] <= 0
        assert by_name[name]["ttft"] <= 0
    assert by_name["HBM bandwidth"]["tpot"] < by_name["compute rate"]["tpot"]
    assert by_name["requests at a time"]["cost_per_token"] < 0
    assert "Effect of faster hardware" in run(*command).out


@pytest.mark.ci
def test_a_run_leaves_its_requests_its_series_and_its_steps_as_files(run: Any, tmp_path: Path) -> None:
    files = ("records.csv", "series.csv", "timeline.json", "gantt.html")
    paths = {file.partition(".")[0]: tmp_path / file for file in files}
    flags = [part for name, path in paths.items() for part in ("--output", f"{name}={path}")]
    load = (*LLAMA_8B, *LENGTHS, "--request-rate", "10", "--num-prompts", "20", "--format", "json")
    answer = run("simulate", *load, *flags).json
    plain = run("simulate", *load).json
    assert answer == plain  # looking on changes nothing
    header, *rows = paths["records"].read_text().splitlines()
    assert len(rows) == 20
    ttft = [float(r["first_token_s"]) - float(r["arrival_s"]) for r in csv.DictReader([header, *rows])]
    assert sum(ttft) / 20 * 1e3 == pytest.approx(answer["mean_ttft_ms"])
    samples = list(csv.DictReader(paths["series"].read_text().splitlines()))
    assert len(samples) >= int(answer["duration"])
    events = json.loads(paths["timeline"].read_text())["traceEvents"]
    assert sum(event["name"] in ("prefill", "decode", "mixed") and event["pid"] == 1 for event in events) >= 1
    lanes = paths["gantt"].read_text()
    assert "20 requests, 0 of them preempted" in lanes
    assert lanes.count("<td>prefill</td>") == 20
    for name in paths:
        ran = run("simulate", *load, f"--{name}", "/nonexistent/file")
        assert ran.code == 2
        assert "cannot write" in ran.err


TWO_POOLS = 'model = "llama-3.1-8b"\n[[pools]]\ngpu = "h100"\n[[pools]]\ngpu = "a100"\n'


ALONE = ("--input-len", "100", "--output-len", "10", "--batch-size", "1")


@pytest.mark.parametrize("arguments", [("fit",), ("estimate", *ALONE), ("explain", *ALONE)])
def test_several_pools_are_not_answered_by_the_first(
    run: Any, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    file = tmp_path / "two.toml"
    file.write_text(TWO_POOLS)
    code, out, err = run(*arguments, "--deployment", str(file))
    assert (code, out) == (2, "")
    assert "2 pools" in err


def test_a_request_longer_than_the_model_is_refused_as_estimate_refuses_it(run: Any) -> None:
    long = ("--input-len", "131070", "--output-len", "10", "--num-prompts", "5", "--request-rate", "5")
    code, out, err = run("simulate", "llama-3.1-8b", "--gpu", "h100", *long)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "131080 tokens exceeds max_model_len 131072" in err


def test_a_word_that_is_neither_term_nor_model_is_taken_for_a_term(run: Any) -> None:
    code, out, err = run("explain", "tttf")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no term 'tttf'. Did you mean 'TTFT'" in err
    assert "no GPU" in run("explain", "llama-3.1-8b")[2]


def test_replicas_that_are_lost_or_started_later_are_counted_apart(run: Any) -> None:
    load = ("--input-len", "100", "--output-len", "20", "--num-prompts", "60", "--request-rate", "10")
    spot = ("--replicas", "3", "--mtbf", "4", "--recovery", "1")
    _, out, _ = run("simulate", "llama-3.1-8b", "--gpu", "h100", *load, *spot)
    assert "on 3 replicas of 1 x h100-sxm-80gb" in out
    (row,) = [line for line in out.splitlines() if line.startswith(" replicas")]
    assert row.split()[1] == "3"
    assert " lost; " in row
    assert " started later; " in row


def test_fit_says_what_host_memory_holds(run: Any) -> None:
    _, out, _ = run("fit", "llama-3.1-8b", "--gpu", "h100", "--kv-offloading-size", "1")
    assert f"1 GiB of host memory per engine hold {2**30 // (128 * 1024):,} further tokens" in " ".join(
        out.split()
    )


def test_a_run_with_drafts_says_how_many_are_accepted(run: Any) -> None:
    load = ("--input-len", "100", "--output-len", "20", "--num-prompts", "5", "--request-rate", "5")
    drafts = ("--speculator", "ngram", "--num-speculative-tokens", "2", "--acceptance", "0.5")
    _, out, _ = run("simulate", "llama-3.1-8b", "--gpu", "h100", *load, *drafts)
    assert f"with 2 tokens: on average {1 + 0.5 + 0.25:.2f} tokens per request and step" in " ".join(
        out.split()
    )


SERVED = (*LLAMA_8B, "--isl", "200", "--osl", "20", "--rate", "20", "--num-prompts", "30", "--format", "json")


@pytest.mark.parametrize(
    "question",
    [
        ("simulate", *SERVED, "--replicas", "2"),
        ("batching", *SERVED, "--batch-size", "8"),
        ("speculate", *LLAMA_8B, "--batches", "2", "--simulate", "--format", "json"),
    ],
    ids=lambda question: question[0],
)
def test_readable_engines_give_the_same_answers(run: Any, question: tuple[str, ...]) -> None:
    assert run(*question, "--engine-loop", "events").json == run(*question).json
    refused = run(*question, "--engine-loop", "event")
    assert refused.code == 2
    assert "Did you mean 'events'? Known: auto, core, events" in refused.err


def test_an_answer_says_where_the_readable_engines_ran_unasked(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "load", lambda: None)
    said = "Simulated in Python"
    question = ("simulate", *SERVED)
    assert any(line.startswith(said) for line in run(*question).json["warnings"])
    for asked in (("--engine-loop", "events"), ("--timeline", str(tmp_path / "steps.json"))):
        assert not any(line.startswith(said) for line in run(*question, *asked).json["warnings"])
    refused = run(*question, "--engine-loop", "core")
    assert refused.code == 2
    assert "not built on this machine; use --engine-loop events" in refused.err
