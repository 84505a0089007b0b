"""Ways to write one table, and what a table may leave in disorder."""

from __future__ import annotations

import gzip
from pathlib import Path
from unittest import mock

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_texts import PLAIN, read

from capacity.base.errors import MalformedFile
from capacity.workload.traces import table


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


HEADERS = ("arrival_s,prompt_tokens,output_tokens", "TIMESTAMP,ContextTokens,GeneratedTokens")
ODD = (
    "", " ", "x", "-1", "0", "007", "12.0", "1e1", "1_0", "nan", "99999999999", "٣", "\x00", '"5"', "5,5", "5\n",
    "2023-11-16 18:15:61.5", "2023-13-16 18:15:01.5", "2023-11-16T18:15:01.5", "2023-11-16 18:15:01", "1e400",
)  # fmt: skip


def as_read(tmp_path: Path, content: str) -> tuple[object, ...]:
    """The requests, or the error to the letter."""
    try:
        workload = read(tmp_path, content)
    except MalformedFile as error:
        return (str(error),)
    return workload.fingerprint(), workload.notices


@given(st.data())
@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_many_lines_at_once_are_read_as_one_by_one(tmp_path: Path, data: st.DataObject) -> None:
    """Requests, notices, errors and their lines are the same, wherever the lines that are read together end."""
    header = data.draw(st.sampled_from(HEADERS))
    calendar = header.startswith("TIME")
    places = data.draw(st.integers(0, 7))
    rows = []
    for number in range(data.draw(st.integers(1, 12))):
        clock = f"2023-11-16 18:{number % 3:02}:{number:02}" + (f".{number:0{places}}" if places else "")
        rows.append([clock if calendar else f"{number / 4}", str(number + 1), "3"])
    for _ in range(data.draw(st.integers(0, 2))):
        row = rows[data.draw(st.integers(0, len(rows) - 1))]
        row[data.draw(st.integers(0, 2))] = data.draw(st.sampled_from(ODD))
    content = header + "\n" + "\n".join(",".join(row) for row in rows)
    with mock.patch.object(table._Columns, "_read_plain", return_value=False):
        slowly = as_read(tmp_path, content)
    with mock.patch.object(table, "CHUNK_CHARACTERS", data.draw(st.sampled_from((1, 60, 1 << 20)))):
        assert as_read(tmp_path, content) == slowly


def test_a_bad_row_comes_before_the_damage_behind_it(tmp_path: Path) -> None:
    whole = gzip.compress((PLAIN + "0,10,1\n1,x,2\n" + "2,10,1\n" * 9999).encode())
    with pytest.raises(MalformedFile, match=r"line 3.*'x' is not a number"):
        read(tmp_path, whole[:-20])
    good = gzip.compress((PLAIN + "0,10,1\n" * 9999).encode())
    with pytest.raises(MalformedFile, match="truncated"):
        read(tmp_path, good[:-9])
