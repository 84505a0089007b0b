"""The accuracy gate: scores by group, what counts as a regression, and that a real one fails it."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gate")


def figures(gate: Any, errors: list[float], inside: list[bool | None] | None = None) -> list[Any]:
    """One figure per error, all of one group."""
    names = {"set": "blind", "gpu": "h100", "engine": "vllm", "model_class": "dense", "source": "s"}
    held = inside or [None] * len(errors)
    return [gate.ScoredFigure(**names, metric="tpot", error=e, inside=i) for e, i in zip(errors, held)]


def test_scores_are_median_p90_and_coverage_by_group(gate: Any) -> None:
    scores = gate.score_groups(figures(gate, [-0.1, 0.2, 0.3, -0.4], [True, True, False, True]))
    assert [score.group for score in scores] == ["GPU h100", "all", "engine vllm", "model dense", "source s"]
    for score in scores:
        assert (score.rows, score.median, score.held) == (4, pytest.approx(0.25), 0.75)
        assert score.p90 == pytest.approx(0.37)


def test_groups_of_few_rows_are_left_out(gate: Any) -> None:
    assert gate.score_groups(figures(gate, [0.1] * (gate.LEAST_ROWS - 1))) == []


def test_find_regression_reports_error_coverage_and_lost_rows(gate: Any) -> None:
    before = gate.score_groups(figures(gate, [0.1, 0.12, 0.14, 0.16] * 10, [True] * 37 + [False] * 3))[0]
    assert gate.find_regression(before, before) is None
    assert gate.find_regression(replace(before, median=before.median + 0.9 * before.noise), before) is None
    assert "median" in gate.find_regression(
        replace(before, median=before.median + 1.1 * before.noise), before
    )
    assert gate.find_regression(replace(before, held=0.88), before) is None
    assert "coverage" in gate.find_regression(replace(before, held=0.80), before)
    assert gate.find_regression(replace(before, held=1.0), before) is None
    assert "no longer answered" in gate.find_regression(replace(before, rows=39), before)


def test_release_scores_survive_a_round_trip(gate: Any, tmp_path: Path) -> None:
    scores = gate.score_groups(figures(gate, [0.1, 0.2, 0.3, 0.4]))
    gate.write_scores(scores, tmp_path / "release.csv")
    read = gate.read_scores(tmp_path / "release.csv")
    assert list(read) == [score.key for score in scores]
    found = read[scores[0].key]
    assert (found.rows, found.median) == (4, pytest.approx(0.25))
    assert math.isnan(found.held)


def test_accepted_changes_are_the_rows_of_the_table(gate: Any, tmp_path: Path) -> None:
    page = tmp_path / "accuracy.md"
    table = "| set | group | metric | reason |\n| --- | --- | --- | --- |\n| blind | all | tpot | why |\n"
    page.write_text(f"# A\n| x | y | z |\n{gate.ACCEPTED_HEADING}\n\n{table}\n## Next\n| a | b | c |\n")
    assert gate.accepted_changes(page) == {("blind", "all", "tpot")}
    assert gate.accepted_changes() is not None


def test_gate_fails_when_kv_capacity_gets_worse(
    gate: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The start-up lines alone: the gate passes as they are, and fails when vLLM's capacities are 30 % too large."""
    monkeypatch.setattr(gate, "shared_folder", lambda: None)
    monkeypatch.setattr(gate.served_blind, "read_rows", lambda *_: [])
    assert gate.main([]) == 0
    lines = gate.kv_startup.score()
    larger = [replace(x, predicted=x.predicted * 1.3) if x.engine == "vllm" else x for x in lines]
    monkeypatch.setattr(gate.kv_startup, "score", lambda: larger)
    assert gate.main([]) == 1
    printed = capsys.readouterr()
    assert "worse: start-up, engine vllm, KV capacity: median error" in printed.err
    monkeypatch.setattr(gate, "accepted_changes", lambda: set(gate.read_scores()))
    assert gate.main([]) == 0
