"""Lines of a trace: one line of text for everything that can be wrong, and limits to everything."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_texts import AZURE, BURSTGPT, PLAIN, agentic, answer_or_line, fuzzed, mooncake, read

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.workload import read_trace
from capacity.workload.traces import lines


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


DEEP = "[" * 100_000


BAD = [
    ("", "line 1: the file is empty"),
    ("\n \n", "line 2: the file is empty"),
    (PLAIN, "line 1: the plain table has a header but no requests"),
    ("0.0,100,10\n1.0,100,10\n", "line 1: the header is missing"),
    ("2023-11-16 18:15:46.6805900,374,44\n", "line 1: the header is missing"),
    ("a,b,c\n1,2,3\n", "line 1: columns 'a,b,c' do not match a known trace format"),
    ("arrival_s,prompt_tokens\n1,2\n", "line 1: columns"),
    (PLAIN.strip() + ",arrival_s\n0,1,1,0\n", "line 1: column 'arrival_s' occurs 2 times"),
    (PLAIN + "nan,10,1\n", "line 2: arrival_s 'nan' is not finite"),
    (PLAIN + "-inf,10,1\n", "line 2: arrival_s '-inf' is not finite"),
    (PLAIN + "1e400,10,1\n", "line 2: arrival_s '1e400' is not finite"),
    (PLAIN + "-1,10,1\n", "line 2: arrival_s '-1' is negative"),
    (PLAIN + "1e200,10,1\n", "line 2: arrival_s '1e200' is too large"),
    (PLAIN + "0,10,1\n1,ten,1\n", "line 3: prompt_tokens 'ten' is not a number"),
    (PLAIN + "0,,1\n", "line 2: prompt_tokens is empty"),
    (PLAIN + "0,0,1\n", "line 2: prompt_tokens '0' must be at least 1 token"),
    (PLAIN + "0,10,0\n", "line 2: output_tokens '0' must be at least 1 token"),
    (PLAIN + "0,10,-5\n", "line 2: output_tokens '-5' is negative"),
    (PLAIN + "0,12.5,1\n", "line 2: prompt_tokens '12.5' is not a whole number"),
    (PLAIN + "0,nan,1\n", "line 2: prompt_tokens 'nan' is not finite"),
    (PLAIN + "0,1e400,1\n", "line 2: prompt_tokens '1e400' is not finite"),
    (PLAIN + "0,99999999999999999999999,1\n", "line 2: prompt_tokens '99999999999999999999999' is above"),
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
    (AZURE + "16/11/2023 18:15,374,44\n", "line 2: TIMESTAMP '16/11/2023 18:15' is not a time such as"),
    (AZURE + "2023-13-16 18:15:46,374,44\n", "line 2: TIMESTAMP '2023-13-16 18:15:46' is not a time: month"),
    (AZURE + "2023-11-16 18:15:61,374,44\n", "second must be in 0..59"),
    (AZURE + "9999-11-16 18:15:46,374,44\n", "not between the years 1971 and 2099"),
    (AZURE + "2023-11-16 18:15:46+99:00,374,44\n", "line 2: TIMESTAMP"),
    (AZURE + "2023-11-16 18:15:46.68,374,0\n", "line 2: GeneratedTokens '0' must be at least 1 token"),
    (BURSTGPT + "5,a,1,x,10,0,10,y\n", "line 2: the burstgpt table has a header but no requests"),
    ("{}\n", "line 1: keys '' do not match a known trace format"),
    (
        '{"duration": 1.0, "completed": 3}\n',
        "line 1: keys 'duration, completed' do not match a known trace format",
    ),
    ("[1, 2]\n", "line 1: is neither a JSON object nor a list of objects: '[1, 2]"),
    ('{"timestamp": 0, "input_length"\n', "line 1: is not JSON"),
    (DEEP, "line 1: is nested too deeply"),
    ('{"timestamp": ' + DEEP + "\n", "line 1: is nested too deeply"),
    (mooncake() + "oops\n", "line 2: is not JSON"),
    (mooncake() + "3\n", "line 2: is not a JSON object: '3"),
    (mooncake() + '{"timestamp": 1}\n', "line 2: has no 'input_length'"),
    (mooncake(timestamp=float("nan")), "line 1: is not JSON: NaN is not a number"),
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
    (mooncake(input_length=10**12), "line 1: input_length 1000000000000 is above"),
    (mooncake(hash_ids=5), "line 1: hash_ids 5 is not a list"),
    (mooncake(hash_ids=[1, [2]]), "line 1: hash_ids [1, [2]] is not a list of whole numbers"),
    (mooncake(hash_ids=[1.5, True]), "line 1: hash_ids [1.5, True] is not a list of whole numbers"),
    (mooncake(hash_ids=[1, 2, 3, 4, 5, 6, 7]), "line 1: hash_ids has 7 blocks for an input_length of 600"),
    (mooncake() + mooncake(input_length=1600), "line 2: hash_ids has 2 blocks for an input_length of 1600"),
    (mooncake() + mooncake(hash_ids=[]), "line 2: hash_ids must be in every row or in none"),
    (mooncake(chat_id=[1]), "line 1: chat_id [1] is not a number"),
    (agentic([]), "line 1: the file has no requests with prompt and answer"),
    (agentic([], cols=["t"]), "line 1: cols ['t'] must name"),
    (agentic([], req=5), "line 1: req 5 is not a list"),
    (agentic([[1, 2]]), "line 1: req 0 is not a list of 9 values"),
    (agentic([], block_size=-64), "line 1: block_size -64 is negative"),
    (agentic([[0, "x", 1, -1, 0, 1, 0, None, ""]]), "line 1: req 0 in 'x' is not a number"),
    (agentic([[-1, 10, 1, -1, 0, 1, 0, None, ""]]), "line 1: req 0 t -1 is negative"),
    (agentic([[0, 10, 1, 0, 0, 1, 0, None, ""]]), "line 1: req 0 prefix_parent 0 is not -1 or an earlier"),
    (agentic([[0, 10, 1, -1, 1, 1, 0, None, ""]]), "line 1: req 0 prefix_blocks 1 exceeds the prompt"),
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
        (tmp_path / "absent.csv", "no such file"),
        (tmp_path, "is a folder"),
        ("nul\0byte", "zero byte|null byte"),
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
        MalformedFile, match="line 12: more than 10 requests; set a limit to read the first ones"
    ):
        read(tmp_path, PLAIN + "0,10,1\n" * 11)
    with pytest.raises(MalformedFile, match="line 11: more than 10 requests"):
        read(tmp_path, mooncake() * 11)
    assert len(read(tmp_path, PLAIN + "0,10,1\n" * 11, limit=10)) == 10
    with pytest.raises(MalformedFile, match="line 2: is longer than 200 characters"):
        read(tmp_path, PLAIN + "0,10,1" + " " * 1000)
    with pytest.raises(MalformedFile, match="has more than 2,000 characters"):
        read(tmp_path, PLAIN + "\n" * 3000)


@fuzzed
@given(content=st.binary(max_size=80) | st.text(max_size=80).map(lambda text: (PLAIN + text).encode()))
def test_no_bytes_end_in_anything_but_an_answer_or_one_line(tmp_path: Path, content: bytes) -> None:
    assert answer_or_line(tmp_path, content)
