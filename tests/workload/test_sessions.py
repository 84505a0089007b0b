"""Sessions that begin by chance: each moved as a whole, at the rate that was asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from trace_texts import agentic

from capacity.base.errors import InvalidInput
from capacity.deployment import Traffic
from capacity.simulator import EngineSetup, simulate
from capacity.step import AffineStepTimes
from capacity.workload import Workload, read_trace
from capacity.workload.request_generation import workload_of
from capacity.workload.sessions import start_sessions_at_rate

SESSION: list[list[object]] = [
    [0.0, 200, 4, -1, 0, 5.0, 0.0, None, ""],
    [9.0, 264, 4, 0, 3, 5.0, 4.0, None, ""],
    [20.0, 392, 4, 1, 4, 5.0, 6.0, None, ""],
]


def sessions(folder: Path, count: int) -> Path:
    path = folder / "sessions.jsonl"
    path.write_text("".join(agentic(SESSION, system_tokens=at) for at in range(count)))
    return path


def moved(folder: Path, count: int, rate: float, seed: int = 0) -> tuple[Workload, Workload]:
    workload = read_trace(sessions(folder, count))
    return workload, start_sessions_at_rate(workload, rate, np.random.default_rng(seed))


def test_a_session_is_moved_as_a_whole(tmp_path: Path) -> None:
    before, after = moved(tmp_path, 30, 0.1)
    assert before.session is not None
    assert after.session is not None
    assert before.content is not None
    assert after.content is not None
    assert after.after_request is not None
    for session in range(30):
        was, now = (
            np.flatnonzero(each == session).astype(np.int64) for each in (before.session, after.session)
        )
        np.testing.assert_allclose(np.diff(after.arrival_s[now]), np.diff(before.arrival_s[was]))
        assert after.prompt_tokens[now].tolist() == before.prompt_tokens[was].tolist()
        assert after.after_request[now].tolist() == [-1, *now[:2]]
        assert [after.content.request_segments(row) for row in now] == [
            before.content.request_segments(row) for row in was
        ]
    assert any("start at once" in notice for notice in before.notices)
    assert not any("start at once" in notice for notice in after.notices)


def test_they_begin_as_a_poisson_process_in_their_order(tmp_path: Path) -> None:
    _, after = moved(tmp_path, 400, 2.0)
    assert after.session is not None
    begins = np.array([after.arrival_s[after.session == session][0] for session in range(400)])
    gaps = np.diff(begins, prepend=0.0)
    assert (gaps > 0).all()
    assert stats.kstest(gaps, stats.expon(scale=0.5).cdf).pvalue > 1e-3
    one, other = (moved(tmp_path, 5, 1.0, seed)[1].fingerprint() for seed in (1, 2))
    assert one != other


def test_recorded_times_and_growing_prompts_at_once(tmp_path: Path) -> None:
    path = str(sessions(tmp_path, 4))
    waiting = workload_of(Traffic(trace=path))
    clocked = workload_of(Traffic(trace=path, trace_sessions="clock", trace_sessions_per_s=0.5))
    assert waiting.is_closed_loop
    assert not clocked.is_closed_loop
    setup = EngineSetup(step_times=AffineStepTimes(1.0, 0.0), num_blocks=1000)
    run = simulate(clocked, setup)
    np.testing.assert_allclose(run.records.arrival_ps / 1e12, clocked.arrival_s)
    third = np.flatnonzero(clocked.prompt_tokens == 392)
    assert (run.records.cached_tokens[third] == 256).all(), "four blocks of the turn before"
    held = simulate(waiting, setup).records
    second = int(np.flatnonzero(waiting.prompt_tokens == 264)[0])
    assert waiting.after_request is not None
    assert held.arrival_ps[second] == held.finish_ps[waiting.after_request[second]] + 4 * 10**12


def test_refusals(tmp_path: Path) -> None:
    workload = read_trace(sessions(tmp_path, 2))
    with pytest.raises(InvalidInput, match="above 0"):
        start_sessions_at_rate(workload, 0.0, np.random.default_rng(0))
    alone = Workload(arrival_s=np.zeros(1), prompt_tokens=np.ones(1, int), output_tokens=np.ones(1, int))
    with pytest.raises(InvalidInput, match="no sessions"):
        start_sessions_at_rate(alone, 1.0, np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="--trace-sessions-per-s applies only to a trace"):
        workload_of(Traffic(input_len=5, output_len=5, trace_sessions_per_s=1.0))
