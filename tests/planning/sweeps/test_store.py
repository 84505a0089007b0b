"""Rows of a sweep in their store."""

from __future__ import annotations

from pathlib import Path

from sweep_files import make

from capacity.planning.sweeps.store import open_store
from capacity.planning.sweeps.sweep import run_sweep
from capacity.planning.sweeps.sweep_spec import points


def test_equal_numbers_of_other_types_are_points_of_their_own(tmp_path: Path) -> None:
    one = make(vary={"enable_prefix_caching": (True, 1)})
    assert len(points(one)) == 2
    with open_store(tmp_path / "s.db") as store:
        assert run_sweep(one, store).points == 2
