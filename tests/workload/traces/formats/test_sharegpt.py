"""Conversations as text: prompts grow by what was said, turns wait for answers, and the guess of tokens is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_texts import read

import capacity
from capacity.base.errors import MalformedFile

TWO = [
    {
        "id": "a",
        "conversations": [
            {"from": "human", "value": "x" * 40},
            {"from": "gpt", "value": "y" * 80},
            {"from": "human", "value": "z" * 20},
            {"from": "gpt", "value": "w" * 8},
        ],
    },
    {"messages": [{"role": "system", "content": "s" * 400}, {"role": "user", "content": "u" * 4},
                  {"role": "assistant", "content": "v" * 4}]},
]  # fmt: skip


@pytest.mark.parametrize(
    "text", [json.dumps(TWO), json.dumps(TWO, indent=2), "\n".join(map(json.dumps, TWO))]
)
def test_turns_grow_and_wait(tmp_path: Path, text: str) -> None:
    workload = read(tmp_path, text)
    assert workload.prompt_tokens.tolist() == [10, 10 + 20 + 5, 101]
    assert workload.output_tokens.tolist() == [20, 2, 1]
    assert workload.after_request is not None
    assert workload.after_request.tolist() == [-1, 0, -1]
    assert workload.arrival_s.tolist() == [0.0, 0.0, 1.0]
    assert "4 characters per token are assumed" in workload.notices[0]


def test_a_later_turn_finds_the_earlier_one_in_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    turns = [{"from": who, "value": "x" * 4000} for who in ("human", "gpt") * 3]
    path.write_text(json.dumps([{"conversations": turns}] * 4), encoding="utf-8")
    answer = capacity.simulate("llama-3.1-8b", gpu="h100", trace=str(path), request_rate=1.0)
    assert answer.to_dict()["completed"] == 12
    assert answer.to_dict()["prefix_cache_hit_fraction"] > 0.5


@pytest.mark.parametrize(
    "content", [[{"conversations": []}], [{"conversations": [3]}], [{"conversations": "x"}]]
)
def test_conversations_without_answers_are_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(MalformedFile):
        read(tmp_path, json.dumps(content))


def test_an_array_of_a_format_of_lines_is_refused(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 5, "output_length": 5}
    with pytest.raises(MalformedFile, match="one object per line"):
        read(tmp_path, json.dumps([row, row]))
