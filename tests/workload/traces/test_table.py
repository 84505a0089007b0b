"""Ways to write one table, and what a table may leave in disorder."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from trace_texts import PLAIN, read


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
