"""A sweep's rows as CSV, Parquet and HTML, and read back; other files are refused in one line."""

from __future__ import annotations

import csv
import json
import math
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import pandas
import pytest
from sweep_files import make

import capacity
from capacity.base.errors import MalformedFile
from capacity.planning.sweeps.sweep import sweep
from capacity.planning.sweeps.sweep_results import sweep_results

SWEEP = """
schema = "capacity/sweep/v1"
question = "estimate"
[fixed]
model = "llama-3.1-8b"
input_len = 512
output_len = 128
[vary]
gpu = ["h100", "l4"]
batch_size = [1, 64]
"""


def by_point(rows: object) -> dict[tuple[object, object], Mapping[str, object]]:
    assert isinstance(rows, tuple)
    return {(row["option.gpu"], float(row["option.batch_size"])): row for row in rows}


def test_store_csv_and_json_have_the_same_points(tmp_path: Path) -> None:
    spec, store, table = tmp_path / "s.toml", tmp_path / "s.sqlite", tmp_path / "rows.csv"
    spec.write_text(SWEEP, encoding="utf-8")
    swept = capacity.sweep(spec, store, export_to=table)
    written = tmp_path / "s.json"
    written.write_text(json.dumps(swept.to_dict()), encoding="utf-8")
    wanted = by_point(swept.rows)
    assert len(wanted) == 4
    for path in (store, table, written):
        for point, row in by_point(sweep_results(path)).items():
            assert row["status"] == wanted[point]["status"]
            assert row.get("ttft_s.value") == wanted[point].get("ttft_s.value")
    assert wanted["l4", 1.0]["status"] == "does not fit"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a,b\n1,2\n", "contains no sweep points"),
        (b"", "contains no sweep points"),
        (b'{"rows": 3}', "has no rows"),
        (b'{"rows": [3]}', "has no rows"),
        (b"[1, 2", "not JSON"),
        (b'status,"a\n', "is not CSV"),
        (b"SQLite format 3\x00 and then nothing", "is not a sweep store"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(MalformedFile, match=problem):
        sweep_results(path)


def test_a_view_that_never_ends_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "hostile.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE VIEW points AS WITH RECURSIVE n(options, answer, reason) AS "
        "(SELECT '{}', '{}', NULL UNION ALL SELECT '{}', '{}', NULL FROM n) SELECT * FROM n"
    )
    connection.commit()
    connection.close()
    with pytest.raises(MalformedFile, match="has no table of points"):
        sweep_results(path)


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
