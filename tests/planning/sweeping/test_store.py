"""Rows of a sweep in their store."""

from __future__ import annotations

from pathlib import Path

from sweep_files import make

from capacity.planning.sweeping.run import run_sweep
from capacity.planning.sweeping.spec import points
from capacity.planning.sweeping.store import open_store


def test_equal_numbers_of_other_types_are_points_of_their_own(tmp_path: Path) -> None:
    one = make(vary={"enable_prefix_caching": (True, 1)})
    assert len(points(one)) == 2
    with open_store(tmp_path / "s.db") as store:
        assert run_sweep(one, store).points == 2
