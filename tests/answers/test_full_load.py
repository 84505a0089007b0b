"""Full load: a backlog that is worked off, against a full closed loop that is simulated."""

from __future__ import annotations

import pytest

from capacity import cost, simulate
from capacity.answers.full_load import full_load
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, build
from capacity.pool.resolve import resolve
from capacity.workload import random_requests

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
    requests = random_requests(num_requests=1000, input_len=500, output_len=100, request_rate_per_s=1.0)

    def full(model: str, **pool: object) -> float:
        load, (low, high) = full_load(resolve(model, build(Pool, {"gpu": "h100", **pool})), requests)
        assert 0 < low < 1 < high
        return load.requests_per_s

    assert full(MODEL, data_parallel_size=2) == pytest.approx(2 * full(MODEL), rel=0.03)
    ranks = {"data_parallel_size": 2, "enable_expert_parallel": True}
    assert full("qwen3-30b-a3b", **ranks, replicas=2) == 2 * full("qwen3-30b-a3b", **ranks)


def test_requests_that_the_engine_does_not_take_have_no_full_load() -> None:
    with pytest.raises(InvalidInput, match="a request of 60100 tokens exceeds max_model_len 32000"):
        cost(MODEL, gpu="h100", max_model_len=32_000, price="1", input_len=60_000, output_len=100)
