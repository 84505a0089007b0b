"""Traces of block hashes: Mooncake's and Bailian's units, what overrides them, and the published hit rates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_texts import answer_or_line, fuzzed, infinite_cache_hit_fraction, mooncake, read

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.workload import read_trace


def test_mooncake(tmp_path: Path) -> None:
    workload = read(tmp_path, mooncake() + mooncake(timestamp=3001, input_length=1100, hash_ids=[1, 2, 3]))
    assert workload.arrival_s.tolist() == [0.0, 3.001]
    assert read(tmp_path, mooncake(timestamp=9)).arrival_s.tolist() == [0.009]  # 9 * 0.001 is another float
    assert workload.content is not None
    assert workload.content.request_segments(0) == [(0, 512), (1, 88)]
    assert workload.content.request_segments(1) == [(0, 512), (1, 512), (2, 76)]
    assert workload.notices == ("timestamps read as milliseconds and blocks as 512 tokens",)


def test_bailian(tmp_path: Path) -> None:
    rows = [
        {
            "chat_id": 7,
            "parent_chat_id": -1,
            "turn": 1,
            "type": "text",
            "timestamp": 61.5,
            "input_length": 17,
        },
        {"chat_id": 8, "parent_chat_id": 7, "turn": 2, "type": "text", "timestamp": 62.0, "input_length": 16},
        {"chat_id": 9, "parent_chat_id": -1, "turn": 1, "type": "text", "timestamp": 63.0, "input_length": 5},
    ]
    hashes = [[10**30, 2], ["x"], [5]]
    text = "".join(
        json.dumps({**row, "output_length": 3, "hash_ids": ids}) + "\n" for row, ids in zip(rows, hashes)
    )
    workload = read(tmp_path, text)
    assert workload.arrival_s.tolist() == [61.5, 62.0, 63.0]
    assert workload.session is not None
    assert workload.session.tolist() == [0, 0, 2]
    assert workload.notices == ("timestamps read as seconds and blocks as 16 tokens",)
    assert workload.content is not None
    assert workload.content.request_segments(0) == [(0, 16), (1, 1)]


def test_what_clients_asked_for_is_in_every_row_or_in_none(tmp_path: Path) -> None:
    asked = mooncake(max_tokens=4096) + mooncake(timestamp=9, max_tokens=17)
    workload = read(tmp_path, asked)
    assert workload.max_tokens is not None
    assert workload.max_tokens.tolist() == [4096, 17]
    for rows in (asked + mooncake(timestamp=10), mooncake() + mooncake(timestamp=9, max_tokens=17)):
        with pytest.raises(MalformedFile, match="max_tokens must be in every row or in none"):
            read(tmp_path, rows)
    with pytest.raises(MalformedFile, match="max_tokens 0 must be at least 1 token"):
        read(tmp_path, mooncake(max_tokens=0))


def test_what_is_inferred_can_be_overridden(tmp_path: Path) -> None:
    rows = mooncake(input_length=20, hash_ids=[1, 2]) + mooncake(
        timestamp=2, input_length=30, hash_ids=[1, 3]
    )
    workload = read(tmp_path, rows, block_tokens=18, seconds_per_unit=0.5)
    assert workload.arrival_s.tolist() == [0.0, 1.0]
    assert workload.content is not None
    assert workload.content.request_segments(1) == [(0, 18), (2, 12)]
    assert workload.notices == ()
    with pytest.raises(InvalidInput, match="block_tokens must be at least 1"):
        read(tmp_path, rows, block_tokens=0)
    with pytest.raises(InvalidInput, match="seconds_per_unit must be"):
        read(tmp_path, rows, seconds_per_unit=float("nan"))


def test_coarse_clocks_are_remarked_and_spread(tmp_path: Path) -> None:
    rows = "".join(mooncake(timestamp=3000 * (row // 4), input_length=5, hash_ids=[row]) for row in range(60))
    workload = read(tmp_path, rows)
    assert "60 requests share 15 timestamps about 3 s apart" in workload.notices[-1]
    spread = read(tmp_path, rows, spread_ticks=True)
    assert np.diff(spread.arrival_s).tolist() == pytest.approx([0.75] * 59)


@fuzzed
@given(
    timestamp=st.none() | st.floats() | st.integers() | st.text(max_size=3),
    tokens=st.floats() | st.integers() | st.lists(st.integers(), max_size=2),
    hashes=st.recursive(
        st.none() | st.integers() | st.text(max_size=2), lambda inner: st.lists(inner, max_size=3)
    ),
    chat=st.none() | st.integers() | st.floats() | st.booleans(),
)
def test_no_json_ends_in_anything_but_an_answer_or_one_line(
    tmp_path: Path, timestamp: object, tokens: object, hashes: object, chat: object
) -> None:
    rows = mooncake(timestamp=timestamp, input_length=tokens, hash_ids=hashes, chat_id=chat) + mooncake(
        output_length=tokens
    )
    assert answer_or_line(tmp_path, rows)


@pytest.mark.parametrize(
    ("name", "rows", "span_s", "hits"),
    [("conversation", 12_031, 3_537, 0.374), ("synthetic", 3_993, 1_022, 0.651)],
)
def test_mooncake_traces(shared_dir: Path, name: str, rows: int, span_s: float, hits: float) -> None:
    workload = read_trace(shared_dir / "traces" / f"mooncake_{name}_trace.jsonl.gz")
    assert len(workload) == rows
    assert workload.span_s == pytest.approx(span_s, abs=0.5)
    assert infinite_cache_hit_fraction(workload, 512) == pytest.approx(
        hits, abs=1.5e-3
    )  # its last blocks are partial
    assert infinite_cache_hit_fraction(workload, 16) == pytest.approx(hits, abs=5e-4)
    if name == "conversation":
        assert workload.prompt_tokens.mean() == pytest.approx(12_035, abs=0.5)
        assert workload.output_tokens.mean() == pytest.approx(343, abs=0.5)
        assert np.percentile(workload.prompt_tokens, 99) == pytest.approx(85_000, rel=0.01)
        assert "3 s apart" in workload.notices[-1]
        spread = workload.spread_within_ticks(3.0)
        assert spread.arrival_cv is not None
        assert workload.arrival_cv is not None
        assert spread.arrival_cv < 0.5 * workload.arrival_cv
