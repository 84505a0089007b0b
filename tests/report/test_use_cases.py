"""The use cases in print: every value with its source, and the same as JSON."""

from __future__ import annotations

import json

import capacity
from capacity.report.use_cases import render_use_cases


def test_tables_have_every_value_and_its_source() -> None:
    cases = capacity.use_cases()
    table = " ".join(render_use_cases(cases, "table").split())
    assert "chat 1,155 0.96 211 0.77 ttft:p99:450ms, tpot:p99:40ms 30" in table
    assert table.count("assumed: ") == sum(
        source.startswith("assumed") for case in cases for source in case["sources"].values()
    )
    assert json.loads(render_use_cases(cases, "json")) == cases
    assert render_use_cases(cases, "csv").splitlines()[0].startswith("name,")
