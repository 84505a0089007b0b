"""The compiled vLLM V0 says of every run what the readable one says: prompts whole, contents stored once, swapping."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from core_runs import differing, needs_core, open_loop

pytestmark = needs_core


@pytest.mark.parametrize("part", range(6))
def test_it_decides_what_the_readable_one_decides(part: int) -> None:
    """Shared prefixes, priorities, tight KV, prompts that never fit, swapping to much host memory or little."""
    happened: Counter[str] = Counter()
    for seed in range(100 * part, 100 * part + 100):
        rng = random.Random(seed)
        workload, options = open_loop(seed, policy="vllm-v0", kv_windows=(None,))
        if rng.random() < 0.5:
            options["policy_options"] = {
                "preemption_mode": "swap",
                "num_cpu_blocks": rng.choice([0, 3, 20, 200]),
                "swap_block_ps": rng.choice([0, 10**9]),
                "block_bytes": 2e6,
            }
        if rng.random() < 0.3:
            options["limits"] = replace(options["limits"], max_num_batched_tokens=rng.choice([20, 30, 64]))
        found, ours = differing(workload, options)
        assert found == [], seed
        happened["preempted"] += ours["preemptions"] > 0
        happened["dropped"] += ours["rejected"] > 0
        happened["hit"] += sum(ours["cached_tokens"]) > 0
        happened["swapped"] += any(use.stored for use in ours["kv_tiers"])
    assert min(happened[what] for what in ("preempted", "dropped", "hit", "swapped")) >= 1
