"""What changes the replicas of a running deployment: failures and their repair, and an autoscaler. SimPy processes."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import simpy

from capacity.base.errors import InvalidInput
from capacity.simulator.setup import EngineSetup, Role
from capacity.step import picoseconds

Process = Generator[simpy.Event, None, None]
FAILURE_STREAM = 100  # beside the workload's streams of random numbers


class Fleet(Protocol):
    """The replicas of a running deployment, by number, as these processes see and change them."""

    env: simpy.Environment

    def add(self, setup: EngineSetup, now_ps: int = 0, *, ready: bool = True) -> int: ...
    def open(self, number: int, now_ps: int) -> None: ...
    def drain(self, number: int, now_ps: int, why: str) -> None: ...
    def fail(self, number: int, now_ps: int) -> None: ...
    def is_alive(self, number: int) -> bool: ...
    def is_draining(self, number: int) -> bool: ...
    def setup_of(self, number: int) -> EngineSetup: ...
    def of_role(self, role: Role) -> list[int]: ...
    def pool_size(self, role: Role) -> int: ...
    def starting(self, role: Role) -> int: ...
    def load_of(self, role: Role) -> int: ...
    def least_loaded(self, role: Role, count: int) -> list[int]: ...
    def sample(self, now_ps: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Each replica is lost after an exponential time of this mean (a spot interruption, say), with all that it holds.

    Its `requests` start anew on the others, or fail. A new replica, with an empty cache, takes its place
    `recovery_s` later.
    """

    mean_time_between_failures_s: float
    recovery_s: float
    requests: Literal["restart", "fail"] = "restart"
    seed: int = 0

    def __post_init__(self) -> None:
        _check("mean time between failures", self.mean_time_between_failures_s)
        if not 0 <= self.recovery_s < math.inf:
            raise InvalidInput(f"the recovery time must be finite and at least 0 s, not {self.recovery_s}")


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
        _check("autoscaling interval", self.interval_s)
        for name in ("startup_s", "scale_down_delay_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidInput(f"{name} must be finite and at least 0 s, not {getattr(self, name)}")


def _check(what: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise InvalidInput(f"the {what} must be finite and above 0, not {value}")


def failing(fleet: Fleet, number: int, plan: Failures) -> Process:
    """One replica's life until it fails, and its successor's birth."""
    rng = np.random.default_rng(np.random.SeedSequence(plan.seed, spawn_key=(FAILURE_STREAM, number)))
    lifetime_ps = max(1, picoseconds(min(float(rng.exponential(plan.mean_time_between_failures_s)), 1e9)))
    yield fleet.env.timeout(lifetime_ps)
    if not fleet.is_alive(number):
        return
    fleet.fail(number, int(fleet.env.now))
    if fleet.is_draining(number):
        return
    yield fleet.env.timeout(picoseconds(plan.recovery_s))
    fleet.add(fleet.setup_of(number), int(fleet.env.now))


def autoscaling(fleet: Fleet, setup: EngineSetup, plan: Autoscaling) -> Process:
    """The control loop of the replicas of one role. Never fewer than at first."""
    env, role = fleet.env, setup.role
    least = len(fleet.of_role(role))
    if plan.max_replicas < least:
        raise InvalidInput(f"{least} replicas at first are more than the most of {plan.max_replicas}")
    interval_ps = max(1, picoseconds(plan.interval_s))
    last_wanted_ps = 0  # when no fewer than now were wanted
    while True:
        yield env.timeout(interval_ps)
        now_ps = int(env.now)
        current = fleet.pool_size(role) + fleet.starting(role)
        wanted = math.ceil(fleet.load_of(role) / plan.target_requests)
        wanted = min(max(wanted, least), plan.max_replicas)
        if wanted >= current:
            last_wanted_ps = now_ps
        for _ in range(wanted - current):
            env.process(_starting(fleet, setup, plan))
        if wanted < current and now_ps - last_wanted_ps >= picoseconds(plan.scale_down_delay_s):
            for number in fleet.least_loaded(role, min(current - wanted, fleet.pool_size(role) - 1)):
                fleet.drain(number, now_ps, "scaled down")


def _starting(fleet: Fleet, setup: EngineSetup, plan: Autoscaling) -> Process:
    number = fleet.add(setup, int(fleet.env.now), ready=False)
    yield fleet.env.timeout(picoseconds(plan.startup_s))
    fleet.open(number, int(fleet.env.now))


def watching(fleet: Fleet, interval_s: float) -> Process:
    """A sample of the deployment's state every so often."""
    interval_ps = max(1, picoseconds(interval_s))
    while True:
        fleet.sample(int(fleet.env.now))
        yield fleet.env.timeout(interval_ps)
