"""Result of a simulated run: load samples over time, counters of unanswered requests, and the end status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from capacity.simulator.dispatch import router_name
from capacity.simulator.engines import EngineAccount
from capacity.simulator.frontend import convert_to_client_clock
from capacity.simulator.ledger import Sample
from capacity.simulator.metrics import MISSING
from capacity.simulator.result import LoadSample, SimulationResult, Status, sum_engines
from capacity.step import PS_PER_S

if TYPE_CHECKING:
    from capacity.simulator.cluster import Cluster


class RunAccount:
    """Load samples of a run, and counters of requests that timed out, restarted, were lost or were rejected."""

    def __init__(self) -> None:
        self.timed_out = self.restarted = self.lost = self.rejected = 0
        self.passed_on = self.from_cache = 0  # discarded answers of engines; answers of the cache
        self.stalled_by: str | None = None
        self.load: list[LoadSample] = []
        self.series: list[Sample] = []

    def sample(self, cluster: Cluster, now_ps: int) -> None:
        """Record a sample of the load: running and waiting requests and used KV blocks, summed over all engines."""
        serving = [number for number, member in enumerate(cluster.members) if member.serving]
        states = [cluster.engines.state(number) for number in serving]
        self.load.append(
            LoadSample(
                time_s=now_ps / PS_PER_S,
                replicas=len(states),
                outstanding=cluster.outstanding,
                by_role=cluster.by_role,
            )
        )
        self.series.append(
            Sample(
                time_s=now_ps / PS_PER_S,
                running=sum(state.num_running for state in states),
                waiting=sum(state.num_waiting for state in states) + cluster.waiting_for_replica,
                kv_used_blocks=sum(state.kv_used_blocks for state in states),
            )
        )

    def result(
        self, cluster: Cluster, *, goodput_ms: Mapping[str, float] | None, interrupted: bool
    ) -> SimulationResult:
        """Return the result of the run, summed over all engines."""
        ledger, members, recording = cluster.ledger, cluster.members, cluster.recording
        if cluster.feeds:
            arrived = np.frombuffer(ledger.arrival_ps, dtype=np.int64) != MISSING
            for number, member in enumerate(members):
                member.requests = int(arrived[number :: len(members)].sum())
        if recording.frontend is not None and recording.frontend.delays:
            convert_to_client_clock(ledger, recording.frontend)
        engines = [cluster.engines.account(number) for number in range(len(members))]
        status, reason = self._end_status(cluster, engines, interrupted)
        result = sum_engines(
            members,
            engines,
            ledger.table(cluster.workload),
            gaps=cluster.engines.gaps,
            goodput_ms=goodput_ms,
            status=status,
            reason=reason,
        )
        router = cluster.dispatch.router
        return replace(
            result,
            rejected=result.rejected + self.rejected,
            router=router_name(router),
            timed_out=self.timed_out,
            restarted=self.restarted,
            lost=self.lost,
            load=tuple(self.load) if router is not None else (),
            replica_of=np.arange(len(cluster.workload)) % len(members)
            if cluster.feeds
            else np.frombuffer(cluster.replica_of, dtype=np.int64),
            series=tuple(self.series),
        )

    def _end_status(
        self, cluster: Cluster, engines: Sequence[EngineAccount], interrupted: bool
    ) -> tuple[Status, str | None]:
        """Return the end status of the run (complete, stalled, interrupted), and the reason unless it is complete."""
        if interrupted:
            now_ps = max([int(cluster.env.now), *(engine.now_ps for engine in engines)])
            return "interrupted", f"interrupted at {now_ps / PS_PER_S:.3f} s of simulated time"
        if self.stalled_by is not None:
            return "stalled", self.stalled_by
        there = [engine for engine, member in zip(engines, cluster.members, strict=True) if member.alive]
        for engine in there:
            if engine.stalled_by is not None:
                return "stalled", engine.stalled_by
        waiting = cluster.waiting_for_replica
        if waiting:
            return "stalled", f"{waiting} requests wait for a replica, but no replica is available"
        assert all(engine.free_blocks == engine.num_blocks for engine in there), "KV blocks leaked"
        answered = sum(engine.completed + engine.rejected for engine in engines)
        turned_away = self.rejected + self.timed_out + self.lost
        ended = answered - self.passed_on + self.from_cache + turned_away
        assert ended == len(cluster.workload), "requests were lost"
        return "complete", None
