"""Agentic sessions: who waits for whom, what their prompts share, and the real trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from trace_texts import agentic, infinite_cache_hit_fraction, read

from capacity.base.errors import InvalidInput
from capacity.workload import read_trace


def test_agentic_sessions_wait_for_themselves(tmp_path: Path) -> None:
    session = agentic(
        [
            [0.0, 1000, 20, -1, 0, 5.0, 0.0, None, "tool_use"],
            [8.0, 1100, 30, 0, 15, 2.0, 3.0, None, "tool_use"],
            [9.0, 140, 10, -1, 0, None, 0.0, "helper", ""],  # its opening is not the main thread's
            [12.0, 200, 10, 2, 2, 1.0, 1.5, "helper", ""],
            [20.0, 1200, 0, 1, 17, None, None, None, ""],  # failed
            [30.0, 1300, 40, 1, 17, 4.0, None, None, "end_turn"],
        ]
    )
    workload = read(tmp_path, session + agentic([], dup_of="a"))
    assert workload.after_request is not None
    assert workload.think_s is not None
    assert workload.content is not None
    assert workload.after_request.tolist() == [-1, 0, 1, 2, 1]
    assert workload.think_s.tolist() == [0, 3, 0, 1.5, 20]  # without a recorded one: since the answer at 10 s
    assert workload.arrival_s.tolist() == [0, 8, 9, 12, 30]
    assert [tokens for _, tokens in workload.content.request_segments(1)] == [100, 50, 810, 140]
    assert [tokens for _, tokens in workload.content.request_segments(2)] == [140]
    shared = workload.content.request_segments(0)[:2]
    assert workload.content.request_segments(4)[:2] == shared
    assert workload.notices[:2] == (
        "1 duplicate sessions skipped",
        "1 requests without prompt or answer (0 tokens) skipped",
    )


def test_tools_and_system_prompt_open_the_main_thread(tmp_path: Path) -> None:
    requests: list[list[object]] = [
        [0.0, 1000, 20, -1, 0, 5.0, 0.0, "helper", ""],
        [9.0, 120, 20, -1, 0, 5.0, 0.0, None, ""],
        [20.0, 1000, 20, -1, 0, 5.0, 0.0, None, ""],
        [30.0, 1000, 20, -1, 0, 5.0, 0.0, None, ""],
    ]
    workload = read(tmp_path, agentic(requests) * 2)
    assert workload.content is not None
    prompts = [workload.content.request_segments(row) for row in range(8)]
    assert [[tokens for _, tokens in prompt] for prompt in prompts[4:6]] == [[100, 50, 850]] * 2
    assert prompts[4][:2] == prompts[5][:2]
    assert [len(prompt) for prompt in prompts] == [1, 1, 1, 1, 3, 3, 1, 1]


def test_agentic_users_play_one_session_after_another(tmp_path: Path) -> None:
    def session(took_s: float) -> str:
        return agentic(
            [[0.0, 200, 1, -1, 0, took_s, 0.0, None, ""], [took_s + 1, 264, 1, 0, 3, 1.0, 1.0, None, ""]],
            system_tokens=took_s,
        )

    text = session(10) + session(1) + session(1) + session(1)
    at_once = read(tmp_path, text)
    assert (at_once.arrival_s[:4] == 0).all()
    assert any("all 4 sessions start at once" in notice for notice in at_once.notices)
    two_users = read(tmp_path, text, concurrent_sessions=2)
    assert two_users.after_request is not None
    starts = [row for row in range(8) if two_users.prompt_tokens[row] == 200]
    assert two_users.arrival_s[starts].tolist() == [0, 0, 3, 6]
    # sessions 2, 3 and 4 are short: one user plays them all, one after another
    follows = two_users.after_request[starts].tolist()
    assert follows[:2] == [-1, -1]
    assert two_users.session is not None
    assert two_users.session[follows[2:]].tolist() == [1, 2]
    assert len(read(tmp_path, text, limit=3)) == 3
    with pytest.raises(InvalidInput, match="concurrent_sessions must be"):
        read(tmp_path, text, concurrent_sessions=0)


def test_agentic_trace(shared_dir: Path) -> None:
    path = shared_dir / "traces" / "weka_agentic_compact.jsonl.gz"
    with gzip.open(path, "rt") as lines:
        sessions = [json.loads(line) for line in lines]
    requests = [request for session in sessions if session["dup_of"] is None for request in session["req"]]
    workload = read_trace(path)
    assert len(workload) == sum(request[2] > 0 for request in requests)
    assert workload.prompt_tokens.mean() == pytest.approx(117_000, rel=0.005)
    assert workload.output_tokens.mean() == pytest.approx(438, abs=0.5)
    recorded = sum(request[4] * 64 for request in requests) / sum(request[1] for request in requests)
    # tools and system prompts shared between sessions add a little to what each session has by itself
    assert recorded <= infinite_cache_hit_fraction(workload, 64) <= recorded + 0.005
    assert workload.after_request is not None
    assert int((workload.after_request < 0).sum()) == sum(session["dup_of"] is None for session in sessions)
    played = read_trace(path, concurrent_sessions=16, limit=2000)
    assert played.after_request is not None
    assert len(played) == 2000
    assert int((played.after_request < 0).sum()) == 16
