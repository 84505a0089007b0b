"""The table of docs/accuracy.md about what own runs teach is what its script computes."""

import re
import statistics
from pathlib import Path

import pytest

ROWS = re.compile(r"^\| (TTFT|TPOT), (the load measured|4 times its concurrency) \|(.*)\|$", re.MULTILINE)


@pytest.mark.slow
def test_the_table_of_learning_is_what_three_servers_show(benchmark: object) -> None:
    """Half-widths depend little on what was drawn; coverage needs more servers."""
    learning = benchmark("learning")  # type: ignore[operator]
    found: dict[tuple[int, int, str], list[float]] = {}
    for seed in (101, 102, 103):
        for key, half, _ in learning.widths(seed):
            found.setdefault(key, []).append(half)
    page = (Path(__file__).parent.parent / "docs" / "accuracy.md").read_text(encoding="utf-8")
    rows = ROWS.findall(page)
    assert len(rows) == 4
    for metric, load, cells in rows:
        at = learning.MEASURED if load == "the load measured" else learning.OTHER
        stated = [float(cell.split("%")[0]) / 100 for cell in cells.split("|")]
        for runs, half in zip(learning.RUNS, stated, strict=True):
            computed = statistics.median(found[runs, at, metric.lower()])
            assert computed == pytest.approx(half, rel=0.2), (metric, load, runs)
