"""No fit reads rows that judge predictions: each fit lists the data files that it opens."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FITS = [path for path in sorted(BENCHMARKS.glob("fit_*.py")) if path.stem != "fit_inputs"]
JUDGED = BENCHMARKS.parent / "capacity" / "answers" / "judged_runs.csv"


@pytest.mark.parametrize("fit", FITS, ids=lambda path: path.stem)
def test_every_fit_lists_its_inputs(fit: Path) -> None:
    assert (
        fit.read_text().partition('if __name__ == "__main__":\n')[2].startswith("    with listed_inputs():\n")
    )


def test_a_fit_prints_the_files_that_it_reads() -> None:
    ran = subprocess.run(
        [sys.executable, BENCHMARKS / "fit_power_cap.py"], capture_output=True, text=True, check=True
    )
    assert ran.stderr.splitlines()[-2:] == ["data files read:", "  data/power_caps.csv"]


def test_rows_that_judge_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    inputs = importlib.import_module("fit_inputs")
    evaluation, fitted = tmp_path / "evaluation" / "rows.csv", tmp_path / "rows.csv"
    evaluation.parent.mkdir()
    evaluation.write_text("tpot_ms\n")
    fitted.write_text("tpot_ms\n")
    for path in (evaluation, JUDGED):
        with pytest.raises(RuntimeError, match="must not read"), inputs.listed_inputs():
            path.read_text()
    with inputs.listed_inputs():
        fitted.read_text()
    assert capsys.readouterr().err.endswith(f"data files read:\n  {tmp_path.name}/rows.csv\n")
    assert JUDGED.read_text()  # outside of a fit
