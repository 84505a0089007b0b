"""Records to summary: vLLM's definitions, by hand and against numpy."""

from __future__ import annotations

import math

import pytest

from capacity.base.errors import InvalidInput
from capacity.simulator.gap_counter import GapCounter
from capacity.simulator.metrics import RequestRecord, RequestTable, request_latency_s, summarize


def record(
    index: int, arrival: float, first: float | None, finish: float | None, outputs: int
) -> RequestRecord:
    return RequestRecord(
        index=index,
        arrival_s=arrival,
        first_scheduled_s=arrival,
        first_token_s=first,
        finish_s=finish,
        prompt_tokens=10,
        output_tokens=outputs,
    )


THREE = [record(0, 1.0, 1.5, 2.5, 11), record(1, 2.0, 2.1, 2.1, 1), record(2, 2.5, None, None, 0)]


def test_a_summary_by_hand() -> None:
    summary = summarize(RequestTable.from_records(THREE)).to_dict()
    assert summary["duration"] == pytest.approx(1.5)  # first arrival 1.0 to last completion 2.5
    assert (summary["completed"], summary["failed"]) == (2, 1)
    assert (summary["total_input_tokens"], summary["total_output_tokens"]) == (20, 12)
    assert summary["request_throughput"] == pytest.approx(2 / 1.5)
    assert summary["total_token_throughput"] == pytest.approx(32 / 1.5)
    assert summary["mean_ttft_ms"] == pytest.approx(300)
    assert summary["mean_tpot_ms"] == pytest.approx(100)  # the request of one token has none
    assert summary["p99_e2el_ms"] == pytest.approx(100 + 0.99 * 1400)
    assert summary["std_ttft_ms"] == pytest.approx(200)
    assert summary["request_goodput"] is None


def test_a_record_says_what_never_happened() -> None:
    table = RequestTable.from_records(THREE)
    assert list(table) == THREE
    assert table[1].tpot_s is None
    assert table[2].ttft_s is table[2].e2e_s is None
    assert not table[2].completed
    assert table[-1] == THREE[2]
    assert table.finish_ps.tolist() == [
        2_500 * 10**9,
        2_100 * 10**9,
        -1,
    ]  # -1: as the compiled core writes it
    at_once = record(0, 0.0, 0.0, 0.0, 1)
    assert list(RequestTable.from_records([at_once])) == [at_once]  # 0 s is not a missing instant


def test_goodput_is_inclusive_and_counts_single_tokens_as_tpot_zero() -> None:
    table = RequestTable.from_records(THREE)
    assert summarize(table, goodput_ms={"ttft": 500, "tpot": 100}).request_goodput == pytest.approx(2 / 1.5)
    assert summarize(table, goodput_ms={"ttft": 499.9}).request_goodput == pytest.approx(1 / 1.5)
    empty = RequestTable.from_records(
        [record(0, 0.0, 2.0, 2.0, 0)]
    )  # an answer without tokens has no TPOT either
    assert summarize(empty, goodput_ms={"tpot": 100}).request_goodput == pytest.approx(1 / 2.0)
    assert summarize(empty).tpot_ms is None
    with pytest.raises(InvalidInput, match="itl"):
        summarize(table, goodput_ms={"itl": 1})


def test_nothing_completed_is_none_not_zero() -> None:
    summary = summarize(RequestTable.from_records([THREE[2]]), gaps=GapCounter())
    assert summary.ttft_ms is summary.tpot_ms is summary.itl_ms is summary.e2el_ms is None
    assert summary.request_throughput == 0
    assert summarize(RequestTable.from_records([])).completed == 0


def test_a_record_and_its_table_have_the_same_latencies() -> None:
    """TPOT of two tokens is the gap between them; the row numbers and instants before 0 s stay as they are."""
    two = record(0, -1.0, 0.5, 0.75, 2)
    assert (two.ttft_s, two.tpot_s, two.e2e_s) == (1.5, 0.25, 1.75)
    assert record(0, 1.0, 2.0, 4.0, 5).tpot_s == 0.5  # four gaps in two seconds
    assert two.cached_tokens == two.preemptions == 0
    table = RequestTable.from_records([two, *THREE[1:]])
    assert table.latency_s("tpot").tolist() == pytest.approx([0.25, math.nan, math.nan], nan_ok=True)
    assert table.latency_s("e2el").tolist() == pytest.approx([1.75, 0.1, math.nan], nan_ok=True)
    assert table.rows(table.completed).latencies("tpot", per_ps=1e-9).tolist() == [pytest.approx(250.0)]
    assert [row.index for row in table] == [0, 1, 2]


@pytest.mark.parametrize(
    ("metric", "tokens", "latency_s"),
    [("ttft", 5, 0.4), ("tpot", 5, 0.4), ("tpot", 1, None), ("e2el", 1, 2.0)],
)
def test_a_latency_of_means(metric: str, tokens: int, latency_s: float | None) -> None:
    assert request_latency_s(metric, 0.4, 2.0, tokens) == (
        None if latency_s is None else pytest.approx(latency_s)
    )
