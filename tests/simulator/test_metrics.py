"""Records to summary: vLLM's definitions, by hand and against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import capacity.simulator.metrics as metrics
from capacity.base.errors import InvalidInput
from capacity.simulator.metrics import PERCENTILES, GapCounter, RequestRecord, RequestTable, summarize


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
    summary = summarize(RequestTable.of(THREE)).to_dict()
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
    table = RequestTable.of(THREE)
    assert list(table) == THREE
    assert table[1].tpot_s is None
    assert table[2].ttft_s is table[2].e2e_s is None
    assert not table[2].completed
    assert table[-1] == THREE[2]


def test_goodput_is_inclusive_and_counts_single_tokens_as_tpot_zero() -> None:
    table = RequestTable.of(THREE)
    assert summarize(table, goodput_ms={"ttft": 500, "tpot": 100}).request_goodput == pytest.approx(2 / 1.5)
    assert summarize(table, goodput_ms={"ttft": 499}).request_goodput == pytest.approx(1 / 1.5)
    with pytest.raises(InvalidInput, match="itl"):
        summarize(table, goodput_ms={"itl": 1})


def test_nothing_completed_is_none_not_zero() -> None:
    summary = summarize(RequestTable.of([THREE[2]]), gaps=GapCounter())
    assert summary.ttft_ms is summary.tpot_ms is summary.itl_ms is summary.e2el_ms is None
    assert summary.request_throughput == 0
    assert summarize(RequestTable.of([])).completed == 0


series = st.lists(
    st.tuples(st.integers(0, 10**11), st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 30)),
    min_size=1,
    max_size=60,
)


def expand(rows: list[tuple[int, int, int, int]]) -> np.ndarray:
    return np.array([f + i * s for f, s, n, w in rows for i in range(n) for _ in range(w)], dtype=np.float64)


@given(series)
def test_gaps_equal_numpy_on_the_expanded_multiset(rows: list[tuple[int, int, int, int]]) -> None:
    gaps = GapCounter()
    gaps._FLUSH = 7  # type: ignore[misc]
    for row in rows:
        gaps.add_series(*row)
    values = expand(rows) / 1e9
    found = gaps.distribution_ms()
    assert found is not None
    assert gaps.resolution == 0
    assert gaps.count == len(values)
    assert found.mean == pytest.approx(values.mean(), rel=1e-12, abs=1e-12)
    assert found.std == pytest.approx(values.std(), rel=1e-6, abs=1e-6)
    for percent in PERCENTILES:
        assert found.percentiles[percent] == pytest.approx(
            np.percentile(values, percent), rel=1e-12, abs=1e-12
        )


@given(series)
def test_binned_gaps_stay_within_their_resolution(rows: list[tuple[int, int, int, int]]) -> None:
    gaps = GapCounter()
    gaps._FLUSH = 7  # type: ignore[misc]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "EXACT_GAPS", 3)
        for row in rows:
            gaps.add_series(*row)
        found = gaps.distribution_ms()
    assert found is not None
    values = expand(rows) / 1e9
    assert found.mean == pytest.approx(values.mean(), rel=1e-12, abs=1e-12)  # exact all the same
    for percent in PERCENTILES:
        assert found.percentiles[percent] == pytest.approx(
            np.percentile(values, percent), rel=2**-11, abs=1e-12
        )


def test_gaps_that_were_counted_but_not_yet_held_are_left_out() -> None:
    """Ctrl-C between the two: a partial run is still summarized."""
    gaps = GapCounter()
    for gap_ps in (10**9, 2 * 10**9, 3 * 10**9):
        gaps.add(gap_ps)
    gaps.count += 5
    found = gaps.distribution_ms()
    assert found is not None
    assert found.percentiles[99] == pytest.approx(2.98)
