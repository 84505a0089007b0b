"""Example files are what their pages read."""

from __future__ import annotations

from screenshots import example_file

import capacity


def test_the_trace_has_prefixes_that_a_cache_of_some_size_finds() -> None:
    found = [row.token_hit_fraction for row in capacity.cache_curve(str(example_file("trace"))).rows]
    assert found == sorted(found)
    assert 0.0 < found[0] < found[-1] < 1.0


def test_every_point_of_the_sweep_has_an_answer() -> None:
    rows = capacity.sweep_results(str(example_file("sweep")))
    assert len(rows) == 20
    assert {row["status"] for row in rows} == {"done"}
