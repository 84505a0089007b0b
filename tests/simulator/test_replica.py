"""A replica turns requests away at its queue limit, and aborts those whose clients have gone."""

from __future__ import annotations

from cluster_runs import STEPS, assert_conserved, assert_equal, requests

from capacity.simulator import EngineSetup, simulate
from capacity.simulator.schedulers import SchedulerLimits


def test_a_full_queue_turns_requests_away() -> None:
    setup = EngineSetup(step_times=STEPS, num_blocks=400, limits=SchedulerLimits(max_num_seqs=2))
    workload = requests(count=200, rate=50.0)
    found = simulate(workload, [setup] * 2, queue_limit=3)
    assert found.rejected > 50
    assert_conserved(workload, found)
    waits = found.records.first_scheduled_ps - found.records.arrival_ps
    free = simulate(workload, [setup] * 2)
    assert (
        waits[found.records.completed].max()
        < (free.records.first_scheduled_ps - free.records.arrival_ps).max()
    )


def test_clients_that_give_up_leave_nothing_behind() -> None:
    setup = EngineSetup(step_times=STEPS, num_blocks=130, limits=SchedulerLimits(max_num_seqs=4))
    workload = requests(count=200, rate=50.0)
    found = simulate(workload, [setup] * 2, timeout_s=2.0)
    assert found.timed_out > 20
    assert_conserved(workload, found)
    stays = (found.records.finish_ps - found.records.arrival_ps)[found.records.completed]
    assert stays.max() <= 2e12
    never = simulate(workload, [setup] * 2, timeout_s=1e6)
    assert_equal(never, simulate(workload, [setup] * 2))
