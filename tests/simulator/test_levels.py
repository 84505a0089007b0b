"""Service levels held against a run's records."""

from __future__ import annotations

import numpy as np
import pytest

from capacity.base.errors import InvalidInput
from capacity.simulator.levels import evaluate_slos
from capacity.simulator.metrics import MISSING, RequestTable, summarize
from capacity.workload import parse_slos


def table(e2e_ms: list[float | None]) -> RequestTable:
    count = len(e2e_ms)
    finish = np.array([MISSING if ms is None else int(ms * 1e9) for ms in e2e_ms])
    zeros = np.zeros(count, dtype=np.int64)
    return RequestTable(
        arrival_ps=zeros,
        first_scheduled_ps=zeros,
        first_token_ps=finish,
        finish_ps=finish,
        prompt_tokens=zeros + 1,
        output_tokens=zeros + 1,
        cached_tokens=zeros,
        preemptions=zeros,
    )


def test_levels_count_what_never_ended_as_infinitely_late() -> None:
    records = table([float(ms) for ms in range(1, 100)] + [None])
    slos = parse_slos("e2el:p50:60ms ttft:p99:200ms e2el:p100:1s tpot:50")
    levels = evaluate_slos(slos, records, summarize(records))
    assert [level.met for level in levels] == [True, False, False, False]
    assert levels[0].value_ms == pytest.approx(50.5)
    assert levels[0].attained_fraction == pytest.approx(0.60)
    assert levels[2].value_ms is None
    assert levels[3].attained_fraction == pytest.approx(0.99), (
        "of a request that never ended nothing is within"
    )


def test_gap_percentiles_are_those_of_the_summary() -> None:
    records = table([1.0])
    with pytest.raises(InvalidInput, match="p50, p90, p95, p99"):
        evaluate_slos(parse_slos("itl:p80:10ms"), records, summarize(records))
