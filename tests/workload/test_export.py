"""Written and read again: the same requests, the same bytes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_texts import PLAIN, fuzzed, mooncake, read

from capacity.base.errors import InvalidInput, UnknownName
from capacity.workload import (
    FixedLengths,
    PromptContent,
    SteadyArrivals,
    ThinkTime,
    UniformLengths,
    Workload,
    conversations,
    random_requests,
    read_trace,
    write_csv,
    write_for_client,
    write_timed_trace,
)

WORKLOADS = st.lists(
    st.tuples(st.floats(0, 1e7), st.integers(1, 10**6), st.integers(1, 10**6), st.integers(-5, 5)),
    min_size=1,
    max_size=20,
)


@fuzzed
@given(rows=WORKLOADS, ending=st.sampled_from([".csv", ".csv.gz"]), extras=st.booleans())
def test_csv_round_trip(
    tmp_path: Path, rows: list[tuple[float, int, int, int]], ending: str, extras: bool
) -> None:
    arrival_s, prompt_tokens, output_tokens, priority = zip(*sorted(rows))
    workload = Workload(
        arrival_s=arrival_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        priority=priority if extras else None,
        session=[list(dict.fromkeys(priority)).index(each) for each in priority] if extras else None,
        after_request=np.arange(len(rows)) - 1 if extras else None,
        think_s=arrival_s if extras else None,
        max_tokens=prompt_tokens if extras else None,
        adapter=prompt_tokens if extras else None,
    )
    path = tmp_path / f"trace{ending}"
    write_csv(workload, path)
    assert read_trace(path).fingerprint() == workload.fingerprint()


def test_written_files_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    workload = random_requests(
        num_requests=20, input_len=50, output_len=5, request_rate_per_s=2.0, prefix_len=40
    )
    for write, name in ((write_csv, "a.csv.gz"), (write_timed_trace, "a.jsonl.gz")):
        write(workload, tmp_path / name)
        first = (tmp_path / name).read_bytes()
        time.sleep(0.01)
        write(workload, tmp_path / name)
        assert (tmp_path / name).read_bytes() == first


PROMPTS = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 70)), min_size=1, max_size=4), min_size=1, max_size=6
)


@fuzzed
@given(prompts=PROMPTS, gaps=st.data(), block_tokens=st.sampled_from([16, 64, 512]))
def test_timed_trace_round_trip(
    tmp_path: Path, prompts: list[list[tuple[int, int]]], gaps: st.DataObject, block_tokens: int
) -> None:
    content = PromptContent.from_segments(prompts)
    workload = Workload(
        arrival_s=sorted(
            gaps.draw(st.lists(st.floats(0, 1e6), min_size=len(prompts), max_size=len(prompts)))
        ),
        prompt_tokens=content.prompt_tokens,
        output_tokens=np.arange(len(prompts)) + 1,
        content=content,
    )
    path = tmp_path / "trace.jsonl"
    arguments = write_timed_trace(workload, path, block_tokens=block_tokens)
    assert f"--timed-trace-chunk-hash-size {block_tokens} --timed-trace-sec-multiplier 1" in arguments
    again = read_trace(path, block_tokens=block_tokens, seconds_per_unit=1.0)
    assert (again.arrival_s == workload.arrival_s).all()
    assert (again.prompt_tokens == workload.prompt_tokens).all()
    assert (again.output_tokens == workload.output_tokens).all()
    assert again.content is not None
    before, after = (c.block_runs(block_tokens) for c in (content, again.content))
    renamed = {}
    for row in range(len(prompts)):
        for old, new in zip(before.request_block_ids(row), after.request_block_ids(row), strict=True):
            assert renamed.setdefault(old, new) == new
    assert len(set(renamed.values())) == len(renamed)
    write_timed_trace(again, tmp_path / "again.jsonl", block_tokens=block_tokens)
    assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()


def test_a_timed_trace_without_content_shares_nothing(tmp_path: Path) -> None:
    workload = random_requests(num_requests=4, input_len=40, output_len=5, request_rate_per_s=2.0)
    write_timed_trace(workload, tmp_path / "t.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [row["hash_ids"] for row in rows] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert read_trace(tmp_path / "t.jsonl").arrival_s.tolist() == workload.arrival_s.tolist()


def test_mooncake_comes_back_to_the_byte(tmp_path: Path) -> None:
    text = mooncake(hash_ids=[0, 1]) + mooncake(timestamp=3001, input_length=1100, hash_ids=[0, 2, 3])
    workload = read(tmp_path, text)
    write_timed_trace(workload, tmp_path / "back.jsonl", block_tokens=512, seconds_per_unit=0.001)
    assert (tmp_path / "back.jsonl").read_text() == text


def test_sessions_survive_a_csv(tmp_path: Path) -> None:
    workload = conversations(
        num_sessions=5,
        arrivals=SteadyArrivals(1.0),
        turns=UniformLengths(3, 0.5),
        user_tokens=FixedLengths(20),
        output=FixedLengths(10),
        think_time=ThinkTime(5.0),
    )
    write_csv(workload, tmp_path / "s.csv")
    again = read_trace(tmp_path / "s.csv")
    assert (again.after_request == workload.after_request).all()
    assert (again.think_s == workload.think_s).all()


def test_export_problems_are_one_line(tmp_path: Path) -> None:
    workload = random_requests(num_requests=1, input_len=1, output_len=1)
    with pytest.raises(InvalidInput, match=r"cannot write .*: Is a directory"):
        write_csv(workload, tmp_path)
    with pytest.raises(InvalidInput, match="seconds_per_unit"):
        write_timed_trace(workload, tmp_path / "x", seconds_per_unit=0.0)
    with pytest.raises(InvalidInput, match="block_tokens"):
        write_timed_trace(workload, tmp_path / "x", block_tokens=0)


def test_export_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(random_requests(num_requests=1, input_len=7, output_len=3), "-")
    assert capsys.readouterr().out == PLAIN + "0.0,7,3\n"


@pytest.mark.parametrize("client", ["vllm", "aiperf", "sglang"])
def test_what_a_client_replays_is_the_workload(tmp_path: Path, client: str) -> None:
    workload = conversations(
        num_sessions=5,
        arrivals=SteadyArrivals(2.0),
        turns=FixedLengths(2),
        user_tokens=FixedLengths(700),
        output=FixedLengths(30),
        think_time=ThinkTime(1.0),
        system_prompt_tokens=512,
    )
    path = tmp_path / "trace.jsonl"
    command = write_for_client(workload, path, client)
    read = read_trace(path)
    assert str(path) in command
    assert read.prompt_tokens.tolist() == workload.prompt_tokens.tolist()
    assert read.output_tokens.tolist() == workload.output_tokens.tolist()
    apart_s = 0.0 if client == "vllm" else 0.0005 + 1e-9  # whole milliseconds
    assert np.abs(read.arrival_s - workload.arrival_s).max() <= apart_s
    first, *_ = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    assert len(first["hash_ids"]) == -(-1212 // (16 if client == "vllm" else 512))


def test_guidellm_gets_the_same_rate_and_lengths(tmp_path: Path) -> None:
    path = tmp_path / "bench.sh"
    workload = random_requests(num_requests=400, input_len=300, output_len=40, request_rate_per_s=5.0)
    assert write_for_client(workload, path, "guidellm") == f"sh {path}"
    command = path.read_text(encoding="utf-8")
    assert f"--rate-type poisson --rate {workload.request_rate_per_s:.4g} " in command
    assert "--max-requests 400" in command
    assert "prompt_tokens=300,prompt_tokens_stdev=0,prompt_tokens_min=300" in command


def test_a_closed_loop_stays_one_for_guidellm(tmp_path: Path) -> None:
    path = tmp_path / "bench.sh"
    write_for_client(
        random_requests(num_requests=40, input_len=30, output_len=4, concurrency=8), path, "guidellm"
    )
    assert "--rate-type concurrent --rate 8 " in path.read_text(encoding="utf-8")


def test_an_unknown_client_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no benchmark client 'locust'"):
        write_for_client(
            random_requests(num_requests=4, input_len=30, output_len=4), tmp_path / "x", "locust"
        )
