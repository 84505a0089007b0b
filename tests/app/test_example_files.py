"""Example files are what their pages read."""

from __future__ import annotations

from typing import Any

import pytest
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


@pytest.mark.ci
@pytest.mark.parametrize(
    ("page", "link"),
    [("cache", {"cache_replicas": "4", "cache_saves": "true"}), ("compare", {"cmp_overheads": "true"})],
)
def test_link_is_accepted_while_the_example_is_made(dashboard: Any, page: str, link: dict[str, str]) -> None:
    assert dashboard(page, **link).refusals == []
