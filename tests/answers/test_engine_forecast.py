"""What a router expects of an engine: near to what the simulation makes of it, and cheaper pools are used by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capacity
from capacity.answers.routes import forecast_of
from capacity.deployment import Pool
from capacity.model import load_model
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.workload import Workload

MODEL = "llama-3.1-8b"


def resolved(**fields: Any) -> ResolvedPool:
    return resolve(load_model(MODEL), Pool(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"gpu": "l4", "max_model_len": 8192},
        {"gpu": "h100"},
        {"gpu": "h100", "tensor_parallel_size": 2},
        {"gpu": "l40s", "max_num_batched_tokens": 512},
        {"gpu": "a100-sxm-80gb", "max_num_seqs": 1},
        {"gpu": "h100", "engine": "sglang"},
    ],
)
def test_prompts_before_each_other_take_what_is_expected(fields: dict[str, Any]) -> None:
    """Eight prompts at once with one token each: the last has all of them before it. Steps that end with a prompt, and
    seats that are few, cost what the line leaves out: up to a fifth."""
    pool = resolved(**fields)
    expected = forecast_of(pool, 1.0)
    burst = Workload(
        arrival_s=np.zeros(8), prompt_tokens=np.full(8, 1024), output_tokens=np.ones(8, dtype=np.int64)
    )
    run = capacity.simulate(MODEL, workload=burst, **fields).run.records
    last_s = float((run.first_token_ps - run.arrival_ps).max()) / 1e12
    assert expected.least_s + 8 * 1024 * expected.prompt_token_s == pytest.approx(last_s, rel=0.2)
    assert 0 <= expected.per_request_s < expected.prompt_token_s
    assert expected.within_s == 1.0


def test_a_faster_engine_is_expected_sooner() -> None:
    h100, l4 = (forecast_of(resolved(gpu=gpu, max_model_len=8192), 1.0) for gpu in ("h100", "l4"))
    assert h100.least_s < l4.least_s
    assert h100.prompt_token_s < l4.prompt_token_s / 5
    assert h100.per_request_s < l4.per_request_s


def test_the_cheap_pool_has_what_it_can_answer_in_time() -> None:
    """More requests stay with the cheap cards than a count of requests leaves there, and more are in time."""
    load: dict[str, Any] = {
        "input_len": 1500, "output_len": 60, "length_distribution": "lognormal", "input_len_cv": 1.5,
        "num_prompts": 400, "request_rate": 20.0, "gpu": "l40s", "replicas": 3, "other_pools": [Pool(gpu="h100")],
    }  # fmt: skip

    def found(**router: Any) -> tuple[int, float]:
        run = capacity.simulate(MODEL, **load, **router).run
        ttft_s = (run.records.first_token_ps - run.records.arrival_ps) / 1e12
        return sum(replica.requests for replica in run.replicas[:3]), float((ttft_s <= 0.5).mean())

    spilled = found(router="by-prompt-length", route_up_to_requests=15)
    cheap, in_time = found(router="within-ttft", router_ttft_s=0.4)
    assert cheap > spilled[0]
    assert in_time > max(spilled[1], 0.97)
    assert cheap < 400, "long prompts are the dear card's"
    all_cheap, _ = found(router="within-ttft", router_ttft_s=1000.0)
    assert all_cheap == 400
