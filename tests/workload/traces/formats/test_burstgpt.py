"""BurstGPT's tables: an arbitrary clock, failed requests, sessions that may be missing."""

from __future__ import annotations

from pathlib import Path

from trace_texts import BURSTGPT, read


def test_burstgpt(tmp_path: Path) -> None:
    rows = "5,a,1.0,ChatGPT,472,18,490,x\n45,b,2.0,GPT-4,1087,0,1087,y\n46.5,a,,GPT-4,417,276,693,y\n"
    workload = read(tmp_path, BURSTGPT + rows)
    assert workload.arrival_s.tolist() == [0.0, 41.5]
    assert workload.output_tokens.tolist() == [18, 276]
    assert workload.session is not None
    assert workload.session.tolist() == [0, 0]
    assert workload.notices == ("1 requests without an answer (0 tokens) skipped",)
    without_sessions = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,x\n"
    )
    assert read(tmp_path, without_sessions).session is None
