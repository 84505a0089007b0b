"""Jumping equals stepping, bit for bit; and so does the run pool equal the block pool underneath."""

from __future__ import annotations

import random

import numpy as np
import pytest
from engine_runs import random_run, run_engine, stepped_and_jumped
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.simulator import EngineSetup, simulate
from capacity.simulator.jump import _steps_until
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import AffineStepTimes, FunctionStepTimes
from capacity.workload import Workload, random_requests
from capacity.workload.content import PromptContent


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_runs_are_equal(first: int) -> None:
    unequal = {
        seed: found for seed in range(first, first + 100) if (found := stepped_and_jumped(*random_run(seed)))
    }
    assert unequal == {}


@pytest.mark.slow
def test_thousands_of_random_runs_are_equal() -> None:
    unequal = {seed: found for seed in range(1000, 3000) if (found := stepped_and_jumped(*random_run(seed)))}
    assert unequal == {}


@settings(max_examples=60, deadline=None)
@given(st.integers(10_000, 1 << 40))
def test_any_run_is_equal(seed: int) -> None:
    assert stepped_and_jumped(*random_run(seed)) == []


@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v1-async", "vllm-v0", "static", "slots"])
@pytest.mark.parametrize("seed", range(6))
def test_every_policy_is_equal_in_both_modes(policy: str, seed: int) -> None:
    workload, options = random_run(seed)
    assert stepped_and_jumped(workload, options | {"policy": policy}) == []


def conversations(seed: int, *, linked: bool) -> Workload:
    """Three turns each: a later prompt repeats the earlier prompts and answers, and adds a question."""
    rng = random.Random(seed)
    prompts, outputs, after, think, arrivals, answers = [], [], [], [], [], []
    for talk in range(8):
        history: list[tuple[int, int]] = [(0, 12)]
        for turn in range(3):
            index = len(prompts)
            history = [*history, (100 + index, rng.randint(1, 20))]
            prompts.append(list(history))
            outputs.append(rng.randint(1, 25))
            history.append((500 + index, outputs[-1]))
            answers.append(500 + index)
            after.append(index - 1 if turn and linked else -1)
            think.append(rng.random() * 0.3)
            arrivals.append(talk * 0.05 + turn * 0.2)
    order = np.argsort(arrivals, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return Workload(
        arrival_s=np.array(arrivals)[order],
        prompt_tokens=np.array([sum(n for _, n in prompts[i]) for i in order]),
        output_tokens=np.array(outputs)[order],
        content=PromptContent.from_segments(
            [prompts[i] for i in order], answer_ids=[answers[i] for i in order]
        ),
        after_request=np.array([place[after[i]] if after[i] >= 0 else -1 for i in order]),
        think_s=np.array(think)[order],
    )


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v1-async"])
def test_conversations_hit_their_own_answers_equally(policy: str, linked: bool) -> None:
    for seed in range(12):
        workload = conversations(seed, linked=linked)
        options = {
            "step_times": AffineStepTimes(0.004, 1e-4, per_context_token_s=1e-6),
            "num_blocks": 40 if seed % 2 else 400,
            "block_size": 4,
            "policy": policy,
        }
        assert stepped_and_jumped(workload, options) == []
    if linked:
        result = run_engine(workload, **options)
        assert result.prefix_cache_hit_fraction is not None
        assert result.prefix_cache_hit_fraction > 0.3


def test_random_step_times_are_stepped_not_jumped() -> None:
    """A step-time function without affine pieces is asked once for each step, in either mode."""
    workload = random_requests(num_requests=30, input_len=20, output_len=12, request_rate_per_s=20.0)

    def run(mode: str) -> list[float]:
        rng = np.random.default_rng(1)
        times = FunctionStepTimes(lambda _: float(rng.exponential(0.01)))
        result = simulate(workload, EngineSetup(step_times=times, num_blocks=50), mode=mode)  # type: ignore[arg-type]
        return [r.finish_s for r in result.records if r.finish_s is not None]

    assert run("step") == run("jump")


@given(st.integers(1, 10**12), st.integers(1, 10**10), st.integers(0, 10**6), st.integers(1, 5000))
def test_steps_until_is_the_least_number(wait: int, first: int, slope: int, most: int) -> None:
    def lasts(steps: int) -> int:
        return first * steps + slope * (steps * (steps - 1) // 2)

    steps = _steps_until(wait, first, slope, most)
    assert 1 <= steps <= most
    assert lasts(steps) >= wait or steps == most
    assert steps == 1 or lasts(steps - 1) < wait


def test_a_leap_ends_at_its_piece() -> None:
    """Long lone decodes cross many knots and both ends of the window."""
    from engine_runs import KneedStepTimes

    workload = Workload(
        arrival_s=np.array([0.0, 0.4]), prompt_tokens=np.array([3, 9]), output_tokens=np.array([900, 400])
    )
    for knot in (1, 2, 97):
        options = {
            "step_times": KneedStepTimes(knot),
            "num_blocks": 400,
            "block_size": 4,
            "window_tokens": 100,
            "limits": SchedulerLimits(max_model_len=2000),
        }
        assert stepped_and_jumped(workload, options) == []
