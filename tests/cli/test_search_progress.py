"""Progress without a terminal: a line for every better answer, and one now and then."""

from __future__ import annotations

import io

import pytest

from capacity.cli import search_progress
from capacity.cli.search_progress import ProgressLines, best_text
from capacity.deployment import Pool
from capacity.planning.search.snapshot import Snapshot
from capacity.planning.space import Candidate

ONE, TWO = (Candidate(pool=Pool(gpu="h100"), replicas=count) for count in (1, 2))


def snapshot(best: Candidate | None, **fields: object) -> Snapshot:
    own: dict[str, object] = {
        "elapsed_s": 12.0, "stage": "the cheapest", "settled": 3, "engines": 1000, "simulated": 7,
        "best": best, "objective": 4.5 if best else None, "minimised": "cost",
    }  # fmt: skip
    return Snapshot(**(own | fields))  # type: ignore[arg-type]


def test_lines_tell_news_at_once_and_else_only_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(search_progress.time, "monotonic", lambda: now)
    stream = io.StringIO()
    lines = ProgressLines(stream)
    told = []
    for now, best in ((0.5, ONE), (1.5, ONE), (2.0, ONE), (3.0, TWO), (12.9, TWO), (13.1, TWO), (13.2, None)):  # noqa: B007
        lines(snapshot(best))
        told.append(stream.getvalue().count("\n"))
    assert told == [0, 1, 1, 2, 2, 3, 3]
    assert stream.getvalue().splitlines()[0] == (
        "12 s: best so far 1 x h100 TP1, checkpoint's weights, $4.50/h; "
        "the cheapest, 3 of 1,000 engine candidates complete, 7 simulated"
    )


def test_of_many_searches_in_turn_lines_come_now_and_then_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(search_progress.time, "monotonic", lambda: now)
    stream = io.StringIO()
    lines = ProgressLines(stream, every_better=False)
    for now, best in ((2.0, ONE), (3.0, TWO), (9.0, ONE), (11.0, TWO), (12.0, ONE)):  # noqa: B007
        lines(snapshot(best))
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    ("minimised", "words"),
    [("gpus", "4.5 GPUs"), ("energy", "4.500 J/output token"), ("latency", "4.50 of the limits")],
)
def test_the_best_so_far_has_what_is_minimised(minimised: str, words: str) -> None:
    assert best_text(snapshot(ONE, minimised=minimised)).endswith(words)
