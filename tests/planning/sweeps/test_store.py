"""Rows of a sweep in their store; who owns a claim: a process, by its number and the instant it began."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sweep_files import make

from capacity.planning.sweeps.store import is_alive, open_store, this_process
from capacity.planning.sweeps.sweep import run_sweep
from capacity.planning.sweeps.sweep_spec import points


def test_equal_numbers_of_other_types_are_points_of_their_own(tmp_path: Path) -> None:
    one = make(vary={"enable_prefix_caching": (True, 1)})
    assert len(points(one)) == 2
    with open_store(tmp_path / "s.db") as store:
        assert run_sweep(one, store).points == 2


@pytest.mark.skipif(os.name == "nt", reason="processes cannot be asked for here")
def test_a_process_lives_until_it_ends_and_its_number_alone_is_not_it() -> None:
    assert is_alive(this_process())
    asks = "from capacity.planning.sweeps.store import this_process as t; print(t(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", asks], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        name = other.stdout.readline().strip()
        assert is_alive(name)
        if os.path.exists("/proc/self/stat"):  # noqa: PTH110
            assert not is_alive(f"{name}0")  # began at another instant
        other.kill()
        other.wait()
    assert not is_alive(name)


@pytest.mark.parametrize("owner", ["", "|", "a|b|c", "elsewhere|1|5", f"|{2**70}|"])
def test_who_cannot_be_asked_for_counts_as_ended(owner: str) -> None:
    assert not is_alive(owner)
