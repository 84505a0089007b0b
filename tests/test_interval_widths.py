"""The intervals of ordinary questions are narrow enough to decide with: `benchmarks/interval_widths.py`."""

from __future__ import annotations

import importlib
from pathlib import Path
from statistics import median

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_half_widths_of_ordinary_questions_stay_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Medians of dense models and experts. TTFT's target of 40 % is missed: such intervals held too few."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    widths = importlib.import_module("interval_widths")
    models = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b")
    rows = list(widths.half_widths(models, ("h100", "b200"), (1, 16)))
    assert len(rows) == len(models) * 4
    assert median(row[3] for row in rows) <= 0.5
    assert median(row[4] for row in rows) <= 0.2
