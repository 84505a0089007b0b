"""The command line: its contract, its exit codes, and one line for everything that cannot be."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LLAMA_8B = ("llama-3.1-8b", "--gpu", "h100")
LENGTHS = ("--input-len", "512", "--output-len", "64")


def test_vllms_spellings_are_taken(run: Any) -> None:
    ours = run(
        "fit", *LLAMA_8B, "--tensor-parallel-size", "2", "--max-num-seqs", "64", "--format", "json"
    ).json
    assert run("fit", *LLAMA_8B, "-tp", "2", "--max_num_seqs=64", "--format", "json").json == ours
    assert run("fit", "--tp=2", *LLAMA_8B, "--max_num_seqs", "64", "--format", "json").json == ours


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
        ("simulate", *LLAMA_8B, *LENGTHS, "--random-range-ratio", "0.5", "--output-len-cv", "2"),
        "without --length-distribution lognormal or gamma",
    ),
    (("simulate", *LLAMA_8B, *LENGTHS, "--arrivals", "ramp", "--on-s", "1"), "without --arrivals on-off"),
    (("simulate", *LLAMA_8B, *LENGTHS, "--recovery", "5"), "without --mean-time-between-failures-s"),
    (("simulate", *LLAMA_8B, "--kv-offloading-backend", "lmcache"), "without --kv-offloading-size"),
    (("fit", "", "--gpu", "h100"), "no model"),
    (("estimate", "llama-3.1-8b", *LENGTHS, "--batch-size", "1"), "--gpu"),
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
    (
        ("fit", *LLAMA_8B, "--tensor-paralel-size", "2"),
        "No such option: --tensor-paralel-size; did you mean --tensor-parallel-size? (see",
    ),
    (("fit", *LLAMA_8B, "--input-len", "5"), "No such option: --input-len (see `capacity fit --help`)"),
    (("fit", *LLAMA_8B, "-tp", "two"), "--tensor-parallel-size is two: must be a whole number\n"),
    (("simulate", *LLAMA_8B, *LENGTHS, "--burstiness", "x"), "--burstiness is x: must be a number\n"),
    (("simulate", *LLAMA_8B, *LENGTHS, "--goodput", "500"), "'500' is not a metric and its limit"),
    (("from-launch", "vllm serve x", "--gpu", "h1000"), "no hardware profile 'h1000'. Did you mean 'h100'"),
    (("explain",), "name a term (`capacity explain ttft`)"),
    (("fit", *LLAMA_8B, "--deployment", "/nonexistent.toml"), "cannot be read"),
    (("fit", *LLAMA_8B, "--profiles", "/nonexistent"), "does not exist"),
    (("fit", *LLAMA_8B, "--write-deployment", "/nonexistent/x.toml"), "cannot write"),
    (("fits", *LLAMA_8B), "fits"),
    (("estimate", *LLAMA_8B, *LENGTHS), "--batch-size"),
    (("estimate", *LLAMA_8B, *LENGTHS, "--batch-size", "1", "--concurrency", "1"), "give exactly one of"),
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
    (("simulate", *LLAMA_8B, *LENGTHS, "--trace", "x.csv"), "--trace and --input-len exclude each other"),
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


def cpu_s(folder: Path, *arguments: str) -> float:
    """Return the CPU seconds of one run of Python: wall time on an idle machine, without its noise.

    Bytecode is kept in `folder`, as an installation has it, also where the environment forbids it.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.slow
def test_answers_come_at_once(tmp_path: Path) -> None:
    """Held to the imports that every answer needs, 0.2 s where 1 s was allowed: a busy machine takes longer for all.

    The modules that they import are the short form (tests/cli/test_verbs.py).
    """
    asked = {
        "imports": ("-c", "import numpy, pydantic, typer"),
        "help": ("-m", "capacity", "--help"),
        "answer": ("-m", "capacity", "estimate", *LLAMA_8B, *LENGTHS, "--concurrency", "32"),
    }
    rounds = [{name: cpu_s(tmp_path, *words) for name, words in asked.items()} for _ in range(4)]
    least = {name: min(each[name] for each in rounds) for name in asked}
    assert least["help"] < 2 * least["imports"], least
    assert least["answer"] < 5 * least["imports"], least


@pytest.mark.ci
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
    outputs = {shell(*command, env={**os.environ, "PYTHONHASHSEED": seed}).stdout for seed in ("0", "99")}
    assert len(outputs) == 1
    assert outputs != {""}


def test_the_version_is_the_packages(run: Any) -> None:
    first, second = run("--version").out.splitlines()
    assert first.startswith("llm-capacity ")
    assert second.startswith("data ")


def test_the_bare_command_prints_its_help_and_nothing_else(run: Any) -> None:
    code, out, err = run()
    assert (code, err) == (2, "")
    assert "simulate" in out
