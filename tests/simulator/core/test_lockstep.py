"""Compiled data-parallel ranks say of every run what the readable ones say: every balance, over several schedulers."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from core_runs import differing, needs_core, open_loop

from capacity.simulator.schedulers.lockstep import BALANCES

pytestmark = needs_core

POLICIES = ("vllm-v1", "vllm-v1-async", "sglang", "tensorrt-llm")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("balance", BALANCES)
def test_ranks_decide_what_the_readable_ones_decide(policy: str, balance: str) -> None:
    happened: Counter[str] = Counter()
    for seed in range(30):
        rng = random.Random(seed)
        workload, options = open_loop(
            seed,
            policy=policy,
            data_parallel_size=rng.choice([2, 3, 8]),
            data_parallel_balance=balance,
        )
        if policy in ("sglang", "tensorrt-llm"):
            options["kv_windows"] = (None,)
        if policy == "tensorrt-llm":
            options["prompt_wait_steps"] = rng.choice([0, 1, 3, 10])
        found, ours = differing(workload, options)
        assert found == [], seed
        assert sum(ours["data_parallel_requests"]) <= len(workload)
        happened["ran"] += ours["steps"] > 0
        happened["spread"] += sum(count > 0 for count in ours["data_parallel_requests"]) > 1
    assert happened["ran"] >= 25
    assert happened["spread"] >= 15
