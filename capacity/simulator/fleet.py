"""SimPy processes that change the replicas of a running deployment: failures, repair and autoscaling."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import simpy

from capacity.base.clock import LATEST_S, check_time
from capacity.base.errors import InvalidInput
from capacity.simulator.instants import BEFORE, CLOCK_ENDS_PS, Instant, clock_overflow_error
from capacity.simulator.setup import EngineSetup
from capacity.step import PS_PER_S, picoseconds

if TYPE_CHECKING:
    from capacity.simulator.cluster import Cluster

# Limits of each event without the end of a request. If a request completes in only one replica lifetime of a hundred,
# the probability of a thousand failed lifetimes is still only 4e-5. The other limits bound time and memory.
MAX_LOSSES_WITH_REQUESTS = 1_000
MAX_IDLE_LOSSES = 100_000
MAX_SCALING_DECISIONS = 1_000_000
MAX_SAMPLES = 1_000_000


class NoProgress(Exception):
    """The simulation would run forever without completing another request; the message gives the reason."""


class ProgressGuard:
    """Detects runs without progress: counts events, such as lost replicas, since a request last ended."""

    def __init__(self) -> None:
        self.counts: dict[str, tuple[int, int]] = {}  # by event: count and first instant

    def request_ended(self) -> None:
        if self.counts:
            self.counts = {}

    def count_event(self, what: str, most: int, now_ps: int, remedy: str) -> None:
        """Count the event `what`; raise NoProgress if it occurs more than `most` times before a request ends."""
        count, since_ps = self.counts.get(what, (0, now_ps))
        if count >= most:
            raise NoProgress(
                f"{what} {count:,} times from {since_ps / PS_PER_S:,.3f} s to {now_ps / PS_PER_S:,.3f} s, and no "
                f"request has ended: {remedy}"
            )
        self.counts[what] = count + 1, since_ps

    def count_lost_replica(self, *, with_requests: bool, now_ps: int) -> None:
        """Count the loss of a replica; raise NoProgress if too many replicas are lost before a request ends."""
        if with_requests:
            remedy = "increase the mean time between failures, or let requests fail instead of restart"
            self.count_event(
                "replicas were lost with their requests", MAX_LOSSES_WITH_REQUESTS, now_ps, remedy
            )
        else:
            remedy = "increase the mean time between failures relative to the time between requests"
            self.count_event("idle replicas were lost", MAX_IDLE_LOSSES, now_ps, remedy)


Process = Generator[simpy.Event, None, None]
FAILURE_STREAM = 100  # random stream, in addition to the workload's


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Random failures of replicas, such as spot interruptions; lifetimes are exponential with the given mean.

    A failed replica loses its KV cache. Its requests restart on other replicas or fail, as `requests` specifies. A new
    replica with an empty cache replaces it after `recovery_s`. For another failure model, override `lifetime_s`.
    """

    mean_time_between_failures_s: float
    recovery_s: float
    requests: Literal["restart", "fail"] = "restart"
    seed: int = 0

    def __post_init__(self) -> None:
        _check_positive("mean time between failures", self.mean_time_between_failures_s)
        check_time("recovery time", self.recovery_s)

    def lifetime_s(self, number: int) -> float:
        """Return the seconds from the opening of replica `number` to its failure."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(FAILURE_STREAM, number)))
        return float(rng.exponential(self.mean_time_between_failures_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """Autoscaling to `target_requests` outstanding requests per replica, between the initial and the maximum number.

    Every `interval_s` the controller compares the number of replicas with the desired number. New replicas start at
    once and take requests after `startup_s`. Replicas are removed only if the desired number was below the current
    number for `scale_down_delay_s`; a removed replica first completes its requests. The defaults of interval and delay
    are those of Kubernetes' horizontal pod autoscaler.
    """

    max_replicas: int
    target_requests: float
    startup_s: float
    interval_s: float = 15.0
    scale_down_delay_s: float = 300.0

    def __post_init__(self) -> None:
        if self.max_replicas < 1:
            raise InvalidInput(f"max_replicas must be at least 1, not {self.max_replicas}")
        _check_positive("target of outstanding requests per replica", self.target_requests)
        check_time("autoscaling interval", self.interval_s, above_zero=True)
        for name in ("startup_s", "scale_down_delay_s"):
            check_time(name, getattr(self, name))


def _check_positive(what: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise InvalidInput(f"the {what} must be finite and above 0, not {value}")


def _wait(cluster: Cluster, delay_ps: int) -> Generator[simpy.Event, None, int]:
    """Wait `delay_ps` and return the simulated time (ps) after the wait."""
    yield cluster.env.timeout(delay_ps)
    now_ps = int(cluster.env.now)
    if now_ps >= CLOCK_ENDS_PS and not cluster.is_over:
        raise clock_overflow_error(now_ps)
    return now_ps


def fail_replica(cluster: Cluster, number: int, plan: Failures) -> Process:
    """Wait until a replica fails, and add its replacement after the recovery time."""
    member = cluster.members[number]
    lifetime_ps = max(1, picoseconds(min(plan.lifetime_s(number), 2 * LATEST_S)))
    now_ps = yield from _wait(cluster, lifetime_ps)
    if cluster.is_over or not member.alive:
        return
    cluster.fail(number, now_ps)
    if member.draining:
        return
    cluster.coming += 1
    now_ps = yield from _wait(cluster, picoseconds(plan.recovery_s))
    over = cluster.is_over
    cluster.coming -= 1
    if not over:
        cluster.add(member.setup, now_ps)


def autoscale_pool(cluster: Cluster, setup: EngineSetup, plan: Autoscaling) -> Process:
    """Adjust the number of replicas of one pool and role every `interval_s`, never below the initial number."""
    least = len(cluster.replicas_of(setup))
    interval_ps = max(1, picoseconds(plan.interval_s))
    last_wanted_ps = 0  # last time without a surplus of replicas
    while True:
        now_ps = yield from _wait(cluster, interval_ps)
        members = [cluster.members[number] for number in cluster.replicas_of(setup)]
        taking = sum(member.open for member in members)
        current = taking + sum(member.starting for member in members)
        wanted = math.ceil(cluster.pool_load(setup) / plan.target_requests)
        wanted = min(max(wanted, least), plan.max_replicas)
        if cluster.is_over and not (cluster.waiting_for_replica and wanted > current):
            return
        remedy = "increase the autoscaling interval"
        cluster.in_vain.count_event("the autoscaler decided", MAX_SCALING_DECISIONS, now_ps, remedy)
        if wanted >= current:
            last_wanted_ps = now_ps
        for _ in range(wanted - current):
            cluster.env.process(_start_replica(cluster, setup, plan))
        if wanted < current and now_ps - last_wanted_ps >= picoseconds(plan.scale_down_delay_s):
            opened = [number for number in cluster.replicas_of(setup) if cluster.members[number].open]
            opened.sort(key=lambda number: (cluster.routers[number].requests[number], -number))
            for number in opened[: min(current - wanted, taking - 1)]:  # of equal loads the newest first
                cluster.drain(number, now_ps, "scaled down")


def _start_replica(cluster: Cluster, setup: EngineSetup, plan: Autoscaling) -> Process:
    number = cluster.add(setup, int(cluster.env.now), ready=False)
    now_ps = yield from _wait(cluster, picoseconds(plan.startup_s))
    cluster.open(number, now_ps)


def sample_states(cluster: Cluster, interval_s: float) -> Process:
    """Sample the deployment's state every `interval_s`, before all other events of the same time."""
    interval_ps = max(1, picoseconds(interval_s))
    at_ps = 0
    for _ in range(MAX_SAMPLES):
        yield Instant(cluster.env, BEFORE).schedule_at(at_ps)
        if cluster.is_over:
            return
        cluster.account.sample(cluster, at_ps)
        at_ps += interval_ps
    raise InvalidInput(
        f"a sample every {interval_s:g} s gives more than {MAX_SAMPLES:,} samples by {at_ps / PS_PER_S:g} s "
        "of simulated time: increase the sampling interval"
    )
