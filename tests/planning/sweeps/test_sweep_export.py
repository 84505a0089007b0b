"""A sweep's rows as CSV, Parquet and HTML."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pandas
from sweep_files import make

from capacity.planning.sweeps.sweep import sweep


def test_exports(spec: Path, tmp_path: Path) -> None:
    sweep(spec, tmp_path / "s.db", export_to=tmp_path / "rows.csv")
    sweep(spec, tmp_path / "s.db", export_to=tmp_path / "rows.html")
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 18
    assert rows[0]["option.gpu"] == "h100"
    assert float(rows[0]["ttft_s.value"]) > 0
    assert (tmp_path / "rows.html").read_text().count("<tr>") == 19


def test_parquet(spec: Path, tmp_path: Path) -> None:
    sweep(spec, tmp_path / "s.db", export_to=tmp_path / "rows.parquet")
    sweep(spec, tmp_path / "s.db", export_to=tmp_path / "rows.csv")
    table = pandas.read_parquet(tmp_path / "rows.parquet")
    with (tmp_path / "rows.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert list(table.columns) == list(written[0])
    assert table["option.gpu"].tolist() == [row["option.gpu"] for row in written]
    assert table["ttft_s.value"].dtype == float
    for found, row in zip(table["ttft_s.value"], written, strict=True):
        assert (math.isnan(found) and row["ttft_s.value"] == "") or found == float(row["ttft_s.value"])


def test_a_sweep_of_mixed_types_exports_to_parquet(tmp_path: Path) -> None:
    mixed = make(vary={"max_model_len": (1024, "2k")})
    path = tmp_path / "rows.parquet"
    sweep(mixed, tmp_path / "s.db", export_to=path)
    assert pandas.read_parquet(path)["option.max_model_len"].tolist() == ["1024", "2k"]


def test_formulas_are_not_exported(tmp_path: Path) -> None:
    odd = make(vary={"engine": ("vllm", "=cmd|' /C calc'!A0", "<script>alert(1)</script>")})
    for ending in ("csv", "html"):
        sweep(odd, tmp_path / "s.db", export_to=tmp_path / f"rows.{ending}")
    assert "\n=cmd" not in (tmp_path / "rows.csv").read_text()
    assert ",=cmd" not in (tmp_path / "rows.csv").read_text()
    assert "<script>" not in (tmp_path / "rows.html").read_text()
