"""The harness's verbs refuse in one line before anything is measured."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("validate", "--format", "csv"), "--format is 'csv': must be one of table, json"),
        (("validate", "--budget", "soon"), "soon"),
        (("calibrate", "nowhere.jsonl", "--format", "csv"), "table, json"),
        (("calibrate", "nowhere.jsonl"), "nowhere.jsonl"),
        (("compare", "nowhere.json", "--format", "yaml"), "table, json, csv, html"),
        (("compare", "nowhere.json", "--gpu", "h100"), "nowhere.json"),
        (("compare", "llama-3.1-8b", "nowhere.json", "--gpu", "h100"), "give it with --model llama-3.1-8b"),
        (("calibrate", "qwen3-8b", "--gpu", "h100"), "'qwen3-8b' is a model, not a result file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_one_line(run: Any, arguments: tuple[str, ...], says: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_compare_takes_only_the_traffic_that_a_benchmark_has(run: Any) -> None:
    assert "--burstiness" in run("compare", "nowhere.json", "--burstiness", "1").err


def test_suggested_calibration_has_the_deployment_name_and_output_of_the_command(
    run: Any, tmp_path: Path
) -> None:
    now = tmp_path / "now.toml"
    load = ("--input-len", "512", "--output-len", "64", "--request-rate", "4")
    assert run("estimate", "llama-3.1-8b", "--gpu", "h100", *load, "--output", str(now)).code == 0
    folder = str(tmp_path / "my profiles")
    chosen = ("--deployment", str(now), "-tp", "2", "--name", "test", "--output", folder)
    printed = run("calibrate", "--suggest", *chosen).out
    words = shlex.split(printed[printed.index("capacity calibrate") :])
    assert words[:3] == ["capacity", "calibrate", "run-1.json"]
    flags = [word for word in words[words.index("--deployment") :] if word != "\n"]  # continued lines
    expected = ["--deployment", str(now), "--tensor-parallel-size", "2", "--name", "test", "--output", folder]
    assert flags == expected
    code, _, err = run(*(word for word in words[1:] if word != "\n"))  # complete, but without results
    assert code == 2
    assert err.splitlines()[-1].startswith("MalformedFile: run-1.json")
