"""The command line: its contract, its exit codes, and one line for everything that cannot be."""

from __future__ import annotations

import csv
import gzip
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import capacity
from capacity.answers.listings import gpus, models
from capacity.cli.main import main
from capacity.report.schemas import json_schema

LLAMA_8B = ("llama-3.1-8b", "--gpu", "h100")
LENGTHS = ("--input-len", "512", "--output-len", "64")


class Ran:
    """What one run of the command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        def refuse(token: str) -> None:
            raise AssertionError(f"{token} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command in this process."""

    def call(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["capacity", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return Ran(int(stopped.value.code or 0), captured.out, captured.err)

    return call


# the contract


def test_fit_answers_in_the_contracts_words(run: Any) -> None:
    ran = run("fit", *LLAMA_8B, "--format", "json")
    assert ran.code == 0
    jsonschema.validate(ran.json, json_schema("fit"))
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


@pytest.mark.parametrize("load", [("--batch-size", "8"), ("--concurrency", "8")])
def test_estimate_answers_in_the_contracts_words(run: Any, load: tuple[str, str]) -> None:
    ran = run("estimate", *LLAMA_8B, *LENGTHS, *load, "--price", "2.50", "--format", "json")
    assert ran.code == 0, ran.err
    answer = ran.json
    jsonschema.validate(answer, json_schema("estimate"))
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
    assert answer["total_output_tokens"] == 60 * 64
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


@pytest.mark.parametrize(
    ("text", "flags", "says"),
    [
        ("", (), "scenario"),
        ("[1]", (), "must be an object"),
        ("{}", (), "missing"),
        ("nonsense", (), "not JSON"),
        (json.dumps(SCENARIO), ("--policy", "vllm-v2"), "Did you mean"),
        (json.dumps(SCENARIO), ("--format", "xml"), "jsonl, table, gantt"),
        (json.dumps({**SCENARIO, "requests": 5}), (), "two"),
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


def test_vllms_spellings_are_taken(run: Any) -> None:
    ours = run(
        "fit", *LLAMA_8B, "--tensor-parallel-size", "2", "--max-num-seqs", "64", "--format", "json"
    ).json
    assert run("fit", *LLAMA_8B, "-tp", "2", "--max_num_seqs=64", "--format", "json").json == ours
    assert run("fit", "--tp=2", *LLAMA_8B, "--max_num_seqs", "64", "--format", "json").json == ours


def test_a_deployment_file_says_what_flags_say_and_flags_win(run: Any, tmp_path: Path) -> None:
    file = str(tmp_path / "mine.toml")
    flags = (*LLAMA_8B, "-tp", "2", *LENGTHS, "--concurrency", "8", "--price", "2")
    written = run("estimate", *flags, "--write-deployment", file, "--format", "json").json
    assert run("estimate", "--deployment", file, "--format", "json").json == written
    changed = run("estimate", "--deployment", file, "-tp", "1", "--format", "json").json
    assert changed["gpu"]["count"] == 1
    assert changed["input_len"] == 512
    assert run("fit", "--deployment", file).code == 0
    assert run("simulate", "--deployment", file, "--num-prompts", "3").code == 0


# exit codes and bad input


def test_what_does_not_fit_exits_1_and_says_how_far_off(run: Any) -> None:
    ran = run("fit", "llama-3.1-405b", "--gpu", "l4", "--format", "json")
    assert ran.code == 1
    assert ran.json["fits"] is False
    assert ran.json["reason"]
    ran = run("estimate", "llama-3.1-405b", "--gpu", "l4", *LENGTHS, "--batch-size", "1")
    assert ran.code == 1
    assert "DoesNotFit" in ran.err


TRACES: dict[str, bytes] = {
    "empty.csv": b"",
    "header.csv": b"arrival_s,prompt_tokens,output_tokens\n",
    "columns.csv": b"a,b,c\n1,2,3\n",
    "ragged.csv": b"arrival_s,prompt_tokens,output_tokens\n0,10,10\n1,10\n",
    "negative.csv": b"arrival_s,prompt_tokens,output_tokens\n0,-1,10\n",
    "zero.csv": b"arrival_s,prompt_tokens,output_tokens\n0,0,10\n",
    "nan.csv": b"arrival_s,prompt_tokens,output_tokens\nnan,10,10\n",
    "huge.csv": b"arrival_s,prompt_tokens,output_tokens\n0,1e400,10\n",
    "nul.csv": b"arrival_s,prompt_tokens,output_tokens\n0,1\x000,10\n",
    "cut.csv.gz": gzip.compress(b"arrival_s,prompt_tokens,output_tokens\n0,10,10\n" * 50)[:-12],
    "binary.jsonl": bytes(range(256)),
    "json.jsonl": b"{}\n",
}

BAD: list[tuple[tuple[str, ...], str]] = [
    (("fit", "lama-3.1-8b", "--gpu", "h100"), "Did you mean 'llama-3.1-8b'"),
    (("fit", "llama-3.1-8b", "--gpu", "h10"), "Did you mean"),
    (("fit", "llama-3.1-8b", "--gpu", ""), "--gpu is empty"),
    (("fit", "llama-3.1-8b", "--gpu="), "--gpu is empty"),
    (("simulate", *LLAMA_8B, *LENGTHS, "--request-rate", "1", "--slo", ""), "--slo is empty"),
    (
        ("simulate", *LLAMA_8B, *LENGTHS, "--output-len-cv", "1"),
        "without --length-distribution lognormal or gamma",
    ),
    (("simulate", *LLAMA_8B, *LENGTHS, "--arrivals", "ramp", "--on-s", "1"), "without --arrivals on-off"),
    (("simulate", *LLAMA_8B, *LENGTHS, "--recovery", "5"), "without --mean-time-between-failures-s"),
    (("fit", *LLAMA_8B, "--kv-offloading-backend", "lmcache"), "without --kv-offloading-size"),
    (("fit", "", "--gpu", "h100"), "no model"),
    (("fit", "llama-3.1-8b"), "--gpu"),
    (("fit", "--gpu", "h100"), "no model"),
    (("fit", *LLAMA_8B, "-tp", "3"), "does not divide"),
    (("fit", *LLAMA_8B, "-tp", "0"), "--tensor-parallel-size is 0"),
    (("fit", *LLAMA_8B, "-pp", "64"), "exceeds the 32 layers"),
    (("fit", *LLAMA_8B, "--engine", "vlm"), "Did you mean 'vllm'"),
    (("fit", *LLAMA_8B, "--engine", "vllm@0.1"), "older than every listed release"),
    (("fit", *LLAMA_8B, "--quantization", "fp9"), "Did you mean"),
    (("fit", *LLAMA_8B, "--kv-cache-dtype", "int7"), "int7"),
    (("fit", *LLAMA_8B, "--gpu-memory-utilization", "1.5"), "is 1.5"),
    (("fit", *LLAMA_8B, "--gpu-memory-utilization", "nan"), "finite"),
    (("fit", *LLAMA_8B, "--max-model-len", "1000000000"), "131072"),
    (("fit", *LLAMA_8B, "--block-size", "0"), "--block-size is 0"),
    (("fit", *LLAMA_8B, "--format", "xml"), "table, json, csv"),
    (("fit", *LLAMA_8B, "--tensor-paralel-size", "2"), "did you mean --tensor-parallel-size"),
    (("fit", *LLAMA_8B, "-tp", "two"), "two"),
    (("fit", *LLAMA_8B, "--deployment", "/nonexistent.toml"), "cannot be read"),
    (("fit", *LLAMA_8B, "--profiles", "/nonexistent"), "does not exist"),
    (("fit", *LLAMA_8B, "--write-deployment", "/nonexistent/x.toml"), "cannot write"),
    (("fits", *LLAMA_8B), "fits"),
    (("estimate", *LLAMA_8B, *LENGTHS), "--batch-size"),
    (("estimate", *LLAMA_8B, *LENGTHS, "--batch-size", "1", "--concurrency", "1"), "give one of"),
    (
        ("estimate", *LLAMA_8B, "--input-len", "0", "--output-len", "1", "--batch-size", "1"),
        "--input-len is 0",
    ),
    (("estimate", *LLAMA_8B, "--input-len", "10", "--batch-size", "1"), "--output-len"),
    (("estimate", *LLAMA_8B, "--isl", "131072", "--osl", "1", "--batch-size", "1"), "max_model_len"),
    (("estimate", *LLAMA_8B, *LENGTHS, "--batch-size", "100000"), "max_num_seqs"),
    (("estimate", *LLAMA_8B, *LENGTHS, "--batch-size", "1", "--price", "cheap"), "--price"),
    (("estimate", *LLAMA_8B, *LENGTHS, "--batch-size", "1", "--price-tier", "free"), "price"),
    (("simulate", *LLAMA_8B), "no traffic"),
    (("simulate", *LLAMA_8B, *LENGTHS, "--request-rate", "0"), "--request-rate is 0"),
    (("simulate", *LLAMA_8B, *LENGTHS, "--request-rate", "-1"), "--request-rate is -1"),
    (("simulate", *LLAMA_8B, *LENGTHS, "--request-rate", "nan"), "--request-rate is nan"),
    (("simulate", *LLAMA_8B, *LENGTHS, "--num-prompts", "0"), "num"),
    (("simulate", *LLAMA_8B, *LENGTHS, "--batch-size", "4"), "--batch-size"),
    (("simulate", *LLAMA_8B, *LENGTHS, "--trace", "x.csv"), "leave out --input-len"),
    (("simulate", *LLAMA_8B, "--trace", "/nonexistent.csv"), "nonexistent"),
    (("simulate", *LLAMA_8B, *LENGTHS, "--goodput", "speed:5"), "speed"),
    (("simulate", *LLAMA_8B, *LENGTHS, "--burstiness", "0"), "--burstiness is 0"),
    (("simulate", *LLAMA_8B, *LENGTHS, "--random-range-ratio", "1"), "--random-range-ratio is 1"),
    (("schema", "fits"), "Did you mean 'fit'"),
]


@pytest.mark.parametrize(
    ("arguments", "says"), BAD, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_bad_input_gets_one_line_and_exit_2(run: Any, arguments: tuple[str, ...], says: str) -> None:
    ran = run(*arguments)
    assert ran.code == 2, ran.out
    assert says in ran.err
    assert len(ran.err.splitlines()) == 1
    assert ran.out == ""


@pytest.mark.parametrize("name", TRACES)
def test_a_bad_trace_gets_one_line_and_exit_2(run: Any, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(TRACES[name])
    ran = run("simulate", *LLAMA_8B, "--trace", str(path))
    assert ran.code == 2
    assert name in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    "text", ["", "[]", "nul", '{"model_type": "nonesuch"}', "[" * 5000, '{"model_type": NaN}']
)
def test_a_bad_config_gets_one_line_and_exit_2(run: Any, tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    ran = run("fit", str(path), "--gpu", "h100")
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1


# the shell


def shell(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "capacity", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def test_a_trace_comes_from_stdin() -> None:
    trace = "arrival_s,prompt_tokens,output_tokens\n0,100,5\n0.5,50,3\n"
    ran = shell("simulate", *LLAMA_8B, "--trace", "-", "--format", "json", input=trace)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["completed"] == 2


def test_output_into_a_closed_pipe_is_quiet() -> None:
    ran = subprocess.run(
        f"{sys.executable} -m capacity models --format json | head -c 10",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in ran.stderr


def least_cpu_s(*arguments: str) -> float:
    """CPU seconds of one run, the least of five: wall time on an idle machine, without the noise of a busy one."""
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert shell(*arguments).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(spent)


def test_answers_come_at_once() -> None:
    assert least_cpu_s("--help") < 0.5
    assert least_cpu_s("estimate", *LLAMA_8B, *LENGTHS, "--concurrency", "32") < 1.0


def test_the_hash_seed_changes_nothing() -> None:
    command = (
        "simulate",
        *LLAMA_8B,
        *LENGTHS,
        "--request-rate",
        "30",
        "--num-prompts",
        "40",
        "--format",
        "json",
    )
    outputs = {
        shell(*command, env={**os.environ, "PYTHONHASHSEED": seed}).stdout for seed in ("0", "1", "99")
    }
    assert len(outputs) == 1
    assert outputs != {""}


def test_explain_adds_up_and_points_the_right_way(run: Any) -> None:
    command = ("explain", "llama-3.1-70b", "--gpu", "h100", "-tp", "4", *LENGTHS, "--concurrency", "8")
    answer = run(*command, "--format", "json").json
    jsonschema.validate(answer, json_schema("explain"))
    assert sum(answer["prefill"].values()) == pytest.approx(1)
    assert sum(answer["decode"].values()) == pytest.approx(1)
    by_name = {response["resource"]: response for response in answer["responses"]}
    for name in ("HBM bandwidth", "compute rate", "link bandwidth", "host time"):
        assert by_name[name]["tpot"] <= 0
        assert by_name[name]["ttft"] <= 0
    assert by_name["HBM bandwidth"]["tpot"] < by_name["compute rate"]["tpot"]
    assert by_name["requests at a time"]["cost_per_token"] < 0
    assert "What would help" in run(*command).out


def test_a_run_leaves_its_requests_its_series_and_its_steps_as_files(run: Any, tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.out" for name in ("records", "series", "timeline")}
    flags = [part for name, path in paths.items() for part in (f"--{name}", str(path))]
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
    for name in paths:
        ran = run("simulate", *load, f"--{name}", "/nonexistent/file")
        assert ran.code == 2
        assert "cannot write" in ran.err


def test_a_pasted_command_is_taken_and_flags_win(run: Any) -> None:
    pasted = "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --max-model-len 8192 --port 8000"
    ran = run("fit", "--from-vllm", pasted, "--gpu", "h100", "--format", "json")
    assert ran.json["gpu"]["count"] == 2
    assert ran.json["max_model_len"] == 8192
    assert ran.err == "ignored: --port 8000\n"
    ran = run(
        "estimate",
        "--from-vllm",
        pasted,
        "--gpu",
        "h100",
        "-tp",
        "1",
        *LENGTHS,
        "--concurrency",
        "4",
        "--format",
        "json",
    )
    assert ran.json["gpu"]["count"] == 1


def test_the_version_is_the_packages(run: Any) -> None:
    assert run("--version").out.startswith("llm-capacity ")
