"""The clock of several engines: nothing moves before its cause."""

from __future__ import annotations

import numpy as np
from cluster_runs import COLUMNS, STEPS, alone, requests

from capacity.simulator import EngineSetup, simulate
from capacity.simulator.schedulers import SchedulerLimits


def test_replicas_that_share_nothing_are_runs_of_their_own() -> None:
    """Round robin knows no state: replica k of R serves requests k, k + R, ... as if it were alone."""
    workload = requests(count=301, rate=20.0)
    setup = EngineSetup(step_times=STEPS, num_blocks=300, limits=SchedulerLimits(max_num_seqs=8))
    found = simulate(workload, [setup] * 3, router="round-robin").records
    for replica in range(3):
        rows = np.arange(replica, 301, 3)
        part = alone(workload.take(rows), setup).records
        for column in COLUMNS:
            np.testing.assert_array_equal(getattr(found, column)[rows], getattr(part, column))


def test_what_is_known_only_later_changes_nothing_before() -> None:
    """Causality: requests added at the end leave every earlier event as it was."""
    workload = requests(count=150, rate=15.0)
    setup = EngineSetup(step_times=STEPS, num_blocks=200)
    whole = simulate(workload, [setup] * 2, router="least-outstanding").records
    part = simulate(workload.head(100), [setup] * 2, router="least-outstanding").records
    until = int(workload.arrival_s[100] * 1e12)
    before = part.finish_ps < until
    assert before.sum() > 50
    np.testing.assert_array_equal(whole.finish_ps[:100][before], part.finish_ps[before])
