"""`capacity frontier`: the library's lines, its schema, its chart, and refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from schema_checks import validator

import capacity

ASKED = ("llama-3.1-8b", "--gpus", "h100,l40s", "--input-len", "512", "--output-len", "64")


def test_the_verb_answers_as_the_library(run: Any, tmp_path: Path) -> None:
    chart = tmp_path / "frontier.html"
    more = ("--quantizations", "default,fp8", "--loads", "1,8", "--tensor-parallel-sizes", "fewest,2")
    ran = run("frontier", *ASKED, *more, "--price", "2", "--format", "json", "--chart", str(chart))
    assert ran.code == 0, ran.err
    assert ran.err.endswith(f"written: {chart}\n")
    validator("frontier").validate(ran.json)
    direct = capacity.frontier(
        "llama-3.1-8b",
        gpus=("h100", "l40s"),
        quantizations=(None, "fp8"),
        tensor_parallel_sizes=(None, 2),
        loads=(1, 8),
        input_len=512,
        output_len=64,
        price="2",
    )
    assert ran.json == json.loads(json.dumps(direct.to_dict()))
    assert [line["tensor_parallel_size"] for line in ran.json["lines"]] == [1, 2] * 4
    assert "llama-3.1-8b" in chart.read_text(encoding="utf-8")
    assert "20 ms" in run("frontier", *ASKED, "--loads", "1,8", "--tpot", "20").out


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--tpot", "0"), "above 0 ms"),
        (("--loads", "x"), "give numbers"),
        (("--tensor-parallel-sizes", "two"), "give whole numbers such as 1,2,4, or fewest"),
        (("--goodput-target", "1"), "no such option"),
        (("--quantizations", "fp9"), "fp9"),
        (("--loads", "0"), "at least 1"),
    ],
)
def test_what_cannot_be_is_one_line(run: Any, wrong: tuple[str, ...], said: str) -> None:
    ran = run("frontier", *ASKED, *wrong)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert said.lower() in ran.err.lower()
