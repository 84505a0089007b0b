"""Who owns a claim: a process, by its number and the instant it began."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from capacity.planning.sweeps.owners import is_alive, this_process


@pytest.mark.skipif(os.name == "nt", reason="processes cannot be asked for here")
def test_a_process_lives_until_it_ends_and_its_number_alone_is_not_it() -> None:
    assert is_alive(this_process())
    asks = "from capacity.planning.sweeps.owners import this_process as t; print(t(), flush=True); input()"
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
