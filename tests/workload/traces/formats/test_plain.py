"""Our own table, column by column."""

from __future__ import annotations

from pathlib import Path

from trace_texts import PLAIN, read


def test_plain(tmp_path: Path) -> None:
    workload = read(tmp_path, PLAIN + "0.5,100,10\n1.25,200,20\n")
    assert workload.arrival_s.tolist() == [0.5, 1.25]
    assert workload.prompt_tokens.tolist() == [100, 200]
    assert workload.output_tokens.tolist() == [10, 20]
    assert (workload.name, workload.source, workload.notices) == ("trace", str(tmp_path / "trace.csv"), ())
