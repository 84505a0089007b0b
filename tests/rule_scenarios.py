"""Small scenarios worked by hand from one rule of an engine each, with every step that the rule leads to.

What real engines decided (`reference_schedules`) does not show each rule in the scenarios that ship with the project;
these do. The rules are vLLM 0.33.0's, `v1/core/sched/scheduler.py` and `v1/core/single_type_kv_cache_manager.py`.
Blocks hold 4 tokens; a step takes 10 ms and 1 ms a token, which decides who has arrived when it begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scenario_lines import scenario


@dataclass(frozen=True, kw_only=True)
class Decided:
    """One step: tokens of each request in batch order, who was preempted, who finished, what the cache spared."""

    rows: dict[str, int]
    preempted: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    computed: dict[str, int] | None = None  # tokens computed before this step, of some requests


@dataclass(frozen=True, kw_only=True)
class RuleScenario:
    name: str
    rule: str
    scenario: dict[str, Any]
    steps: tuple[Decided, ...]


def step(
    rows: dict[str, int], preempted: str = "", finished: str = "", computed: dict[str, int] | None = None
) -> Decided:
    """Names are one letter each: "bc" are b and c."""
    return Decided(rows=rows, preempted=tuple(preempted), finished=tuple(finished), computed=computed)


def request(name: str, arrival: float, prompt: int, max_tokens: int, priority: int = 0) -> dict[str, Any]:
    """A request whose prompt nobody shares."""
    return {
        "id": name,
        "arrival": arrival,
        "prompt": [[ord(name), prompt]],
        "max_tokens": max_tokens,
        "priority": priority,
    }


RULES = (
    RuleScenario(
        name="the watermark is rounded down",
        rule="int(0.18 x 11 blocks, one of them null) = 1: b needs 4 of the 5 that are free",
        scenario=scenario(
            num_blocks=10, watermark=0.18, requests=[request("a", 0, 16, 2), request("b", 0.005, 16, 1)]
        ),
        steps=(step({"a": 16}), step({"a": 1, "b": 16}, finished="ab")),
    ),
    RuleScenario(
        name="the watermark is kept free",
        rule="int(0.19 x 11 blocks, one of them null) = 2: b needs 4 and only 5 are free until a has ended",
        scenario=scenario(
            num_blocks=10, watermark=0.19, requests=[request("a", 0, 16, 2), request("b", 0.005, 16, 1)]
        ),
        steps=(step({"a": 16}), step({"a": 1}, finished="a"), step({"b": 16}, finished="b")),
    ),
    RuleScenario(
        name="of equal priorities the latest arrival is preempted",
        rule="victim = max(running, key=(priority, arrival_time)): b, though a asks for the block",
        scenario=scenario(
            num_blocks=4,
            policy="priority",
            enable_prefix_caching=False,
            requests=[request("a", 0, 7, 3), request("b", 0.001, 7, 2)],
        ),
        steps=(
            step({"a": 7}),
            step({"a": 1, "b": 7}),
            step({"a": 1}, preempted="b", finished="a"),
            step({"b": 8}, finished="b"),
        ),
    ),
    RuleScenario(
        name="of equal priorities and arrivals the first in the batch is preempted",
        rule="Python's max takes the first of equals: a, which asks for the block; others are still tried",
        scenario=scenario(
            num_blocks=4,
            policy="priority",
            enable_prefix_caching=False,
            requests=[request("a", 0, 7, 3), request("b", 0, 7, 3)],
        ),
        steps=(
            step({"a": 7, "b": 7}),
            step({"a": 1, "b": 1}),
            step({"b": 1}, preempted="a", finished="b"),
            step({"a": 9}, finished="a"),
        ),
    ),
    RuleScenario(
        name="a step that preempts admits nobody",
        rule="`if not preempted_reqs`: c fits into what v gave back, and is not tried until the next step",
        scenario=scenario(
            num_blocks=5,
            policy="priority",
            enable_prefix_caching=False,
            requests=[request("a", 0, 7, 4), request("v", 0, 8, 3, 5), request("c", 0.001, 8, 1, 1)],
        ),
        steps=(
            step({"a": 7, "v": 8}),
            step({"a": 1, "v": 1}),
            step({"a": 1}, preempted="v"),
            step({"a": 1, "c": 8}, finished="ac"),
            step({"v": 10}, finished="v"),
        ),
    ),
    RuleScenario(
        name="the prefill cadence does not hold while requests are kept waiting",
        rule="c waits for a place, so it gets a's at once; d comes during a hold and waits for the fourth step",
        scenario=scenario(
            max_num_seqs=2,
            prefill_schedule_interval=4,
            requests=[
                request("a", 0, 4, 2),
                request("b", 0, 4, 8),
                request("c", 0, 4, 2),
                request("d", 0.05, 4, 1),
            ],
        ),
        steps=(
            step({"a": 4, "b": 4}),
            step({"a": 1, "b": 1}, finished="a"),
            step({"b": 1, "c": 4}),
            step({"b": 1, "c": 1}, finished="c"),
            step({"b": 1}),
            step({"b": 1}),
            step({"b": 1, "d": 4}, finished="d"),
            step({"b": 1}, finished="b"),
        ),
    ),
    RuleScenario(
        name="preempted requests stand in running-list order",
        rule="a's third chunk needs 2 blocks: c goes first, then b, and b is again before c in the queue",
        scenario=scenario(
            num_blocks=5,
            long_prefill_token_threshold=6,
            enable_prefix_caching=False,
            requests=[request("a", 0, 18, 1), request("b", 0, 3, 3), request("c", 0, 3, 3)],
        ),
        steps=(
            step({"a": 6, "b": 3, "c": 3}),
            step({"a": 6, "b": 1, "c": 1}),
            step({"a": 6}, preempted="bc", finished="a"),
            step({"b": 5, "c": 5}, finished="bc"),
        ),
    ),
    RuleScenario(
        name="the first of the running list is preempted and listed first",
        rule="c's third chunk needs 2 blocks: a (priority 9) goes first, then b (8), the first of the running list",
        scenario=scenario(
            num_blocks=5,
            policy="priority",
            long_prefill_token_threshold=6,
            reserve_full_isl=False,
            enable_prefix_caching=False,
            requests=[request("a", 0, 1, 4, 9), request("b", 0, 1, 4, 8), request("c", 0.001, 18, 1)],
        ),
        steps=(
            step({"b": 1, "a": 1}),
            step({"b": 1, "a": 1, "c": 6}),
            step({"b": 1, "a": 1, "c": 6}),
            step({"c": 6}, preempted="ba", finished="c"),
            step({"b": 4, "a": 4}, finished="ba"),
        ),
    ),
    RuleScenario(
        name="the whole prompt must fit, its last token too",
        rule="scheduler_reserve_full_isl: 33 tokens need 9 blocks and 8 are free, though the chunk of 31 fits",
        scenario=scenario(num_blocks=10, requests=[request("a", 0, 4, 3), request("b", 0.001, 33, 1)]),
        steps=(
            step({"a": 4}),
            step({"a": 1}),
            step({"a": 1}, finished="a"),
            step({"b": 32}),
            step({"b": 1}, finished="b"),
        ),
    ),
    RuleScenario(
        name="the whole prompt fits to the token",
        rule="scheduler_reserve_full_isl: 32 tokens need 8 blocks and 8 are free",
        scenario=scenario(num_blocks=10, requests=[request("a", 0, 4, 3), request("b", 0.001, 32, 1)]),
        steps=(step({"a": 4}), step({"a": 1, "b": 31}), step({"a": 1, "b": 1}, finished="ab")),
    ),
    RuleScenario(
        name="a window leaves its blocks behind latest first",
        rule="remove_skipped_blocks frees in reverse: b's 2 blocks are a's fourth and fifth, c still hits the second",
        scenario=scenario(
            num_blocks=7,
            sliding_window=5,
            requests=[
                request("a", 0, 24, 3),
                request("b", 0.001, 7, 1),
                {"id": "c", "arrival": 0.04, "prompt": [[ord("a"), 9]], "max_tokens": 1},
            ],
        ),
        steps=(
            step({"a": 24}),
            step({"a": 1, "b": 7}, finished="b"),
            step({"a": 1, "c": 1}, finished="ac", computed={"a": 25, "c": 8}),
        ),
    ),
    RuleScenario(
        name="requests that end together give back their blocks in batch order",
        rule="a's blocks become the least recently used: c takes them, and d still hits b's",
        scenario=scenario(
            num_blocks=4,
            requests=[
                request("a", 0, 8, 1),
                request("b", 0, 8, 1),
                request("c", 0.001, 8, 1),
                {"id": "d", "arrival": 0.03, "prompt": [[ord("b"), 9]], "max_tokens": 1},
            ],
        ),
        steps=(
            step({"a": 8, "b": 8}, finished="ab"),
            step({"c": 8}, finished="c"),
            step({"d": 1}, finished="d", computed={"d": 8}),
        ),
    ),
)


def departs(answer: dict[str, Any], steps: tuple[Decided, ...]) -> str | None:
    """The first step of a schedule that is not as worked by hand, or None."""
    if answer["status"] != "ok":
        return f"{answer['status']}: {answer['error']}"
    for index, (got, want) in enumerate(zip(answer["steps"], steps)):
        computed = {row[0]: row[2] for row in got[2]}
        found = Decided(
            rows={row[0]: row[1] for row in got[2]},
            preempted=tuple(got[3]),
            finished=tuple(got[4]),
            computed=None if want.computed is None else {name: computed.get(name) for name in want.computed},  # type: ignore[misc]
        )
        if found != want or list(found.rows) != list(want.rows):
            return f"step {index}: {found} for {want}"
    if len(answer["steps"]) != len(steps):
        return f"{len(answer['steps'])} steps for {len(steps)}"
    return None
