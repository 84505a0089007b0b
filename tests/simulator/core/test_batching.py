"""The compiled SGLang, TensorRT-LLM, TGI, static and slots, step by step against the Python policies.

Python's side is a bare engine loop: what the policies decide is compared, not the world around them.
"""

from __future__ import annotations

import random
from array import array
from collections import deque
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from engine_runs import SETUP, random_run

from capacity.simulator.core import library
from capacity.simulator.core.engines import REFUSED
from capacity.simulator.core.fleet import LEDGER_COLUMNS, Fleet
from capacity.simulator.requests import Chains, Requests
from capacity.simulator.schedulers import Sequence, Step
from capacity.simulator.setup import EngineSetup, make_pool, make_scheduler
from capacity.simulator.shapes import sum_rows
from capacity.workload import Workload

NEVER = 1 << 62
ARRIVE = 1
ENDLESS = 10_000  # steps without rows in a row
POLICIES = ("sglang", "tensorrt-llm", "tgi", "static", "slots")
RUNS = 120  # of each policy

Instants = list[tuple[int, int]]  # (instant, request)


class Loop:
    """One engine over the Python policy: `log` is what the core logs, entry by entry."""

    def __init__(self, workload: Workload, setup: EngineSetup) -> None:
        self.setup = setup
        self.pool = make_pool(setup)
        self.policy = make_scheduler(setup, self.pool)
        self.new_sequence = Requests(workload).sequence_maker(setup, self.pool)
        self.inside: dict[int, Sequence] = {}
        self.log: list[int] = []
        self.rejected = 0
        self._in_flight: deque[Step] = deque()
        self._stage_free_ps = [0] * setup.limits.pipeline_stages
        self._without_rows = 0

    def run(self, arrivals: Instants, cancels: Instants) -> None:
        coming, leaving = deque(arrivals), deque(cancels)
        now_ps = 0
        while self._without_rows <= ENDLESS:
            self._receive(coming, now_ps)
            while leaving and leaving[0][0] <= now_ps:
                r = self.inside.pop(leaving.popleft()[1], None)
                if r is not None:
                    self.policy.abort(r)
            while len(self._in_flight) < self.policy.steps_in_flight and self._launch(now_ps):
                pass
            if self._in_flight:
                step = self._in_flight.popleft()
                now_ps = step.end
                self._receive(coming, now_ps - 1)
                self._settle(step)
                continue
            due = [queue[0][0] for queue in (coming, leaving) if queue]
            if self.policy.wake_ps is not None:
                due.append(self.policy.wake_ps)
            if not due:
                return
            now_ps = min(due)

    def _receive(self, coming: deque[tuple[int, int]], until_ps: int) -> None:
        while coming and coming[0][0] <= until_ps:
            at_ps, request = coming.popleft()
            r = self.new_sequence(request, at_ps)
            if r is None or not self.policy.add(r):
                self.rejected += 1
            else:
                self.inside[request] = r

    def _launch(self, now_ps: int) -> bool:
        if not self.policy.unfinished or self._without_rows > ENDLESS:
            return False
        step = self.policy.schedule(now_ps)
        if not (step.rows or step.preempted or step.finished):
            return False
        self._without_rows = 0 if step.rows else self._without_rows + 1
        assert len({row.sequence.index for row in step.rows}) == len(step.rows), "one row a request"
        duration_ps = 0
        if step.rows:
            duration_ps = self.setup.step_times.step_ps(sum_rows(step.rows, self.setup.window_tokens))
        share, rest = divmod(duration_ps, len(self._stage_free_ps))
        at_ps = now_ps
        for stage, free_ps in enumerate(self._stage_free_ps):
            begin_ps = max(at_ps, free_ps)
            step.start = begin_ps if stage == 0 else step.start
            at_ps = self._stage_free_ps[stage] = begin_ps + share + (rest if stage == 0 else 0)
        step.end = at_ps
        self._in_flight.append(step)
        return True

    def _settle(self, step: Step) -> None:
        for r in self.policy.update(step):
            self.inside.pop(r.index, None)
        self.log += (step.start, step.end, self.pool.free_blocks, len(step.rows))
        for row in step.rows:
            self.log += (row.sequence.index, row.tokens, row.computed, row.drafts)
        for requests in (step.preempted, step.finished):
            self.log += (len(requests), *(r.index for r in requests))


def compiled(
    workload: Workload, setup: EngineSetup, arrivals: Instants, cancels: Instants
) -> tuple[list[int], Any, int]:
    """The core's log of the same run, its state in the end, and how many it turned away."""
    requests = Requests(workload)
    columns = {
        name: array("q", [-1 if name.endswith("_ps") and name != "preempted_ps" else 0]) * len(workload)
        for name in LEDGER_COLUMNS
    }
    engines = Fleet(workload, columns, routed=True)
    number = engines.add(
        setup,
        0,
        chains=cache(lambda block_size: Chains(workload, block_size)),
        answers_private=requests.answers_are_private,
        keep_log=True,
    )
    order = np.array([request for _, request in arrivals])
    engines.feed(number, order, np.array([at_ps for at_ps, _ in arrivals]))
    told = []
    for at_ps, request in cancels:
        told += engines.advance(4 * at_ps + ARRIVE)
        engines.cancel(number, request, at_ps)
    told += engines.advance(NEVER)
    turned_away = sum(kind == REFUSED for kind, *_ in told)
    state = engines.state(number)
    return engines.log(number), state, state.rejected + turned_away


def options_of(policy: str, rng: random.Random) -> dict[str, Any]:
    if policy == "sglang":
        return {
            "asynchronous": rng.random() < 0.5,
            "order": rng.choice(["fcfs", "lpm"]),
            "mixed_chunk": rng.random() < 0.5,
            "max_prefill_tokens": rng.choice([16384, 60]),
            "conservativeness": rng.choice([0.0, 0.0, 0.05, 0.3, 1.0]),
            "ignore_eos": rng.random() < 0.2,
            "recv_interval": rng.choice([1, 1, 2, 10]),
        }
    if policy == "tensorrt-llm":
        return {
            "asynchronous": rng.random() < 0.5,
            "capacity": rng.choice(["guaranteed_no_evict", "max_utilization"]),
            "batch_wait_steps": rng.choice([0, 0, 1, 5]),
            "batch_wait_tokens_fraction": rng.choice([0.0, 0.3, 0.75]),
            "prompts_per_step": rng.choice([None, None, 1, 2]),
        }
    if policy == "tgi":
        return {
            "asynchronous": rng.random() < 0.3,
            "waiting_served_ratio": rng.choice([0.0, 0.3, 1.2]),
            "max_waiting_steps": rng.choice([0, 3, 20]),
        }
    if policy == "static":
        return {"batching_window_s": rng.choice([0.0, 0.004, 0.1])}
    return {"max_waiting": rng.choice([None, 0, 2, 10])}


def random_case(policy: str, seed: int) -> tuple[Workload, EngineSetup, Instants, Instants]:
    rng = random.Random(f"{policy} {seed}")
    workload, run = random_run(rng.randrange(1 << 30))
    if workload.content is None and rng.random() < 0.5:  # ties
        prompt_tokens = np.full(len(workload), int(np.median(workload.prompt_tokens)))
        workload = replace(workload, prompt_tokens=prompt_tokens)
    asked = [n + rng.choice([0, 0, 1, 10, 100]) for n in workload.output_tokens.tolist()]
    workload = replace(workload, concurrency=None, max_tokens=np.array(asked) if rng.random() < 0.4 else None)
    setup = EngineSetup(**{name: value for name, value in run.items() if name in SETUP})
    phased = policy in ("sglang", "tensorrt-llm", "tgi")
    stages = rng.choice([1, 1, 1, 2, 3]) if phased else 1
    budget = rng.choice([setup.limits.max_num_batched_tokens, 40 if policy == "tgi" else 1 << 10])
    contiguous = setup.limits.max_model_len if rng.random() < 0.1 and setup.kv_windows == (None,) else None
    setup = replace(
        setup,
        policy=policy,
        policy_options=options_of(policy, rng),
        limits=replace(setup.limits, priority=False, pipeline_stages=stages, max_num_batched_tokens=budget),
        kv_contiguous_tokens=contiguous,
        num_blocks=int(setup.num_blocks * (rng.choice([1, 1, 1.3, 2]) if contiguous is None else 4)),
    )
    if rng.random() < 0.5:  # many at a time
        setup = replace(setup, limits=replace(setup.limits, max_num_seqs=rng.choice([8, 64])))
        workload = replace(workload, arrival_s=workload.arrival_s / 50)
    if policy == "sglang" and rng.random() < 0.5:  # more of them than can end
        workload = replace(
            workload,
            arrival_s=workload.arrival_s / 50,
            output_tokens=np.array([rng.randint(8, 50) for _ in asked]),
            max_tokens=None,
        )
        longest = int((workload.prompt_tokens + workload.output_tokens).max()) + setup.block_size
        blocks = (longest // setup.block_size + 2) * len(setup.kv_windows)
        limits = replace(setup.limits, max_num_seqs=32)
        options = {**setup.policy_options, "conservativeness": 0.0}
        setup = replace(
            setup, limits=limits, policy_options=options, num_blocks=blocks + rng.randint(0, blocks)
        )
    arrivals = [(round(s * 1e12), request) for request, s in enumerate(workload.arrival_s.tolist())]
    cancels: Instants = []
    if phased and rng.random() < 0.3:
        sent = rng.sample(arrivals, rng.randint(1, len(arrivals)))
        cancels = sorted((at_ps + rng.randrange(1, 10**12), request) for at_ps, request in sent)
    return workload, setup, arrivals, cancels


@pytest.mark.skipif(library.load() is None, reason="no compiled core")
@pytest.mark.parametrize("policy", POLICIES)
def test_every_step_is_the_python_policys(policy: str) -> None:
    given_up = cancelled = 0
    for seed in range(RUNS):
        workload, setup, arrivals, cancels = random_case(policy, seed)
        loop = Loop(workload, setup)
        loop.run(arrivals, cancels)
        log, state, rejected = compiled(workload, setup, arrivals, cancels)
        assert log == loop.log, seed
        assert (state.num_running, state.num_waiting) == (loop.policy.num_running, loop.policy.num_waiting)
        assert (state.kv_used_blocks, rejected) == (
            setup.num_blocks - loop.pool.free_blocks,
            loop.rejected,
        ), seed
        given_up += state.preemptions > 0
        cancelled += bool(cancels)
    if policy in ("sglang", "tensorrt-llm"):
        assert given_up > RUNS // 20, "retractions and pauses are rare among these runs"
