"""Easier engines in place of those that draft or have data-parallel ranks: alike, never worse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from capacity.answers.engine_setup import engine_setup
from capacity.deployment import Pool
from capacity.planning.easing import MARGIN, PooledSteps, RoundSteps, easier, rounds_of
from capacity.planning.judging import Goal, latencies_s
from capacity.planning.plan import parsed_slos
from capacity.planning.step_error import Factors, ScaledSteps, factors_at
from capacity.planning.trial import (
    Engines,
    _run_easier,
    run_engines,
    simulate_trial,
)
from capacity.pool.drafting import expected_tokens_by_position
from capacity.pool.resolve import resolve
from capacity.simulator.metrics import RequestTable
from capacity.simulator.schedulers.sequence import DrawnSpeculation
from capacity.simulator.schedulers.sequence import Sequence as Request
from capacity.step import StepShape, decode_shape, prefill_shape
from capacity.workload import Workload, random_requests

ENGINES: dict[str, tuple[str, dict[str, Any], tuple[float, ...]]] = {
    "two drafts": (
        "llama-3.1-8b",
        {"gpu": "h100", "speculator": "eagle3-chain", "num_speculative_tokens": 2},
        (10, 30, 60),
    ),
    "four drafts, small budget": (
        "llama-3.1-8b",
        {
            "gpu": "a100", "speculator": "ngram", "num_speculative_tokens": 4,
            "max_num_batched_tokens": 1024, "max_num_seqs": 32,
        },
        (5, 20, 60),
    ),
    "windows": ("gpt-oss-20b", {"gpu": "h100", "speculator": "eagle3-chain"}, (20, 80)),
    "four ranks": (
        "mixtral-8x7b", {"gpu": "h200", "data_parallel_size": 4, "quantization": "fp8"}, (2, 10, 40, 160),
    ),
    "ranks of two, few requests each": (
        "mixtral-8x7b",
        {"gpu": "h100", "tensor_parallel_size": 2, "data_parallel_size": 2, "max_num_seqs": 8},
        (2, 10, 40),
    ),
}  # fmt: skip


def requests(rate: float, *, count: int = 160) -> Workload:
    return random_requests(
        num_requests=count, input_len=900, output_len=80, request_rate_per_s=rate, range_ratio=0.7, seed=1
    )


def p95(table: RequestTable, metric: str) -> float:
    return float(np.percentile(latencies_s([table], metric), 95))


@pytest.mark.parametrize("name", ENGINES)
def test_a_stand_in_is_alike_and_no_worse(name: str) -> None:
    model, fields, rates = ENGINES[name]
    resolved = resolve(model, Pool(**fields))
    factors = factors_at(resolved.step_model, 0.9)
    for rate in rates:
        for replicas in (1, 2):
            workload = requests(rate)
            engines = Engines(resolved=resolved, factors=factors, replicas=replicas)
            found = easier(resolved, engines.scaled_steps, workload)
            assert found is not None
            real = run_engines([engines], workload).records
            eased = _run_easier(found, engines, workload, "round-robin").records
            for metric in ("ttft", "tpot", "e2el"):
                ratio = p95(eased, metric) / p95(real, metric)
                assert 0.6 < ratio <= 1 + MARGIN, (metric, rate, replicas, ratio)


def test_only_what_cannot_leap_has_a_stand_in() -> None:
    engines = Engines(resolved=resolve("llama-3.1-8b", Pool(gpu="h100")))
    assert easier(engines.resolved, engines.scaled_steps, requests(5)) is None


def test_rounds_are_drawn_as_drafts_are_accepted() -> None:
    rates = (0.8, 0.5, 0.3)
    speculation = DrawnSpeculation(rates, lookahead_slots=3, seed=7)
    tokens = np.asarray([0, 1, 5, *range(3000, 3040)])
    rounds = rounds_of(speculation, tokens)
    for number, count in enumerate(tokens):
        request = Request(number, id=number, arrival=0, prompt_tokens=9, max_known=9, priority=0, table=None)
        left = count
        while left > 0:
            left -= 1 + speculation.accepted(request, 3)
        assert rounds[number] == request.accepted
    assert tokens[3:].sum() / rounds[3:].sum() == pytest.approx(expected_tokens_by_position(rates), rel=0.02)
    for rate, expected in ((1.0, [3, 4]), (0.0, [9, 10])):
        certain = DrawnSpeculation((rate, rate), lookahead_slots=2)
        assert rounds_of(certain, np.asarray([9, 10])).tolist() == expected


def test_steps_of_rounds_are_drafted_steps() -> None:
    resolved = resolve("llama-3.1-8b", Pool(gpu="h100", speculator="eagle3-chain", num_speculative_tokens=3))
    setup = engine_setup(resolved)
    drafted = ScaledSteps(setup.step_times, Factors(prefill=1.2, decode=1.1))
    steps = RoundSteps(drafted, setup.speculation.k)
    for batch, context in ((1, 100), (9, 1000), (64, 5003)):
        shape = decode_shape(batch, context)
        assert steps.step_ps(shape) == pytest.approx(
            drafted.step_ps(shape._replace(draft_tokens=3 * batch)), rel=1e-4
        )
        agrees_with_its_piece(steps, shape)
    mixed = prefill_shape(1, 300)._replace(
        decode_sequences=4, decode_context_tokens=99, decode_window_context_tokens=99
    )
    assert steps.step_ps(mixed) == drafted.step_ps(mixed._replace(draft_tokens=12))


def test_pooled_steps_are_joint_steps_of_equal_ranks() -> None:
    resolved = resolve("mixtral-8x7b", Pool(gpu="h200", data_parallel_size=4, quantization="fp8"))
    ranks = ScaledSteps(resolved.step_model, Factors(prefill=1.2, decode=1.1))
    steps = PooledSteps(ranks, 4)
    for batch, context in ((1, 160), (8, 160), (64, 4096)):
        one, all_ = decode_shape(batch, context), decode_shape(4 * batch, context)
        assert steps.step_ps(all_) == pytest.approx(ranks.joint_ps((one,) * 4), rel=0.01)
        agrees_with_its_piece(steps, all_)
    for prompts in (1, 3, 4, 8):
        busy = prefill_shape(max(prompts // 4, 1), 700)
        shapes = [busy] * min(prompts, 4) + [StepShape()] * (4 - min(prompts, 4))
        assert steps.step_ps(prefill_shape(prompts, 700)) == ranks.joint_ps(shapes)
    for batch in (2, 3, 5, 7):  # shared out as evenly as whole rows go, or better
        spread = [decode_shape(batch // 4 + (rank < batch % 4), 500) for rank in range(4)]
        assert steps.step_ps(decode_shape(batch, 500)) <= 1.001 * ranks.joint_ps(spread)


def agrees_with_its_piece(steps: RoundSteps | PooledSteps, shape: StepShape) -> None:
    piece = steps.decode_piece(shape)
    assert piece is not None
    assert piece.max_context_tokens is not None
    last = shape._replace(
        decode_context_tokens=piece.max_context_tokens, decode_window_context_tokens=piece.max_context_tokens
    )
    for at in (shape, last):
        assert steps.step_ps(at) == piece.base_ps + at[9] * (piece.context_ps + piece.window_context_ps)
    after = last._replace(
        decode_context_tokens=last[9] + shape[7], decode_window_context_tokens=last[9] + shape[7]
    )
    assert steps.step_ps(after) >= steps.step_ps(last)


@pytest.mark.parametrize("name", ["two drafts", "four ranks"])
def test_stand_ins_change_no_verdict(name: str) -> None:
    """A sample asks the stand-in first; what it turns down the whole deployment fails as well."""
    model, fields, rates = ENGINES[name]
    resolved = resolve(model, Pool(**fields))
    turned_down = 0
    for slo in ("ttft:p95:100ms tpot:p95:8ms", "ttft:p90:200ms", "e2el:p50:1s", "tpot:p50:60ms e2el:p95:20s"):
        goal = Goal(slos=parsed_slos(slo))
        for rate in rates:
            full = simulate_trial(resolved, 1, [requests(rate)], goal, give_up=False)
            sample = simulate_trial(resolved, 1, [requests(rate)], goal, sample=True)
            assert sample.met == full.met
            turned_down += sample.seen == "at best"
            if sample.seen == "at best":
                assert max(level.ratio for level in sample.levels) > 1
    assert turned_down >= 3


def test_a_stand_in_has_as_many_replicas() -> None:
    model, fields, _ = ENGINES["two drafts"]
    resolved = resolve(model, Pool(**fields))
    goal, workload = Goal(slos=parsed_slos("ttft:p95:200ms")), requests(60)
    alone, four = (simulate_trial(resolved, count, [workload], goal, sample=True) for count in (1, 4))
    assert (alone.seen, four.met) == ("at best", True)
