"""Rules of admission: refused at a full queue, held at a limit, and rules of a user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from cluster_runs import STEPS, assert_conserved, assert_equal, requests

from capacity.deployment.routing import Prompt
from capacity.simulator import EngineSetup, simulate
from capacity.simulator.admission import Admission, Decision, OutstandingLimit, QueueLimit
from capacity.simulator.schedulers import SchedulerLimits

SETUP = EngineSetup(step_times=STEPS, num_blocks=400, limits=SchedulerLimits(max_num_seqs=2))


def test_a_full_queue_turns_requests_away() -> None:
    workload = requests(count=200, rate=50.0)
    found = simulate(workload, [SETUP] * 2, queue_limit=3)
    assert found.rejected > 50
    assert_conserved(workload, found)
    waits = found.records.first_scheduled_ps - found.records.arrival_ps
    free = simulate(workload, [SETUP] * 2)
    assert (
        waits[found.records.completed].max()
        < (free.records.first_scheduled_ps - free.records.arrival_ps).max()
    )


def test_the_limits_are_rules_like_others() -> None:
    workload = requests(count=200, rate=50.0)
    limits = simulate(workload, [SETUP] * 2, queue_limit=1, outstanding_limit=4)
    rules = simulate(workload, [SETUP] * 2, admission=[QueueLimit(1), OutstandingLimit(4)])
    assert_equal(limits, rules)
    assert limits.rejected


class ShortPrompts(Admission):
    """Refuses long prompts."""

    def at_router(self, prompt: Prompt, outstanding: Sequence[int]) -> Decision:  # noqa: ARG002
        return "refuse" if prompt.tokens > 100 else "admit"


class Few(Admission):
    """Holds requests while there are six in all."""

    def at_router(self, prompt: Prompt, outstanding: Sequence[int]) -> Decision:  # noqa: ARG002
        return "hold" if sum(outstanding) >= 6 else "admit"


def test_rules_of_ones_own_refuse_and_hold() -> None:
    workload = requests(count=200, rate=50.0)
    found = simulate(workload, [SETUP] * 2, admission=ShortPrompts())
    assert found.rejected == int((workload.prompt_tokens > 100).sum())
    assert found.records.completed.sum() + found.rejected == 200
    loop = replace(workload, arrival_s=np.zeros(200), concurrency=1)
    assert simulate(loop, [SETUP] * 2, admission=ShortPrompts()).rejected == found.rejected
    held = simulate(workload, [SETUP] * 2, admission=Few(), sample_interval_s=0.1)
    assert_conserved(workload, held)
    assert held.records.completed.all()
    assert max(sample.running + sample.waiting for sample in held.series) > 6, "those at the router included"
    assert max(sample.running for sample in held.series) <= 6
