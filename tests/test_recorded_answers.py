"""Answers as they were recorded: a seam that tells when one changes, not evidence that it is right.

Where an answer is meant to change, record it again and say why in the commit:

    python tests/recorded_answers.py record tests/data/recorded_answers.json --short

`recorded_answers.py` without `--short` records hundreds more, to compare two states of the code on one machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recorded_answers import differences, short_record
from recorded_cases import CASES, SHORT

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "recorded_answers.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", SHORT)
def test_the_answer_is_the_recorded_one(name: str) -> None:
    assert differences(RECORDED[name], short_record(name)) == []


def test_every_recorded_answer_is_asked_for() -> None:
    assert set(RECORDED) == set(SHORT) <= set(CASES)
    assert len(set(CASES)) == len(CASES)


def test_a_difference_is_told_by_its_place() -> None:
    old = {"exit": "0", "sha256": "a", "numbers": {"stdout.mean_ttft_ms": 50.0}}
    assert differences(old, {**old, "numbers": {"stdout.mean_ttft_ms": 50.0 + 1e-9}}) == []
    assert differences(old, {**old, "numbers": {"stdout.mean_ttft_ms": 51.0}}) == [
        "stdout.mean_ttft_ms: 50.0 -> 51.0"
    ]
    assert differences(old, {**old, "exit": "1"}) == ["exit: '0' -> '1'"]
    assert differences(old, {**old, "sha256": "b"}) == ["sha256: 'a' -> 'b'"]
