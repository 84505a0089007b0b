"""Replayed evidence: our schedules against those of real engines' scheduler code, step by step."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from library import SHARED
from reference_schedules import NAMED, differs, lines

from capacity.base.errors import InvalidInput, UnknownName
from capacity.simulator.scenarios import read_scenarios, schedule_scenario

POLICIES = {"v1": "vllm-v1", "v1async": "vllm-v1-async", "v0": "vllm-v0"}


def all_differences(path: Path, policy: str) -> dict[str, str]:
    found = {}
    for line in lines(path):
        difference = differs(schedule_scenario(line["scenario"], policy), line)
        if difference:
            found[line["scenario"]["name"]] = difference
    return found


@pytest.mark.parametrize("engine", POLICIES)
def test_named_scenarios_equal_the_engine(engine: str) -> None:
    assert all_differences(NAMED / f"{engine}_named.jsonl.gz", POLICIES[engine]) == {}


@pytest.mark.skipif(SHARED is None, reason="needs the reference library")
@pytest.mark.parametrize("engine", POLICIES)
def test_all_scenarios_equal_the_engine(engine: str) -> None:
    assert SHARED is not None
    assert all_differences(SHARED / "oracle" / f"{engine}.jsonl.gz", POLICIES[engine]) == {}


@pytest.mark.skipif(SHARED is None, reason="needs the reference library")
def test_all_radix_programs_equal_the_engine() -> None:
    assert SHARED is not None
    for line in lines(SHARED / "oracle" / "sglang_radix.jsonl.gz"):
        assert schedule_scenario(line["spec"], "sglang-radix")["trace"]["ops"] == line["trace"]["ops"]


def scenario(**changes: Any) -> dict[str, Any]:
    return {
        "block_size": 4,
        "num_blocks": 12,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "max_model_len": 256,
        "step_time": {"base": 0.01, "per_token": 0.001},
        "requests": [
            {"id": "a", "arrival": 0, "prompt": [[1, 10]], "max_tokens": 3},
            {"id": "b", "arrival": 0, "prompt": [[2, 6]], "max_tokens": 2},
        ],
    } | changes


def requests(*rows: tuple[str, float, int, int]) -> list[dict[str, Any]]:
    return [
        {"id": name, "arrival": at, "prompt": [[index + 1, prompt]], "max_tokens": outputs}
        for index, (name, at, prompt, outputs) in enumerate(rows)
    ]


def test_impossible_scenario_is_reported_not_spun() -> None:
    stalled = schedule_scenario(scenario(num_blocks=2))
    assert stalled["status"] == "stalled"
    assert "KV blocks" in stalled["error"]


def test_never_fitting_head_starves_v1_and_is_dropped_by_v0() -> None:
    blocked = scenario(
        num_blocks=6, requests=requests(("a", 0, 40, 2), ("b", 0, 4, 2)), max_num_batched_tokens=64
    )
    assert schedule_scenario(blocked, "vllm-v1")["steps"] == []
    v0 = schedule_scenario(blocked, "vllm-v0")
    assert v0["status"] == "ok"
    assert v0["steps"][0][4] == ["a"]


def test_one_block_fewer_is_not_admitted() -> None:
    """Tightness: 10 prompt tokens need 3 blocks of 4; two requests need 5 of them."""
    exact = schedule_scenario(scenario(num_blocks=5))
    assert [row[0] for row in exact["steps"][0][2]] == ["a", "b"]
    short = schedule_scenario(scenario(num_blocks=4))
    assert [row[0] for row in short["steps"][0][2]] == ["a"]


@pytest.mark.parametrize(("budget", "first"), [(16, [10, 6]), (15, [10, 5]), (10, [10])])
def test_budget_is_tight(budget: int, first: list[int]) -> None:
    steps = schedule_scenario(scenario(max_num_batched_tokens=budget))["steps"]
    assert [row[1] for row in steps[0][2]] == first


def test_max_num_seqs_is_tight() -> None:
    steps = schedule_scenario(scenario(max_num_seqs=1))["steps"]
    assert all(len(step[2]) <= 1 for step in steps)


def test_watermark_counts_only_while_something_runs() -> None:
    """5 of 10 blocks must stay free for an admission beside a running request; alone, all may be taken."""
    rows = requests(("a", 0, 10, 4), ("b", 0.005, 12, 2))
    free = schedule_scenario(scenario(num_blocks=10, watermark=0.5, requests=rows))
    assert [row[0] for row in free["steps"][1][2]] == ["a"]
    alone = schedule_scenario(scenario(num_blocks=10, watermark=0.9, requests=requests(("a", 0, 36, 2))))
    assert alone["status"] == "ok"
    assert alone["steps"][0][2][0][1] == 32


def test_victim_already_scheduled_is_refunded() -> None:
    """Priority: the victim may stand before the needy one in the batch; its token returns to the budget of 3."""
    rows = [
        {"id": "low", "arrival": 0, "prompt": [[1, 9]], "max_tokens": 8, "priority": 9},
        {"id": "high", "arrival": 0.001, "prompt": [[2, 3]], "max_tokens": 4, "priority": 0},
        {"id": "mid", "arrival": 0.002, "prompt": [[3, 4]], "max_tokens": 11, "priority": 1},
    ]
    answer = schedule_scenario(
        scenario(
            num_blocks=6,
            max_num_batched_tokens=3,
            policy="priority",
            requests=rows,
            enable_prefix_caching=False,
        )
    )
    preempting = next(step for step in answer["steps"] if step[3])
    assert preempting[3] == ["low"]
    assert [row[:2] for row in preempting[2]] == [["high", 1], ["mid", 2]]
    assert answer["status"] == "ok"


def test_active_limit_replaces_max_num_seqs_at_admission() -> None:
    steps = schedule_scenario(scenario(max_num_seqs=1, max_num_active_seqs=2))["steps"]
    assert len(steps[0][2]) == 2


def test_window_caps_what_an_admission_must_find() -> None:
    """A windowed prompt of 40 tokens never holds more than ceil((W - 1 + budget) / 4) + 1 blocks at a time."""
    rows = requests(("a", 0, 40, 4))
    tight = scenario(sliding_window=8, max_num_batched_tokens=8, requests=rows, num_blocks=5)
    assert schedule_scenario(tight)["status"] == "ok"
    assert schedule_scenario(tight | {"num_blocks": 4})["status"] == "stalled"


def test_asynchronous_pipeline_keeps_order_and_ends() -> None:
    rows = requests(("a", 0, 8, 6), ("b", 0, 20, 6), ("c", 0.004, 6, 6))
    for stages in (2, 3, 4):
        for policy in ("vllm-v1", "vllm-v1-async"):
            answer = schedule_scenario(scenario(num_blocks=64, pp=stages, requests=rows), policy)
            ends = [step[1] for step in answer["steps"]]
            assert answer["status"] == "ok"
            assert ends == sorted(ends)
            assert sorted(name for step in answer["steps"] for name in step[4]) == ["a", "b", "c"]


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
    ],
)
def test_bad_scenarios_are_refused_in_one_line(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        schedule_scenario(scenario(**changes))
    assert "\n" not in str(caught.value)


def test_unknown_policy_suggests() -> None:
    with pytest.raises(UnknownName, match="vllm-v1"):
        schedule_scenario(scenario(), "vllm-v2")
