"""Two sweeps on one store: each point is answered once, and nobody waits for the dead."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sweep_files import HEAD, make

from capacity.planning.sweeps.store import open_store, this_process
from capacity.planning.sweeps.sweep import run_sweep
from capacity.planning.sweeps.sweep_spec import points

pytestmark = pytest.mark.ci  # many seconds

SHARED = HEAD + (
    'question = "simulate"\n[fixed]\nmodel = "llama-3.2-1b"\ngpu = "h100"\ninput_len = 64\noutput_len = 8\n'
    f"request_rate = 20\nnum_prompts = 300\n[vary]\nseed = {list(range(24))}\n"
)


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "capacity", "sweep", "sweep.toml", "--store", "store.sqlite", *more],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def claims(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM claims").fetchone()[0])


@pytest.mark.slow
def test_two_sweeps_share_the_points(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(SHARED)
    both = [start(tmp_path) for _ in range(2)]
    said = [one.communicate(timeout=120) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    done = [int(re.search(r"(\d+) done", text)[1]) if "done" in text else 0 for text, _ in said]  # type: ignore[index]
    assert sum(done) == 24, said
    assert claims(tmp_path / "store.sqlite") == 0


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal")
def test_what_a_killed_sweep_was_at_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(SHARED)
    first = start(tmp_path, "--workers", "2")
    store = tmp_path / "store.sqlite"
    for _ in range(400):
        time.sleep(0.05)
        if store.exists() and store.stat().st_size and _has_claims(store):
            break
    first.kill()
    first.communicate(timeout=60)
    assert _has_claims(store)
    second = start(tmp_path)
    said, complained = second.communicate(timeout=120)
    assert second.returncode == 0, complained
    assert "24 points" in said
    assert claims(store) == 0


def _has_claims(store: Path) -> bool:
    try:
        return claims(store) > 0
    except sqlite3.Error:
        return False


def test_others_claims_are_left_alone_until_they_end(tmp_path: Path) -> None:
    spec, path = make(), tmp_path / "store.sqlite"
    everything = points(spec)
    with open_store(path) as theirs, open_store(path) as ours:
        assert theirs.claim(everything[:2]) == everything[:2]
        assert ours.claim(everything) == everything[2:]
        ours.release()
        dead = this_process().replace(f"|{os.getpid()}|", f"|{2**22 + 1}|") + "|0"
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE claims SET owner = ?", (dead,))
        swept = run_sweep(spec, ours)
        assert (swept.done, swept.skipped) == (3, 0)
    assert claims(path) == 0
