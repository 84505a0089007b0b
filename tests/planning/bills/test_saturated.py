"""Full load in closed form against a full closed loop that is simulated."""

from __future__ import annotations

import dataclasses

import pytest

from capacity import cost, simulate
from capacity.deployment import Pool
from capacity.planning.bills.saturated import full_load
from capacity.pool.resolve import resolve

MODEL = "llama-3.1-8b"


@pytest.mark.parametrize(
    "drafts",
    [
        {},
        {"speculator": "eagle3-tree"},
        {"speculator": "eagle3", "num_speculative_tokens": 3},
        {"speculator": "ngram"},
    ],
)
def test_full_load_is_what_a_full_closed_loop_serves(drafts: dict[str, object]) -> None:
    """Of lengths that vary: equal ones keep step. The run also drains, for about a tenth of its time."""
    pool = {"gpu": "h100", "max_num_seqs": 64, **drafts}
    load = {"input_len": 300, "output_len": 60, "concurrency": 64, "length_distribution": "gamma"}
    run = simulate(MODEL, **pool, **load, num_prompts=1500).run.to_dict()
    tokens = run["total_output_tokens"] / run["completed"]
    bill = cost(
        MODEL,
        **pool,
        price="2",
        input_len=round(run["total_input_tokens"] / run["completed"]),
        output_len=round(tokens),
    )
    assert 0.85 < run["request_throughput"] / bill.full.requests_per_s < 1.15


def test_full_load_of_data_parallel_ranks() -> None:
    one, two = (
        full_load(resolve(MODEL, Pool(gpu="h100", data_parallel_size=ranks)), (500.0, 100.0), 1)
        for ranks in (1, 2)
    )
    assert two.requests_per_s == pytest.approx(2 * one.requests_per_s)
    experts = resolve("qwen3-30b-a3b", Pool(gpu="h100", data_parallel_size=2, enable_expert_parallel=True))
    both = full_load(experts, (500.0, 100.0), 1)
    assert both.requests_per_s == pytest.approx(full_load(experts, (500.0, 100.0), 2).requests_per_s / 2)
    assert dataclasses.asdict(both)["prefill_share"] < 1
