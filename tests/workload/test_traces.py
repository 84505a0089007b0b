"""Trace files: every schema, the real ones against what is known of them, and everything that can be wrong."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.rows import guarded_cell
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
    write_timed_trace,
)
from capacity.workload.traces import lines, trace_titles
from capacity.workload.traces.formats import TRACE_FORMATS

PLAIN = "arrival_s,prompt_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
fuzzed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(tmp_path: Path, content: str | bytes, **options: object) -> Workload:
    path = tmp_path / "trace.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_trace(path, **options)  # type: ignore[arg-type]


def mooncake(**changes: object) -> str:
    row: dict[str, object] = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    return json.dumps({**row, **changes}) + "\n"


def agentic(requests: list[list[object]], **changes: object) -> str:
    columns = [
        "t",
        "in",
        "out",
        "prefix_parent",
        "prefix_blocks",
        "api_time",
        "think_time",
        "subagent",
        "stop",
    ]
    record: dict[str, object] = {
        "id": "a",
        "tool_tokens": 100,
        "system_tokens": 50,
        "block_size": 64,
        "dup_of": None,
    }
    return json.dumps({**record, "cols": columns, "req": requests, **changes}) + "\n"


# every schema


def test_plain(tmp_path: Path) -> None:
    workload = read(tmp_path, PLAIN + "0.5,100,10\n1.25,200,20\n")
    assert workload.arrival_s.tolist() == [0.5, 1.25]
    assert workload.prompt_tokens.tolist() == [100, 200]
    assert workload.output_tokens.tolist() == [10, 20]
    assert (workload.name, workload.source, workload.notices) == ("trace", str(tmp_path / "trace.csv"), ())


def test_azure_times_are_exact(tmp_path: Path) -> None:
    rows = (
        "2023-11-16 23:59:59.9999999,374,44\n2023-11-17 00:00:00.0000001,396,109\n2023-11-17 00:01:00,5,6\n"
    )
    workload = read(tmp_path, AZURE + rows)
    assert workload.arrival_s.tolist() == [0.0, 2e-7, 60.0000001]


def test_azure_2024_has_zones(tmp_path: Path) -> None:
    rows = "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10T02:00:01.009930+02:00,2399,6\n"
    assert read(tmp_path, AZURE + rows).arrival_s.tolist() == [0.0, 1.0]


def test_burstgpt(tmp_path: Path) -> None:
    rows = "5,a,1.0,ChatGPT,472,18,490,x\n45,b,2.0,GPT-4,1087,0,1087,y\n46.5,a,,GPT-4,417,276,693,y\n"
    workload = read(tmp_path, BURSTGPT + rows)
    assert workload.arrival_s.tolist() == [0.0, 41.5]
    assert workload.output_tokens.tolist() == [18, 276]
    assert workload.session is not None
    assert workload.session.tolist() == [0, 0]
    assert workload.notices == ("1 requests without an answer (0 tokens) left out",)
    without_sessions = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,x\n"
    )
    assert read(tmp_path, without_sessions).session is None


def test_mooncake(tmp_path: Path) -> None:
    workload = read(tmp_path, mooncake() + mooncake(timestamp=3001, input_length=1100, hash_ids=[1, 2, 3]))
    assert workload.arrival_s.tolist() == [0.0, 3.001]
    assert read(tmp_path, mooncake(timestamp=9)).arrival_s.tolist() == [0.009]  # 9 * 0.001 is another float
    assert workload.content is not None
    assert workload.content.segments_of(0) == [(0, 512), (1, 88)]
    assert workload.content.segments_of(1) == [(0, 512), (1, 512), (2, 76)]
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
    assert workload.content.segments_of(0) == [(0, 16), (1, 1)]


def test_what_is_inferred_can_be_overridden(tmp_path: Path) -> None:
    rows = mooncake(input_length=20, hash_ids=[1, 2]) + mooncake(
        timestamp=2, input_length=30, hash_ids=[1, 3]
    )
    workload = read(tmp_path, rows, block_tokens=18, seconds_per_unit=0.5)
    assert workload.arrival_s.tolist() == [0.0, 1.0]
    assert workload.content is not None
    assert workload.content.segments_of(1) == [(0, 18), (2, 12)]
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
    assert [tokens for _, tokens in workload.content.segments_of(1)] == [100, 50, 810, 140]
    assert [tokens for _, tokens in workload.content.segments_of(2)] == [140]
    shared = workload.content.segments_of(0)[:2]
    assert workload.content.segments_of(4)[:2] == shared
    assert workload.notices[:2] == (
        "1 sessions that duplicate another left out",
        "1 requests without prompt or answer (0 tokens) left out",
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
    prompts = [workload.content.segments_of(row) for row in range(8)]
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


# how files are written


@pytest.mark.parametrize(
    "content",
    [
        (PLAIN + "0,10,1\n1,20,2\n").replace("\n", "\r\n"),
        "\ufeff" + PLAIN + "0,10,1\n1,20,2\n",
        PLAIN + '"0","10","1"\n"1",20,"2"\n',
        PLAIN + "0,10,1\n\n1,20,2\n\n\n",
        "\n\n" + PLAIN + "0,10,1\n1,20,2",
        PLAIN.replace(",", ";") + "0;10;1\n1;20;2\n",
        PLAIN.replace(",", "\t") + "0\t10\t1\n1\t20\t2\n",
        "output_tokens,note,Prompt_Tokens , arrival_s\n1,=cmd,10,0\n2,\x00\xff,20,1\n",
        PLAIN + "0, 10 ,1\n1e0,+20,2\n",
    ],
)
def test_ways_to_write_the_same_table(tmp_path: Path, content: str) -> None:
    workload = read(tmp_path, content)
    assert workload.arrival_s.tolist() == [0, 1]
    assert workload.prompt_tokens.tolist() == [10, 20]
    assert workload.output_tokens.tolist() == [1, 2]
    again = read(tmp_path, gzip.compress(content.encode()))
    assert again.fingerprint() == workload.fingerprint()


def test_one_row_equal_times_and_duplicates_are_fine(tmp_path: Path) -> None:
    assert len(read(tmp_path, PLAIN + "3,10,1\n")) == 1
    assert len(read(tmp_path, PLAIN + "3,10,1\n" * 5)) == 5


def test_unsorted_is_sorted_with_a_notice(tmp_path: Path) -> None:
    workload = read(tmp_path, PLAIN + "2,30,1\n0,10,1\n0,20,1\n")
    assert workload.prompt_tokens.tolist() == [10, 20, 30]
    assert workload.notices == ("arrivals were not in order: sorted, 3 of 3 requests moved",)


def test_a_whole_number_written_as_a_float_is_taken_with_a_notice(tmp_path: Path) -> None:
    workload = read(tmp_path, PLAIN + "0,12.0,1e1\n")
    assert (workload.prompt_tokens[0], workload.output_tokens[0]) == (12, 10)
    assert workload.notices[0].startswith("line 2: ")


def test_calendar_seconds_are_counted_from_the_first(tmp_path: Path) -> None:
    workload = read(tmp_path, PLAIN + "1700000000,10,1\n1700000002.5,10,1\n")
    assert workload.arrival_s.tolist() == [0, 2.5]
    assert workload.notices == ("arrivals count from the first request, which is at 1700000000 s",)
    in_ms = mooncake(timestamp=1_700_000_000_000) + mooncake(timestamp=1_700_000_003_000)
    assert read(tmp_path, in_ms).arrival_s.tolist() == [0, 3]


def test_a_limit_takes_the_first_in_file_order(tmp_path: Path) -> None:
    assert read(tmp_path, PLAIN + "5,10,1\n1,20,1\nbroken", limit=2).prompt_tokens.tolist() == [20, 10]
    assert len(read(tmp_path, mooncake() + mooncake() + "broken", limit=2)) == 2
    assert len(read(tmp_path, mooncake() + "broken", limit=1)) == 1
    with pytest.raises(InvalidInput, match="at least 1, not 0"):
        read(tmp_path, PLAIN, limit=0)


@pytest.mark.parametrize("packed", [False, True])
def test_standard_input(monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    content = (PLAIN + "0,10,1\n").encode()
    stream = io.TextIOWrapper(io.BytesIO(gzip.compress(content) if packed else content))
    monkeypatch.setattr(sys, "stdin", stream)
    workload = read_trace("-")
    assert (len(workload), workload.source) == (1, "stdin")


# what is wrong with them

DEEP = "[" * 100_000
BAD = [
    ("", "line 1: the file is empty"),
    ("\n \n", "line 2: the file is empty"),
    (PLAIN, "line 1: the header is all there is"),
    ("0.0,100,10\n1.0,100,10\n", "line 1: there is no header"),
    ("2023-11-16 18:15:46.6805900,374,44\n", "line 1: there is no header"),
    ("a,b,c\n1,2,3\n", "line 1: columns 'a,b,c' are those of no known trace"),
    ("arrival_s,prompt_tokens\n1,2\n", "line 1: columns"),
    (PLAIN.strip() + ",arrival_s\n0,1,1,0\n", "line 1: column 'arrival_s' occurs 2 times"),
    (PLAIN + "nan,10,1\n", "line 2: arrival_s 'nan' is not finite"),
    (PLAIN + "-inf,10,1\n", "line 2: arrival_s '-inf' is not finite"),
    (PLAIN + "1e400,10,1\n", "line 2: arrival_s '1e400' is not finite"),
    (PLAIN + "-1,10,1\n", "line 2: arrival_s '-1' is negative"),
    (PLAIN + "1e200,10,1\n", "line 2: arrival_s '1e200' is too far"),
    (PLAIN + "0,10,1\n1,ten,1\n", "line 3: prompt_tokens 'ten' is not a number"),
    (PLAIN + "0,,1\n", "line 2: prompt_tokens is empty"),
    (PLAIN + "0,0,1\n", "line 2: prompt_tokens '0' must be at least 1 token"),
    (PLAIN + "0,10,0\n", "line 2: output_tokens '0' must be at least 1 token"),
    (PLAIN + "0,10,-5\n", "line 2: output_tokens '-5' is negative"),
    (PLAIN + "0,12.5,1\n", "line 2: prompt_tokens '12.5' is not a whole number"),
    (PLAIN + "0,nan,1\n", "line 2: prompt_tokens 'nan' is not finite"),
    (PLAIN + "0,1e400,1\n", "line 2: prompt_tokens '1e400' is not finite"),
    (PLAIN + "0,99999999999999999999999,1\n", "line 2: prompt_tokens '99999999999999999999999' is beyond"),
    (PLAIN + f"0,{'9' * 5000},1\n", "line 2: prompt_tokens '999"),
    (PLAIN + "0,1_000,1\n", "line 2: prompt_tokens '1_000' is not a number"),
    (PLAIN + "0,0x10,1\n", "line 2: prompt_tokens '0x10' is not a number"),
    (PLAIN + "0,١٢,1\n", "line 2: prompt_tokens"),
    (PLAIN + "0,10\x00,1\n", "line 2: prompt_tokens '10\\x00' is not a number"),
    (PLAIN.encode() + b"0,\xff\xfe,1\n", "line 2: prompt_tokens"),
    (PLAIN + "0,10\n", "line 2: has 2 fields, the header has 3"),
    (PLAIN + "0,10,1,7\n", "line 2: has 4 fields, the header has 3"),
    (PLAIN + '0,"10,1\n1,10,1\n', "unexpected end of data"),
    (PLAIN + '0,"10"x,1\n', "line 2: ',' expected after '\"'"),
    (PLAIN + '0,"' + "1" * 200_000 + '",1\n', "line 2: field larger than field limit"),
    ((PLAIN + "0,10,1\n").encode("utf-16"), "line 1: columns"),
    (b"\x89PNG\r\n\x1a\n\x00\x00", "line 1: columns"),
    (AZURE + "16/11/2023 18:15,374,44\n", "line 2: TIMESTAMP '16/11/2023 18:15' is no time such as"),
    (AZURE + "2023-13-16 18:15:46,374,44\n", "line 2: TIMESTAMP '2023-13-16 18:15:46' is no time: month"),
    (AZURE + "2023-11-16 18:15:61,374,44\n", "second must be in 0..59"),
    (AZURE + "9999-11-16 18:15:46,374,44\n", "not between the years 1971 and 2099"),
    (AZURE + "2023-11-16 18:15:46+99:00,374,44\n", "line 2: TIMESTAMP"),
    (AZURE + "2023-11-16 18:15:46.68,374,0\n", "line 2: GeneratedTokens '0' must be at least 1 token"),
    (BURSTGPT + "5,a,1,x,10,0,10,y\n", "line 2: the header is all there is: no requests"),
    ("{}\n", "line 1: keys '' are those of no known trace"),
    ('{"duration": 1.0, "completed": 3}\n', "line 1: keys 'duration, completed' are those of no known trace"),
    ("[1, 2]\n", "line 1: is no JSON object: '[1, 2]"),
    ('{"timestamp": 0, "input_length"\n', "line 1: is no JSON"),
    (DEEP, "line 1: is nested too deep"),
    ('{"timestamp": ' + DEEP + "\n", "line 1: is nested too deep"),
    (mooncake() + "oops\n", "line 2: is no JSON"),
    (mooncake() + "3\n", "line 2: is no JSON object: '3"),
    (mooncake() + '{"timestamp": 1}\n', "line 2: has no 'input_length'"),
    (mooncake(timestamp=float("nan")), "line 1: is no JSON: NaN is not a number"),
    (mooncake().replace('"timestamp": 0', '"timestamp": 1e400'), "line 1: timestamp inf is not finite"),
    (mooncake(timestamp=10**400), "line 1: timestamp 1000"),
    (mooncake(timestamp=1e200), "line 1: timestamp 1e+200 is too large"),
    (mooncake(timestamp=-1), "line 1: timestamp -1 is negative"),
    (mooncake(timestamp="0"), "line 1: timestamp '0' is not a number"),
    (mooncake(timestamp=True), "line 1: timestamp True is not a number"),
    (mooncake(timestamp=None), "line 1: timestamp None is not a number"),
    (mooncake(input_length=0), "line 1: input_length 0 must be at least 1 token"),
    (mooncake(output_length=0), "line 1: output_length 0 must be at least 1 token"),
    (mooncake(output_length=1.5), "line 1: output_length 1.5 is not a whole number"),
    (mooncake(output_length=-1), "line 1: output_length -1 is negative"),
    (mooncake(input_length=10**12), "line 1: input_length 1000000000000 is beyond"),
    (mooncake(hash_ids=5), "line 1: hash_ids 5 is not a list"),
    (mooncake(hash_ids=[1, [2]]), "line 1: hash_ids [1, [2]] is not a list of whole numbers"),
    (mooncake(hash_ids=[1.5, True]), "line 1: hash_ids [1.5, True] is not a list of whole numbers"),
    (mooncake(hash_ids=[1, 2, 3, 4, 5, 6, 7]), "line 1: hash_ids has 7 blocks for an input_length of 600"),
    (mooncake() + mooncake(input_length=1600), "line 2: hash_ids has 2 blocks for an input_length of 1600"),
    (mooncake() + mooncake(hash_ids=[]), "line 2: hash_ids must be in every row or in none"),
    (mooncake(chat_id=[1]), "line 1: chat_id [1] is not a number"),
    (agentic([]), "line 1: no request is left"),
    (agentic([], cols=["t"]), "line 1: cols ['t'] must name"),
    (agentic([], req=5), "line 1: req 5 is not a list"),
    (agentic([[1, 2]]), "line 1: req 0 is not a list of 9 values"),
    (agentic([], block_size=-64), "line 1: block_size -64 is negative"),
    (agentic([[0, "x", 1, -1, 0, 1, 0, None, ""]]), "line 1: req 0 in 'x' is not a number"),
    (agentic([[-1, 10, 1, -1, 0, 1, 0, None, ""]]), "line 1: req 0 t -1 is negative"),
    (agentic([[0, 10, 1, 0, 0, 1, 0, None, ""]]), "line 1: req 0 prefix_parent 0 is not -1 or an earlier"),
    (agentic([[0, 10, 1, -1, 1, 1, 0, None, ""]]), "line 1: req 0 prefix_blocks 1 is longer than the prompt"),
    (agentic([[0, 10, 1, -1, 0, 1, 0, [], ""]]), "line 1: req 0 subagent [] is not a name"),
    (agentic([[0, 10, 1, -1, 0, "x", 0, None, ""]]), "line 1: req 0 api_time 'x' is not a number"),
]


@pytest.mark.parametrize(("content", "part"), BAD, ids=range(len(BAD)))
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_one_line_names_file_line_field_and_value(
    tmp_path: Path, content: str | bytes, part: str, packed: bool
) -> None:
    raw = content if isinstance(content, bytes) else content.encode()
    with pytest.raises(MalformedFile) as caught:
        read(tmp_path, gzip.compress(raw) if packed else raw)
    message = str(caught.value)
    assert part in message
    assert message.startswith(f"{tmp_path / 'trace.csv'}, line ")
    assert message.isprintable()
    assert len(message) < 400


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    for path, problem in (
        (tmp_path / "absent.csv", "cannot be opened: No such file"),
        (tmp_path, "cannot be opened: Is a directory"),
        ("nul\0byte", "cannot be opened: embedded null byte"),
    ):
        with pytest.raises(MalformedFile, match=problem):
            read_trace(path)


def test_damaged_gzip(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = "".join(f"{row},{rng.integers(1, 9999)},{rng.integers(1, 9999)}\n" for row in range(3000))
    packed = gzip.compress((PLAIN + rows).encode())
    with pytest.raises(MalformedFile, match="truncated"):
        read(tmp_path, packed[: len(packed) // 2])
    with pytest.raises(MalformedFile, match="truncated"):
        read(tmp_path, packed[:-4])
    with pytest.raises(MalformedFile, match="damaged"):
        read(tmp_path, packed[:2000] + b"\xff" * 50 + packed[2050:])
    with pytest.raises(MalformedFile, match=r"damaged|truncated"):
        read(tmp_path, b"\x1f\x8b")


def test_gigantic_files_are_refused_and_can_be_read_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_ROWS", 10)
    monkeypatch.setattr(lines, "MAX_LINE_CHARACTERS", 200)
    monkeypatch.setattr(lines, "MAX_FILE_CHARACTERS", 2000)
    with pytest.raises(
        MalformedFile, match="line 12: more than 10 requests; read the first of them with a limit"
    ):
        read(tmp_path, PLAIN + "0,10,1\n" * 11)
    with pytest.raises(MalformedFile, match="line 11: more than 10 requests"):
        read(tmp_path, mooncake() * 11)
    assert len(read(tmp_path, PLAIN + "0,10,1\n" * 11, limit=10)) == 10
    with pytest.raises(MalformedFile, match="line 2: is longer than 200 characters"):
        read(tmp_path, PLAIN + "0,10,1" + " " * 1000)
    with pytest.raises(MalformedFile, match="goes on past 2,000 characters"):
        read(tmp_path, PLAIN + "\n" * 3000)


def answer_or_line(tmp_path: Path, content: str | bytes) -> bool:
    """Whether reading gives requests, or an error of one printable line."""
    try:
        return len(read(tmp_path, content)) > 0
    except InvalidInput as error:
        return str(error).isprintable()


@fuzzed
@given(content=st.binary(max_size=80) | st.text(max_size=80).map(lambda text: (PLAIN + text).encode()))
def test_no_bytes_end_in_anything_but_an_answer_or_one_line(tmp_path: Path, content: bytes) -> None:
    assert answer_or_line(tmp_path, content)


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


# there and back

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
        for old, new in zip(before.ids_of(row), after.ids_of(row), strict=True):
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
    with pytest.raises(MalformedFile, match="cannot be written: Is a directory"):
        write_csv(workload, tmp_path)
    with pytest.raises(InvalidInput, match="seconds_per_unit"):
        write_timed_trace(workload, tmp_path / "x", seconds_per_unit=0.0)
    with pytest.raises(InvalidInput, match="block_tokens"):
        write_timed_trace(workload, tmp_path / "x", block_tokens=0)


def test_export_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(random_requests(num_requests=1, input_len=7, output_len=3), "-")
    assert capsys.readouterr().out == PLAIN + "0.0,7,3\n"


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_formula_cells_are_guarded(text: str) -> None:
    assert guarded_cell(text) == "'" + text
    assert guarded_cell("plain") == "plain"


# the real ones


@pytest.mark.parametrize(
    ("name", "rows", "span_s", "rate", "gaps_cv", "prompts", "outputs"),
    [
        ("conv", 19_366, 3_502, 5.5, 1.09, (1155, 1020, 4142), (211, 129, 601)),
        ("code", 8_819, 3_436, 2.6, 13, (2048, 1469, 7436), (28, 13, 251)),
    ],
)
def test_azure_2023(
    shared_dir: Path,
    name: str,
    rows: int,
    span_s: float,
    rate: float,
    gaps_cv: float,
    prompts: tuple[int, int, int],
    outputs: tuple[int, int, int],
) -> None:
    """Against the figures published with the traces, to the digits given."""
    workload = read_trace(shared_dir / "traces" / f"AzureLLMInferenceTrace_{name}.csv.gz")
    assert len(workload) == rows
    assert workload.span_s == pytest.approx(span_s, abs=0.5)
    assert workload.request_rate_per_s == pytest.approx(rate, abs=0.05)
    assert workload.arrival_cv == pytest.approx(gaps_cv, abs=0.5 if gaps_cv > 10 else 0.005)
    for column, (mean, p50, p99) in ((workload.prompt_tokens, prompts), (workload.output_tokens, outputs)):
        assert column.mean() == pytest.approx(mean, abs=0.5)
        np.testing.assert_allclose(np.percentile(column, [50, 99]), [p50, p99], atol=0.5)
    assert workload.notices == ()


def infinite_cache_hit_fraction(workload: Workload, block_tokens: int) -> float:
    """Prompt tokens in full blocks that an earlier prompt had, over all prompt tokens."""
    assert workload.content is not None
    runs = workload.content.block_runs(block_tokens)
    seen: dict[int, int] = {}  # run -> blocks of it seen so far
    hits = 0
    for row in range(len(workload)):
        mine = [(first >> 24, first & (2**24 - 1), count) for first, count in runs.runs_of(row)]
        for run, start, count in mine:
            hit = min(max(seen.get(run, 0) - start, 0), count)
            hits += hit
            if hit < count:
                break
        for run, start, count in mine:
            seen[run] = max(seen.get(run, 0), start + count)
    return hits * block_tokens / int(workload.prompt_tokens.sum())


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


def test_azure_is_read_in_time(shared_dir: Path) -> None:
    path = shared_dir / "traces" / "AzureLLMInferenceTrace_conv.csv.gz"
    took_s = []
    for _ in range(3):
        start_s = time.process_time()
        read_trace(path)
        took_s.append(time.process_time() - start_s)
    assert min(took_s) < 0.15


def test_no_pandas_and_no_scipy_are_imported() -> None:
    import subprocess

    code = "import sys, capacity.workload; print(sorted({'pandas', 'scipy', 'pydantic', 'rich'} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert re.sub(r"\s", "", printed) == "[]"


def test_a_format_is_a_module_of_its_folder() -> None:
    folder = Path(lines.__file__).parent / "formats"
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert {entry.name for entry in TRACE_FORMATS} == modules
    assert all(entry.title in trace_titles() for entry in TRACE_FORMATS)


def test_a_refusal_names_what_every_table_needs(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile) as refusal:
        read(tmp_path, "when,who\n1,2\n")
    for entry in TRACE_FORMATS:
        assert not entry.tabular or ",".join(entry.needed) in str(refusal.value)
