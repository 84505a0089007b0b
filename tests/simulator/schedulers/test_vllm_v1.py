"""vLLM V1's scheduler: limits are tight, who is admitted, who is preempted."""

from __future__ import annotations

import pytest
from scenario_lines import requests, scenario

from capacity.simulator.scenarios import schedule_scenario


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
    free = schedule_scenario(scenario(num_blocks=10, watermark=0.5, requests=rows), engine_loop="events")
    assert [row[0] for row in free["steps"][1][2]] == ["a"]
    rows = requests(("a", 0, 36, 2))
    alone = schedule_scenario(scenario(num_blocks=10, watermark=0.9, requests=rows), engine_loop="events")
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
