"""`capacity cascade`: the library's answer, its schema, its tables, and refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from schema_checks import validator

import capacity

ASKED: dict[str, Any] = {
    "gpu": "h100", "small": "llama-3.2-1b", "small_gpu": "l4", "escalation_rate": 0.3, "cache_hit_rate": 0.2,
    "input_len": 600, "output_len": 60, "num_prompts": 100, "request_rate": 60.0, "price": "h100=2,l4=0.5",
}  # fmt: skip
FLAGS = [text for name, value in ASKED.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def test_the_verb_answers_as_the_library(run: Any, tmp_path: Path) -> None:
    chart = tmp_path / "cascade.html"
    ran = run("cascade", "llama-3.1-8b", *FLAGS, "--format", "json", "--chart", str(chart))
    assert ran.code == 0, ran.err
    validator("cascade").validate(ran.json)
    assert ran.json == json.loads(json.dumps(capacity.cascade("llama-3.1-8b", **ASKED).to_dict()))
    assert "by escalation rate" in chart.read_text(encoding="utf-8")
    assert [tier["tier"] for tier in ran.json["tiers"]] == ["semantic cache", "small", "large"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--escalation-rate", "2"), "less than or equal to 1"),
        (("--escalate-by", "coin"), "answer"),
        (("--small", "nobody"), "no model"),
        (("--concurrency", "3"), "no such option"),
        (("--gpu", "h101"), "h101"),
    ],
)
def test_what_cannot_be_is_one_line(run: Any, wrong: tuple[str, ...], said: str) -> None:
    ran = run("cascade", "llama-3.1-8b", *FLAGS, *wrong)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert said.lower() in ran.err.lower()
