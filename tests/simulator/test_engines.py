"""The one interface of the two engines: the same goes in, and the same is reported at the same instants."""

from __future__ import annotations

import numpy as np
import pytest
import simpy

from capacity.simulator import EngineSetup
from capacity.simulator.core import library
from capacity.simulator.core.engines import CompiledEngines
from capacity.simulator.engines import EngineAccount, Engines, EngineState
from capacity.simulator.instants import ARRIVE, BEFORE, call_at
from capacity.simulator.ledger import Ledger
from capacity.simulator.members import Recording
from capacity.simulator.python_engines import ReadableEngines
from capacity.simulator.requests import Requests
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import AffineStepTimes
from capacity.workload import Workload

pytestmark = pytest.mark.skipif(library.load() is None, reason="the core is not compiled")

COUNT, CANCELLED, CANCELLED_AT_PS = 24, 7, 95 * 10**9
ARRIVALS_PS = [8 * 10**9 * request for request in range(COUNT)]
WORKLOAD = Workload(
    arrival_s=np.array(ARRIVALS_PS) / 1e12,
    prompt_tokens=np.array([20 + 9 * (request % 5) for request in range(COUNT - 1)] + [90]),
    output_tokens=np.array([3 + request % 7 for request in range(COUNT)]),
)
SETUP = EngineSetup(
    step_times=AffineStepTimes(0.01, 1e-5),
    num_blocks=40,
    block_size=8,
    limits=SchedulerLimits(max_num_seqs=6, max_num_batched_tokens=48, max_model_len=80),
)
Heard = list[tuple[object, ...]]


class Listener:
    """Keeps all that is reported."""

    def __init__(self) -> None:
        self.heard: Heard = []

    def on_request_end(self, number: int, request: int, at_ps: int) -> None:
        self.heard.append(("left", number, request, at_ps))

    def on_refusal(self, number: int, request: int, at_ps: int) -> None:
        self.heard.append(("refused", number, request, at_ps))

    def on_prefill(self, number: int, request: int, at_ps: int, *, kept: bool) -> None:
        self.heard.append(("prefilled", number, request, at_ps, kept))

    def load_begins(self, number: int, request: int, at_ps: int) -> int:
        self.heard.append(("load begins", number, request, at_ps))
        return at_ps + 5 * 10**9


def run(
    kind: str, setup: EngineSetup = SETUP
) -> tuple[Heard, list[EngineState], EngineAccount, dict[str, list[int]]]:
    """Two engines, of which the second gets every third request; one is cancelled; what they tell, and their states."""
    env, ledger, listener = simpy.Environment(initial_time=0), Ledger(COUNT), Listener()
    requests, recording = Requests(WORKLOAD), Recording()
    engines: Engines
    if kind == "core":
        engines = CompiledEngines(env, requests, ledger, listener, recording, reacts=True, routed=True)
    else:
        engines = ReadableEngines(env, requests, ledger, listener, recording)
    assert [engines.add(setup, 0) for _ in range(2)] == [0, 1]
    states: list[EngineState] = []

    def deliver(request: int, at_ps: int) -> None:
        ledger.arrival_ps[request] = at_ps
        if not engines.deliver(int(request % 3 == 2), request, at_ps):
            listener.heard.append(("turned away", request, at_ps))

    def look() -> None:
        states.extend(engines.state(number) for number in range(2))

    def cancel(at_ps: int) -> None:
        engines.cancel(0, CANCELLED, at_ps)

    for request, at_ps in enumerate(ARRIVALS_PS):
        call_at(env, at_ps, lambda _, r=request, t=at_ps: deliver(r, t), ARRIVE)  # type: ignore[misc]
        call_at(env, at_ps, lambda _: look(), BEFORE)
    call_at(env, CANCELLED_AT_PS, lambda _: cancel(CANCELLED_AT_PS), ARRIVE)
    engines.run()
    assert not engines.busy
    assert [engines.account(number).stalled_by for number in range(2)] == [None, None]
    columns = {name: getattr(ledger, name).tolist() for name in ("first_token_ps", "finish_ps")}
    return listener.heard, states, engines.account(0), columns


def test_both_tell_the_same_at_the_same_instants() -> None:
    compiled, readable = run("core"), run("events")
    assert compiled[0] == readable[0]
    assert compiled[1] == readable[1]
    assert compiled[3] == readable[3]
    last = ("turned away", COUNT - 1, ARRIVALS_PS[-1])
    assert last in compiled[0]
    assert not any(told[:3] == ("left", 0, CANCELLED) for told in compiled[0])
    assert max(state.num_waiting for state in compiled[1]) > 0


def test_both_keep_the_same_account() -> None:
    compiled, readable = run("core")[2], run("events")[2]
    for name in EngineAccount.__dataclass_fields__:
        if name != "now_ps":  # of an engine that rests
            assert getattr(compiled, name) == getattr(readable, name), name
    assert compiled.completed == 15  # of 16, one of which gave up
    assert compiled.free_blocks == compiled.num_blocks == 40
