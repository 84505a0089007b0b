"""Scenario files and single scenarios; SGLang's radix cache, operation by operation.

What whole engines decided is replayed in `core/test_schedules`, by both of ours.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from library import SHARED
from reference_schedules import NAMED, lines
from scenario_lines import scenario

from capacity.base.errors import InvalidInput, UnknownName
from capacity.simulator.scenarios import read_scenarios, schedule_scenario


def test_named_radix_programs_equal_the_engine() -> None:
    for line in lines(NAMED / "sglang_radix_named.jsonl.gz"):
        ours = schedule_scenario(line["spec"], "sglang-radix")["trace"]["ops"]
        assert ours == line["trace"]["ops"], line["spec"]["name"]


@pytest.mark.skipif(SHARED is None, reason="needs the reference library")
def test_all_radix_programs_equal_the_engine() -> None:
    assert SHARED is not None
    for line in lines(SHARED / "oracle" / "sglang_radix.jsonl.gz"):
        assert schedule_scenario(line["spec"], "sglang-radix")["trace"]["ops"] == line["trace"]["ops"]


def test_impossible_scenario_is_reported_not_spun() -> None:
    stalled = schedule_scenario(scenario(num_blocks=2))
    assert stalled["status"] == "stalled"
    assert "KV blocks" in stalled["error"]


def test_scenario_files(tmp_path: Path) -> None:
    lone = tmp_path / "one.json"
    lone.write_text(json.dumps(scenario(), indent=1))
    many = tmp_path / "many.jsonl"
    many.write_text("\n".join(json.dumps({"scenario": scenario()}) for _ in range(3)))
    packed = tmp_path / "many.jsonl.gz"
    packed.write_bytes(gzip.compress(many.read_bytes()))
    assert list(read_scenarios(lone)) == [scenario()]
    assert list(read_scenarios(packed)) == list(read_scenarios(many)) == [scenario()] * 3


@pytest.mark.parametrize("text", ["{", "[1]", "3", '{"a": 1}\n{'])
def test_unreadable_files_say_where(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        _ = [schedule_scenario(found) for found in read_scenarios(path)]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_blocks": 0},
        {"block_size": -1},
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": "x"},
        {"requests": [{"id": "a", "arrival": 0, "prompt": [[1, -3]], "max_tokens": 1}]},
        {"requests": [{"id": "a", "arrival": 0, "prompt": [[1, 3]], "max_tokens": 0}]},
        {"requests": [{"id": "a"}]},
        {"requests": 7},
        {"step_time": {}},
        {"step_time": True},
        {"step_time": {"base": float("nan"), "per_token": 0}},
        {"num_blocks": float("nan")},
        {"num_blocks": True},
        {"pp": 2**63},
        {"requests": [3]},
        {"requests": [{"id": "a", "arrival": "x", "prompt": [[1, 3]], "max_tokens": 1}]},
        {"requests": [{"id": "a", "arrival": 1e40, "prompt": [[1, 3]], "max_tokens": 1}]},
        {"requests": [{"id": "a", "arrival": 0, "prompt": [[1, 3]], "max_tokens": 2**53}]},
        {"requests": [{"id": "a", "arrival": 0, "prompt": [[2**63, 3]], "max_tokens": 1}]},
        {"requests": [{"id": "a", "arrival": 0, "prompt": [["x" * 9]], "max_tokens": 1}]},
    ],
)
def test_bad_scenarios_are_refused_in_one_line(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        schedule_scenario(scenario(**changes))
    assert "\n" not in str(caught.value)


def test_unknown_policy_suggests() -> None:
    with pytest.raises(UnknownName, match="vllm-v1"):
        schedule_scenario(scenario(), "vllm-v2")
