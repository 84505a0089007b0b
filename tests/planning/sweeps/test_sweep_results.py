"""A sweep's rows read back: the same from its store, its CSV and its JSON; other files are refused in one line."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import pytest

import capacity
from capacity.base.errors import MalformedFile
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
        (b"a,b\n1,2\n", "has no points of a sweep"),
        (b"", "has no points of a sweep"),
        (b'{"rows": 3}', "has no rows"),
        (b'{"rows": [3]}', "has no rows"),
        (b"[1, 2", "not JSON"),
        (b'status,"a\n', "is no CSV"),
        (b"SQLite format 3\x00 and then nothing", "is no store of sweeps"),
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
