"""Published runs nearest to a question, each next to its prediction."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import capacity
from capacity.answers.published_runs import published_rows, relative_error
from capacity.cli.main import app


def test_a_published_run_is_its_own_nearest() -> None:
    row = next(r for r in published_rows() if r["gpu"] == "mi300x-192gb" and r["lengths"] == "fixed")
    answer = capacity.explain(
        row["model"],
        gpu=row["gpu"],
        engine=row["engine"],
        quantization=row["quantization"] or None,
        concurrency=int(row["concurrency"]),
        input_len=int(row["input_len"]),
        output_len=int(row["output_len"]),
        random_range_ratio=0.0,
        num_prompts=int(row["prompts"]),
        evidence=True,
    )
    nearest = answer.evidence[0]
    assert (nearest.url, nearest.tpot_measured_s) == (row["url"], pytest.approx(float(row["tpot_ms"]) / 1e3))
    assert nearest.tpot_s is not None
    assert answer.tpot_s == pytest.approx(nearest.tpot_s.value, rel=0.02)
    assert len({run.url for run in answer.evidence}) > 1
    assert all(run.tpot_s is not None and run.tpot_s.low < run.tpot_s.value for run in answer.evidence)


def test_another_question_has_other_evidence() -> None:
    questions = {
        "llama-3.3-70b": {"gpu": "h100", "tensor_parallel_size": 2, "quantization": "fp8"},
        "qwen3-235b-a22b": {"gpu": "b200", "tensor_parallel_size": 8},
    }
    found = [
        capacity.explain(
            model, **fields, concurrency=16, input_len=2000, output_len=500, evidence=True
        ).evidence
        for model, fields in questions.items()
    ]
    assert found[0][0].gpu.startswith("h100")
    assert found[1][0].gpu.startswith("b200")
    assert found[0][0].model == "llama-3.3-70b"


def test_evidence_is_made_only_when_it_is_asked_for() -> None:
    assert (
        capacity.explain("llama-3.1-8b", gpu="h100", concurrency=8, input_len=500, output_len=100).evidence
        == ()
    )
    words = ("explain llama-3.1-8b --gpu h100 --concurrency 8", "--input-len 500 --output-len 100 --evidence")
    line = " ".join(words).split()
    shown = CliRunner().invoke(app, line).output
    assert "Nearest published runs" in shown
    assert "https://" in shown


def test_errors_need_both_values() -> None:
    assert relative_error(None, None) is None
