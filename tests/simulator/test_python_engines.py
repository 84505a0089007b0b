"""The Python engines by themselves: fed or delivered to, cancelled, stopped."""

from __future__ import annotations

import numpy as np
import simpy

from capacity.simulator import EngineSetup
from capacity.simulator.engines import NullReports
from capacity.simulator.instants import ARRIVE, call_at
from capacity.simulator.ledger import Ledger
from capacity.simulator.members import Recording
from capacity.simulator.python_engines import ReadableEngines
from capacity.simulator.requests import Requests
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import AffineStepTimes
from capacity.workload import Workload

STEP_PS = 10**10
ARRIVALS_PS = [0, 5 * 10**9, 5 * 10**9, 10**12]
WORKLOAD = Workload(
    arrival_s=np.array(ARRIVALS_PS) / 1e12, prompt_tokens=np.full(4, 10), output_tokens=np.full(4, 3)
)
SETUP = EngineSetup(
    step_times=AffineStepTimes(0.01, 0.0),
    num_blocks=8,
    policy="vllm-v1",
    limits=SchedulerLimits(max_num_seqs=2),
)


class Heard(NullReports):
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, int, int]] = []

    def on_request_end(self, number: int, request: int, at_ps: int) -> None:
        self.ends.append((number, request, at_ps))


def engines_of(count: int = 1) -> tuple[simpy.Environment, ReadableEngines, Ledger, Heard]:
    env, ledger, heard = simpy.Environment(initial_time=0), Ledger(len(WORKLOAD)), Heard()
    engines = ReadableEngines(env, Requests(WORKLOAD), ledger, heard, Recording())
    for number in range(count):
        assert engines.add(SETUP, 0) == number
    return env, engines, ledger, heard


def deliver(env: simpy.Environment, engines: ReadableEngines, ledger: Ledger, number: int = 0) -> None:
    for request, at_ps in enumerate(ARRIVALS_PS):
        ledger.arrival_ps[request] = at_ps
        call_at(env, at_ps, lambda _, r=request, t=at_ps: engines.deliver(number, r, t), ARRIVE)  # type: ignore[misc]


def test_who_is_fed_and_who_is_delivered_to_ends_at_the_same_instant() -> None:
    env, engines, _, fed = engines_of()
    engines.feed(0, range(4), ARRIVALS_PS)
    assert engines.busy
    env.run()
    assert not engines.busy
    assert engines.account(0).completed == 4
    assert engines.account(0).free_blocks == 8
    again, others, ledger, delivered = engines_of()
    deliver(again, others, ledger)
    again.run()
    assert delivered.ends == fed.ends
    assert fed.ends[0] == (0, 0, 3 * STEP_PS), "a prompt and two more tokens"
    assert fed.ends[-1] == (0, 3, 10**12 + 3 * STEP_PS)


def test_a_cancelled_request_is_not_heard_of_again() -> None:
    env, engines, ledger, heard = engines_of()
    deliver(env, engines, ledger)
    call_at(env, STEP_PS // 4 * 3, lambda _: engines.cancel(0, 1, STEP_PS // 4 * 3), ARRIVE)
    env.run()
    assert [request for _, request, _ in heard.ends] == [0, 2, 3]
    assert engines.account(0).free_blocks == 8
    assert ledger.finish_ps[1] == -1
    assert ledger.first_scheduled_ps[1] == -1, "it waited, and was gone before the next step"


def test_a_stopped_engine_does_nothing_more() -> None:
    env, engines, ledger, heard = engines_of(2)
    deliver(env, engines, ledger, 1)
    call_at(env, STEP_PS, lambda _: engines.stop(1), ARRIVE)
    env.run()
    assert heard.ends == []
    assert not engines.busy
    assert engines.account(1).stalled_by is not None, "requests are left"
    assert engines.state(0) == (0, 0, 0)
