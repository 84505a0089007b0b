"""Clients: a closed loop keeps its concurrency; arrivals beyond the clock are refused."""

from __future__ import annotations

import numpy as np
import pytest
from cluster_runs import assert_equal
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.base.clock import LATEST_S
from capacity.base.errors import InvalidInput
from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.client import Client, OpenLoopClient
from capacity.simulator.instants import CLOCK_ENDS_PS, NEVER
from capacity.step import AffineStepTimes
from capacity.workload import Workload


def test_closed_loop_keeps_its_concurrency() -> None:
    """C requests in flight at all times: with equal ones, N / C generations of the same length."""
    ones = np.full(40, 1)
    workload = Workload(
        arrival_s=0.0 * ones, prompt_tokens=100 * ones, output_tokens=20 * ones, concurrency=4
    )
    result = simulate(
        workload, EngineSetup(step_times=AffineStepTimes(0.006, 2e-5), num_blocks=2600, policy="vllm-v1")
    )
    generation = (0.006 + 400 * 2e-5) + 19 * (0.006 + 4 * 2e-5)
    assert result.summary.duration == pytest.approx(10 * generation, rel=1e-12)
    assert result.mean_batch_size == 4


def test_arrivals_beyond_the_clock_are_refused_in_one_line() -> None:
    late = Workload(arrival_s=[0.0, 1e7], prompt_tokens=[10, 10], output_tokens=[2, 2])
    with pytest.raises(InvalidInput, match="arrives after 1e"):
        simulate(late, EngineSetup(step_times=AffineStepTimes(0.01, 0.001), num_blocks=10))


def test_requests_that_are_taken_all_at_once_are_no_longer_due() -> None:
    client = OpenLoopClient(Workload(arrival_s=[0.5, 2.0], prompt_tokens=[10, 10], output_tokens=[2, 2]))
    assert client.due_ps == 5 * 10**11
    assert list(client.take_all()) == [5 * 10**11, 2 * 10**12]
    assert client.due_ps == NEVER


def test_requests_of_an_open_loop_reach_the_engines_after_the_latency() -> None:
    workload = Workload(arrival_s=[0.5, 2.0], prompt_tokens=[10, 10], output_tokens=[2, 2])
    client = OpenLoopClient(workload, delay_ps=7)
    assert client.due_ps == 5 * 10**11 + 7
    assert client.take(5 * 10**11) == []
    assert client.take(5 * 10**11 + 7) == [(0, 5 * 10**11 + 7)]
    assert client.due_ps == 2 * 10**12 + 7
    assert list(OpenLoopClient(workload, delay_ps=7).take_all()) == [5 * 10**11 + 7, 2 * 10**12 + 7]


STEPS = AffineStepTimes(0.01, 0.001)
LOOPS = ("events", "core")


def sessions(arrivals: list[float], thinks: list[float]) -> Workload:
    """One conversation: the first turn on the clock, each other a think time after the one before."""
    ones = np.ones(len(arrivals), dtype=np.int64)
    return Workload(
        arrival_s=sorted(arrivals),
        prompt_tokens=10 * ones,
        output_tokens=2 * ones,
        after_request=np.arange(len(arrivals)) - 1,
        think_s=[0.0, *thinks],
    )


@pytest.mark.parametrize("engine_loop", LOOPS)
@pytest.mark.parametrize("thinks", [[1e7], [2e7], [4.7e6], [6e5, 6e5], [1e9], [LATEST_S + 1]])
def test_thinking_beyond_the_clock_is_refused_in_one_line(thinks: list[float], engine_loop: str) -> None:
    workload = sessions([0.0] * (len(thinks) + 1), thinks)
    with pytest.raises(InvalidInput, match=r"think times,.* simulated time ends at 1.1e\+06 s") as refused:
        simulate(workload, EngineSetup(step_times=STEPS, num_blocks=10), engine_loop=engine_loop)
    assert "\n" not in str(refused.value)


def conversations(arrival_s: list[float], after: list[int], think_s: list[float]) -> Workload:
    ones = np.ones(len(after), dtype=np.int64)
    columns = {
        "prompt_tokens": 10 * ones,
        "output_tokens": 2 * ones,
        "after_request": after,
        "think_s": think_s,
    }
    return Workload(arrival_s=arrival_s, **columns)


def test_think_times_count_from_the_arrival_of_their_conversation() -> None:
    """Simulated time ends at 1,152,921 s."""
    with pytest.raises(InvalidInput, match=r"request 1, including think times, .* arrives after 1\.2e"):
        Client(conversations([6e5, 6e5], [-1, 0], [0.0, 6e5]))
    Client(conversations([0.0, 0.0, 6e5], [-1, 0, -1], [0.0, 6e5, 0.0]))  # the last ones begin at 6e5 s
    with pytest.raises(InvalidInput, match=r"request 2 of .* arrives after 2e"):
        Client(conversations([0.0, 0.0, 2e6], [-1, 0, -1], [0.0, 1.0, 0.0]))


def test_a_turn_at_the_end_of_the_clock_is_refused() -> None:
    client = Client(conversations([0.0, 0.0], [-1, 0], [0.0, 1.0]))
    assert client.take(0) == [(0, 0)]
    with pytest.raises(InvalidInput, match="simulated time ends"):
        client.on_completion(0, CLOCK_ENDS_PS - 10**12)


times = st.one_of(
    st.floats(0, 2 * LATEST_S),
    st.sampled_from((LATEST_S, np.nextafter(LATEST_S, 0), LATEST_S / 2, np.nextafter(LATEST_S, 1e9), 0.0)),
)


def outcome(workload: Workload, step_s: float, engine_loop: str) -> SimulationResult | str:
    """The run, or the line that refuses it."""
    setup = EngineSetup(step_times=AffineStepTimes(step_s, 0.001), num_blocks=100)
    try:
        return simulate(workload, setup, engine_loop=engine_loop)
    except InvalidInput as error:
        return str(error)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(times, min_size=1, max_size=4), st.data(), st.sampled_from((0.01, 1e3, 3e4, 1e5, 9e5)))
def test_at_the_end_of_the_clock_both_engines_answer_alike(
    arrivals: list[float], data: st.DataObject, step_s: float
) -> None:
    closed = data.draw(st.booleans())
    thinks = data.draw(st.lists(times, min_size=len(arrivals) - 1, max_size=len(arrivals) - 1))
    workload = sessions(arrivals, thinks)
    if not closed:
        workload = workload.in_open_loop()
    readable, compiled = (outcome(workload, step_s, loop) for loop in LOOPS)
    if isinstance(readable, str) or isinstance(compiled, str):
        assert readable == compiled
        assert "simulated time" in str(readable)
        return
    assert_equal(readable, compiled)
    records = readable.records
    assert (records.arrival_ps >= 0).all()
    assert (records.finish_ps > records.arrival_ps).all()


@pytest.mark.parametrize("engine_loop", LOOPS)
def test_a_run_that_goes_on_beyond_the_clock_says_so(engine_loop: str) -> None:
    said = outcome(sessions([LATEST_S], []), 9e5, engine_loop)
    assert str(said).startswith("simulated time ends after 1152921 s, and the run goes on to 2000000 s")
