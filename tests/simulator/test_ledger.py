"""The account of a run: times between a request's deliveries, KV over time, and progress."""

from __future__ import annotations

import pytest

from capacity.simulator.gap_counter import GapCounter
from capacity.simulator.ledger import EngineLedger, Ledger, Progress
from capacity.simulator.metrics import MISSING
from capacity.simulator.schedulers import Row, Sequence, Step


def one_request() -> tuple[EngineLedger, Ledger]:
    """An engine's ledger, and the columns that it writes into."""
    columns = Ledger(1)
    return EngineLedger(columns, GapCounter()), columns


def test_progress_is_reported_some_two_hundred_times() -> None:
    reports: list[tuple[int, int]] = []
    progress = Progress(1000, lambda done, total: reports.append((done, total)))
    for _ in range(1000):
        progress.completed()
    assert reports == [(done, 1000) for done in range(5, 1001, 5)]


def test_time_without_a_place_in_the_batch_ends_with_the_next_row() -> None:
    ledger, columns = one_request()
    r = Sequence(0, id=0, arrival=0, prompt_tokens=4, max_known=7, priority=0, table=None)
    ledger.record_step(Step(rows=[Row(r, 4, 0, 0, True, 0, 2)]), 10)
    ledger.record_delivery([(r, 1)], 20)
    ledger.record_step(Step(preempted=[r]), 30)
    ledger.record_step(Step(rows=[Row(r, 5, 0, 0, True, 1)]), 75)
    ledger.record_delivery([(r, 1)], 90)
    assert (columns.first_scheduled_ps[0], columns.first_token_ps[0]) == (10, 20)
    assert (columns.preemptions[0], columns.preempted_ps[0]) == (1, 45)
    assert (columns.cached_tokens[0], ledger.hit_tokens, ledger.queried_tokens) == (2, 2, 4)
    assert (ledger.steps, ledger.rows, ledger.gaps.count) == (2, 2, 1)


def test_a_request_without_a_token_is_rejected_and_not_completed() -> None:
    ledger, columns = one_request()
    r = Sequence(0, id=0, arrival=0, prompt_tokens=4, max_known=7, priority=0, table=None)
    ledger.finished(r, 50)
    assert (ledger.rejected, ledger.completed, columns.finish_ps[0]) == (1, 0, MISSING)
    r.known = 7
    ledger.finished(r, 60)
    assert (ledger.completed, columns.finish_ps[0], columns.output_tokens[0]) == (1, 60, 3)


def test_kv_use_is_blocks_times_time() -> None:
    ledger, _ = one_request()
    ledger.use_kv(10, 5)
    ledger.use_kv(2, 20)
    assert (ledger.kv_block_ps, ledger.kv_busy_ps, ledger.kv_peak_blocks) == (90, 25, 10)


def test_equal_gaps_of_one_step_are_one_entry_the_shortest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = EngineLedger(Ledger(4), GapCounter())
    added: list[tuple[int, int]] = []
    monkeypatch.setattr(ledger.gaps, "add", lambda gap, count: added.append((gap, count)))
    requests = [
        Sequence(i, id=i, arrival=0, prompt_tokens=4, max_known=7, priority=0, table=None) for i in range(4)
    ]
    for r, at_ps in zip(requests, (10, 5, 10, 10), strict=True):
        ledger.record_delivery([(r, 1)], at_ps)
    ledger.record_delivery([(r, 1) for r in requests], 30)
    assert added == [(20, 3), (25, 1)]
