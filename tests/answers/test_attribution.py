"""What bounds a step, and how latency answers to each resource: shares that add up, responses in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import capacity
from capacity.answers.attribution import (
    BOUNDS,
    CHANGE,
    HOST_FIELDS,
    Shares,
    bound_times,
    largest_bound,
    resource_effects,
    shares,
)
from capacity.answers.deployment_run import run_service
from capacity.deployment import Pool, Service
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator.engine import Engine
from capacity.simulator.schedulers import Step
from capacity.simulator.shapes import sum_rows
from capacity.simulator.step_work import StepWork
from capacity.step import AffineStepTimes, StepShape, decode_shape, prefill_shape
from capacity.step.closed_form import PhaseTimes, batch_times
from capacity.workload import LognormalLengths, SteadyArrivals, Workload, synthetic

POOL = resolve("llama-3.1-8b", Pool(gpu="h100"))


def timed_by(ttft_s: Callable[[ResolvedPool, int], float]) -> Callable[[ResolvedPool, int], PhaseTimes]:
    """A pool whose TTFT is a formula, whose throughput is the requests over it, and which makes one token."""
    plain = batch_times(POOL.step_model, POOL.limits, 1, input_len=100, output_len=1)

    def timed(resolved: ResolvedPool, requests: int) -> PhaseTimes:
        seconds = ttft_s(resolved, requests)
        return replace(plain, ttft_s=seconds, tpot_s=None, requests_per_s=requests / seconds)

    return timed


def test_the_shares_of_a_step_add_up_to_it() -> None:
    for shape in (decode_shape(1, 1000), decode_shape(256, 1000), prefill_shape(4, 1000)):
        parts = shares(POOL.step_model.step_cost(shape))
        assert (
            parts.compute + parts.memory + parts.communication + parts.launch + parts.host == pytest.approx(1)
        )
    assert largest_bound(shares(POOL.step_model.step_cost(decode_shape(1, 1000)))) == "memory"
    assert largest_bound(shares(POOL.step_model.step_cost(prefill_shape(4, 4000)))) == "compute"
    assert (
        largest_bound(Shares(compute=0.2, memory=0.1, communication=0.6, launch=0.1, host=0.0))
        == "communication"
    )


def test_what_hangs_on_one_resource_alone_answers_to_it_alone() -> None:
    """Seconds of C / bandwidth fall to 1/1.1 with 10 % more of it; nothing else moves them, cost follows."""
    by_name = {
        response.resource: response
        for response in resource_effects(
            POOL, 10, timed_by(lambda pool, _: 1e9 / pool.profile.hbm_bytes_per_s)
        )
    }
    memory = by_name.pop("HBM bandwidth")
    assert (memory.change, memory.tpot) == (CHANGE, None)
    assert memory.ttft == memory.cost_per_token == pytest.approx(1 / 1.1 - 1)
    more = by_name.pop("requests at a time")
    assert (more.change, more.ttft) == (pytest.approx(0.1), 0)
    assert more.cost_per_token == pytest.approx(10 / 11 - 1)  # 11 requests in the time of 10
    assert {response.ttft for response in by_name.values()} == {0.0}


def test_less_host_time_is_ten_percent_less_of_the_engines() -> None:
    host_s = timed_by(lambda pool, _: sum(getattr(pool.engine, field) for field in HOST_FIELDS))
    (host,) = [response for response in resource_effects(POOL, 1, host_s) if response.resource == "host time"]
    assert host.change == -CHANGE
    assert host.ttft == pytest.approx(-CHANGE)


LLAMA = "llama-3.1-8b"


def requests(count: int, rate: float) -> Workload:
    return synthetic(
        num_requests=count,
        arrivals=SteadyArrivals(rate),
        prompt=LognormalLengths(600, 1.0, highest_tokens=6000),
        output=LognormalLengths(60, 1.0, highest_tokens=500),
    )


class EveryStep:
    """An observer that asks the step model about each step by itself."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(BOUNDS, 0.0)
        self.steps = dict.fromkeys(BOUNDS, 0)

    def __call__(self, step: Step, engine: Engine) -> None:
        if not step.rows:
            return
        parts = shares(engine.step_times.step_cost(sum_rows(step.rows, engine.setup.window_tokens)))  # type: ignore[attr-defined]
        self.steps[largest_bound(parts)] += 1
        for bound in BOUNDS:
            self.seconds[bound] += getattr(parts, bound) * (step.end - step.start) / 1e12


@pytest.mark.parametrize(("gpu", "rate"), [("h100", 12.0), ("l40s", 3.0)])
def test_bounds_are_close_to_those_of_every_step(gpu: str, rate: float) -> None:
    """Times add up to the busy time; parts are within 2 points of what asking at every step gives."""
    resolved = resolve(LLAMA, Pool(gpu=gpu))
    workload = requests(150, rate)
    run = run_service([resolved], Service(), workload, keep_work=True)
    found = bound_times(run.step_work)
    assert sum(each.time_fraction for each in found) == pytest.approx(1)
    assert sum(each.steps_fraction for each in found) == pytest.approx(1)
    kinds = [kind for work in run.step_work for kind in work.kinds()]
    assert sum(kind.steps for kind in kinds) == pytest.approx(run.steps)
    every = EveryStep()
    stepped = run_service([resolved], Service(), workload, keep_work=True, observer=every)
    assert stepped.steps == run.steps
    total_s = sum(every.seconds.values())
    assert sum(each.time_s for each in found) == pytest.approx(total_s)
    for each in found:
        assert each.time_fraction == pytest.approx(every.seconds[each.bound] / total_s, abs=0.02)
        assert each.steps_fraction == pytest.approx(every.steps[each.bound] / run.steps, abs=0.02)


def test_batches_without_a_forward_pass_have_no_bound() -> None:
    """SGLang's decode engines start loaded requests by such a batch."""
    pool = resolve(LLAMA, Pool(gpu="h100", engine="sglang", replicas=2))
    run = run_service([pool], Service(prefill_replicas=1), requests(50, 12.0), keep_work=True)
    kinds = [kind for work in run.step_work for kind in work.kinds()]
    idle = sum(kind.steps for kind in kinds if not kind.shape.num_tokens)
    assert 0 < idle < run.steps
    assert sum(each.steps_fraction for each in bound_times(run.step_work)) == pytest.approx(1)


def test_without_a_table_there_is_nothing_to_tell() -> None:
    work = StepWork(AffineStepTimes(0.01, 1e-4))
    work.step(StepShape(decode_sequences=1, decode_context_tokens=10), 1000)
    assert bound_times((work,)) == ()
    assert bound_times(()) == ()


def test_a_simulation_says_what_bound_its_steps() -> None:
    load = {"gpu": "h100", "input_len": 300, "output_len": 40, "num_prompts": 60, "request_rate": 10}
    one = capacity.simulate(LLAMA, **load)
    assert sum(each.time_fraction for each in one.step_bounds) == pytest.approx(1)
    split = capacity.simulate(LLAMA, **load, replicas=2, prefill_replicas=1).to_dict()
    assert [each["bound"] for each in split["step_bounds"]] == list(BOUNDS)
    wide = {**load, "tensor_parallel_size": 8}
    parts = {each.bound: each.time_fraction for each in capacity.simulate(LLAMA, **wide).step_bounds}
    assert parts["communication"] > 0.02, "all-reduce over eight GPUs"
    assert one.step_bounds[2].time_fraction == 0, "nobody to talk to"
