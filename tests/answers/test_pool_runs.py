"""Requests of several priorities: shares, order, and what each class sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capacity
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, Traffic, build
from capacity.workload.request_generation import workload_of

BUSY: dict[str, Any] = {
    "gpu": "h100", "input_len": 800, "output_len": 60, "request_rate": 60, "num_prompts": 400, "max_num_seqs": 16,
    "scheduling_policy": "priority",
}  # fmt: skip


def priorities(shares: str, **fields: Any) -> np.ndarray[Any, Any]:
    words = {"input_len": 10, "output_len": 5, "num_prompts": 4000, "request_rate": 9.0, **fields}
    drawn = workload_of(build(Traffic, {**words, "priority_shares": shares})).priority
    assert drawn is not None
    return drawn


def test_shares_are_kept_and_need_not_add_up_to_one() -> None:
    drawn = priorities("0:1,5:3")
    assert set(drawn.tolist()) == {0, 5}
    assert (drawn == 5).mean() == pytest.approx(0.75, abs=0.03)
    assert (drawn == priorities("5:0.75,0:0.25")).all()


def test_turns_of_a_conversation_have_one_priority() -> None:
    traffic = {"turns": 4, "think_time_s": 1.0, "num_prompts": 400}
    workload = workload_of(
        build(
            Traffic,
            {"input_len": 10, "output_len": 5, "request_rate": 9, "priority_shares": "0:1,1:1", **traffic},
        )
    )
    assert workload.priority is not None
    assert workload.session is not None
    for session in np.unique(workload.session):
        assert len(set(workload.priority[workload.session == session].tolist())) == 1


def test_classes_are_served_in_order_and_add_up() -> None:
    answer = capacity.simulate("llama-3.1-8b", **BUSY, priority_shares="0:0.2,1:0.3,2:0.5")
    first, second, third = answer.priorities
    assert [each.priority for each in answer.priorities] == [0, 1, 2]
    assert sum(each.requests for each in answer.priorities) == answer.run.summary.completed == 400
    means = [each.latencies_ms["ttft"].mean for each in (first, second, third)]  # type: ignore[union-attr]
    assert means == sorted(set(means))
    mean = sum(m * each.requests for m, each in zip(means, answer.priorities, strict=True)) / 400
    assert answer.run.summary.ttft_ms is not None
    assert mean == pytest.approx(answer.run.summary.ttft_ms.mean)
    assert answer.to_dict()["priorities"][0]["priority"] == 0


def test_one_kind_of_request_makes_no_classes() -> None:
    assert capacity.simulate("llama-3.1-8b", **BUSY, priority_shares="3:1").priorities == ()
    plain = {name: value for name, value in BUSY.items() if name != "scheduling_policy"}
    assert capacity.simulate("llama-3.1-8b", **plain).priorities == ()


@pytest.mark.parametrize("shares", ["", "0", "0:x", "x:1", "0:0", "0:-1", "0:1,0:2", "0:inf", "0:nan"])
def test_shares_that_are_none_are_refused(shares: str) -> None:
    with pytest.raises(InvalidInput, match="priority_shares"):
        build(Traffic, {"priority_shares": shares})


def test_a_scheduler_that_heeds_no_priorities_refuses_them() -> None:
    with pytest.raises(InvalidInput, match=r"has no effect under tgi.*, whose scheduler is"):
        capacity.simulate("llama-3.1-8b", **BUSY, engine="tgi", priority_shares="0:1,1:1")
    assert build(Pool, {"gpu": "h100", "scheduling_policy": "priority"}).scheduling_policy == "priority"


# salts


def hits(**fields: Any) -> float:
    load = {"gpu": "h100", "input_len": 16, "output_len": 8, "request_rate": 20, "num_prompts": 200}
    run = capacity.simulate("llama-3.1-8b", **load, **fields).to_dict()
    return float(run["prefix_cache_hit_fraction"])


def test_tenants_share_no_prefix() -> None:
    """With one tenant nothing changes; of as many as requests, next to nobody finds anything."""
    shared = hits(random_prefix_len=1024)
    assert hits(random_prefix_len=1024, cache_salts=1) == shared
    ten, all_different = (
        hits(random_prefix_len=1024, cache_salts=10),
        hits(random_prefix_len=1024, cache_salts=1 << 20),
    )
    assert shared == pytest.approx(199 / 200 * 1024 / 1040, abs=0.02)
    assert ten == pytest.approx(190 / 200 * 1024 / 1040, abs=0.02)
    assert all_different < 0.01


def test_turns_find_their_own_prefix_whatever_their_tenant() -> None:
    """Conversations that share nothing with others lose nothing."""
    talk = {"turns": 4, "think_time_s": 0.5}
    assert hits(**talk, cache_salts=50) == pytest.approx(hits(**talk), abs=0.01)


def test_salts_without_anything_to_share_are_refused() -> None:
    with pytest.raises(InvalidInput, match="cache-salts"):
        hits(cache_salts=4)
