"""The table of a cache's curve."""

from __future__ import annotations

import json
from pathlib import Path

import capacity
from capacity.report.tables import render as render_answer


def test_no_limit_is_the_last_line_and_savings_only_of_a_pool(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    request = {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}
    trace.write_text("\n".join(json.dumps(request | {"timestamp": 1000 * second}) for second in range(2)))
    answer = capacity.cache_curve(str(trace), capacities_tokens=(512, 1024), plans=["grok"])
    shown = render_answer(answer, "table")
    assert [line.split()[0] for line in shown.splitlines() if line.strip().endswith("%")][:2] == ["512", "1K"]
    assert "no limit" in shown
    assert "50.0%" in shown  # the second prompt, whole
    assert "grok" in shown
    assert "of prefill time" not in shown
