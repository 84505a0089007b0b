"""What changes the replicas of a running deployment: failures and their repair, and an autoscaler. SimPy processes."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import simpy

from capacity.base.clock import LATEST_S, check_time
from capacity.base.errors import InvalidInput
from capacity.simulator.instants import BEFORE, CLOCK_ENDS_PS, Instant, beyond_clock
from capacity.simulator.setup import EngineSetup
from capacity.step import PS_PER_S, picoseconds

if TYPE_CHECKING:
    from capacity.simulator.cluster import Cluster

# Of each, while no request ends. A request that survives one life of a replica in a hundred is still answered:
# a thousand lives in vain have then a chance of 4e-5. The others cost time and memory, and nobody waits for them.
LOSSES_IN_VAIN = 1_000
IDLE_LOSSES_IN_VAIN = 100_000
DECISIONS_IN_VAIN = 1_000_000
MOST_SAMPLES = 1_000_000


class NoProgress(Exception):
    """The run would go on for ever and answer nobody; why, in one line."""


class InVain:
    """Counts what happens again and again, from one request's end to the next."""

    def __init__(self) -> None:
        self.counts: dict[
            str, tuple[int, int]
        ] = {}  # how often each thing has happened, and first at which instant

    def request_ended(self) -> None:
        """Whatever happened was not in vain."""
        if self.counts:
            self.counts = {}

    def again(self, what: str, most: int, now_ps: int, remedy: str) -> None:
        """It has happened once more; raises NoProgress beyond `most` times without a request's end."""
        count, since_ps = self.counts.get(what, (0, now_ps))
        if count >= most:
            raise NoProgress(
                f"{what} {count:,} times from {since_ps / PS_PER_S:,.3f} s to {now_ps / PS_PER_S:,.3f} s, and no "
                f"request has ended meanwhile: {remedy}"
            )
        self.counts[what] = count + 1, since_ps

    def replica_lost(self, *, with_requests: bool, now_ps: int) -> None:
        """A replica is lost; raises NoProgress where that is all that happens."""
        if with_requests:
            remedy = "replicas must live longer than a request takes, or its requests fail and not restart"
            self.again("replicas were lost with their requests", LOSSES_IN_VAIN, now_ps, remedy)
        else:
            remedy = "the mean time between failures is too short beside the time between requests"
            self.again("idle replicas were lost", IDLE_LOSSES_IN_VAIN, now_ps, remedy)


Process = Generator[simpy.Event, None, None]
FAILURE_STREAM = 100  # beside the workload's streams of random numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Each replica is lost after an exponential time of this mean (a spot interruption, say), with all that it holds.

    Its `requests` start anew on the others, or fail. A new replica, with an empty cache, takes its place
    `recovery_s` later. For another model of failures, override `lifetime_s`.
    """

    mean_time_between_failures_s: float
    recovery_s: float
    requests: Literal["restart", "fail"] = "restart"
    seed: int = 0

    def __post_init__(self) -> None:
        _check("mean time between failures", self.mean_time_between_failures_s)
        check_time("recovery time", self.recovery_s)

    def lifetime_s(self, number: int) -> float:
        """How long after it has opened replica `number` is lost."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(FAILURE_STREAM, number)))
        return float(rng.exponential(self.mean_time_between_failures_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """As many replicas as keep the outstanding requests at `target_requests` each, from those at first to the most.

    Every `interval_s` the number is compared with what is wanted. More are started at once and take requests
    `startup_s` later; fewer are kept only after `scale_down_delay_s` in which no more were wanted, and one that goes
    first answers what it has. Defaults of interval and delay: Kubernetes' horizontal pod autoscaler.
    """

    max_replicas: int
    target_requests: float
    startup_s: float
    interval_s: float = 15.0
    scale_down_delay_s: float = 300.0

    def __post_init__(self) -> None:
        if self.max_replicas < 1:
            raise InvalidInput(f"the most replicas must be at least 1, not {self.max_replicas}")
        _check("target of requests per replica", self.target_requests)
        check_time("autoscaling interval", self.interval_s, above_zero=True)
        for name in ("startup_s", "scale_down_delay_s"):
            check_time(name, getattr(self, name))


def _check(what: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise InvalidInput(f"the {what} must be finite and above 0, not {value}")


def _later(cluster: Cluster, delay_ps: int) -> Generator[simpy.Event, None, int]:
    """Wait; returns the instant then."""
    yield cluster.env.timeout(delay_ps)
    now_ps = int(cluster.env.now)
    if now_ps >= CLOCK_ENDS_PS and not cluster.over:
        raise beyond_clock(now_ps)
    return now_ps


def fail_replica(cluster: Cluster, number: int, plan: Failures) -> Process:
    """One replica's life until it fails, and its successor's birth."""
    member = cluster.members[number]
    lifetime_ps = max(1, picoseconds(min(plan.lifetime_s(number), 2 * LATEST_S)))
    now_ps = yield from _later(cluster, lifetime_ps)
    if cluster.over or not member.alive:
        return
    cluster.fail(number, now_ps)
    if member.draining:
        return
    cluster.coming += 1
    now_ps = yield from _later(cluster, picoseconds(plan.recovery_s))
    over = cluster.over
    cluster.coming -= 1
    if not over:
        cluster.add(member.setup, now_ps)


def autoscale_pool(cluster: Cluster, setup: EngineSetup, plan: Autoscaling) -> Process:
    """The control loop of the replicas of one pool, and of one role. Never fewer than at first."""
    least = len(cluster.replicas_of(setup))
    interval_ps = max(1, picoseconds(plan.interval_s))
    last_wanted_ps = 0  # when no fewer than now were wanted
    while True:
        now_ps = yield from _later(cluster, interval_ps)
        members = [cluster.members[number] for number in cluster.replicas_of(setup)]
        taking = sum(member.open for member in members)
        current = taking + sum(member.starting for member in members)
        wanted = math.ceil(cluster.load_of(setup) / plan.target_requests)
        wanted = min(max(wanted, least), plan.max_replicas)
        if cluster.over and not (cluster.waiting_for_replica and wanted > current):
            return
        remedy = "a longer autoscaling interval"
        cluster.in_vain.again("the autoscaler decided", DECISIONS_IN_VAIN, now_ps, remedy)
        if wanted >= current:
            last_wanted_ps = now_ps
        for _ in range(wanted - current):
            cluster.env.process(_start_replica(cluster, setup, plan))
        if wanted < current and now_ps - last_wanted_ps >= picoseconds(plan.scale_down_delay_s):
            for number in _least_loaded(cluster, setup, min(current - wanted, taking - 1)):
                cluster.drain(number, now_ps, "scaled down")


def _least_loaded(cluster: Cluster, setup: EngineSetup, count: int) -> list[int]:
    """`count` of a pool's replicas that take requests, those with the fewest first, of equals the youngest."""
    taking = [number for number in cluster.replicas_of(setup) if cluster.members[number].open]
    return sorted(taking, key=lambda number: (cluster.routers[number].requests[number], -number))[:count]


def _start_replica(cluster: Cluster, setup: EngineSetup, plan: Autoscaling) -> Process:
    number = cluster.add(setup, int(cluster.env.now), ready=False)
    now_ps = yield from _later(cluster, picoseconds(plan.startup_s))
    cluster.open(number, now_ps)


def sample_states(cluster: Cluster, interval_s: float) -> Process:
    """A sample of the deployment's state every so often, before anything else of that instant happens."""
    interval_ps = max(1, picoseconds(interval_s))
    at_ps = 0
    for _ in range(MOST_SAMPLES):
        yield Instant(cluster.env, BEFORE).schedule_at(at_ps)
        if cluster.over:
            return
        cluster.account.sample(cluster, at_ps)
        at_ps += interval_ps
    raise InvalidInput(
        f"a sample every {interval_s:g} s is too many: {MOST_SAMPLES:,} by {at_ps / PS_PER_S:g} s of simulated time; "
        "a longer interval"
    )
