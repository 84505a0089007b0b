"""Replicas of a deployment, options for recording a run, and the summary of each replica."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from capacity.base.errors import UnknownName
from capacity.base.record import make_from
from capacity.simulator.engines import EngineAccount
from capacity.simulator.front_end_process import FrontendTimes
from capacity.simulator.setup import EngineSetup, Role
from capacity.step import PS_PER_S

if TYPE_CHECKING:
    from capacity.simulator.engine import StepObserver

EngineLoop = Literal["auto", "core", "events"]


def parse_engine_loop(name: str) -> EngineLoop:
    """Return `name` as an engine loop. Raises UnknownName."""
    loops: dict[str, EngineLoop] = {loop: loop for loop in get_args(EngineLoop)}
    if name not in loops:
        raise UnknownName("engine loop", name, loops)
    return loops[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Options for recording a run: the engine loop, and `frontend`, the path between clients and engines.

    `keep_work` keeps statistics of the steps (`SimulationResult.step_work`); `observer` is called for each step.
    `progress(completed, total)` is called about 200 times. `check()` is called every few milliseconds between steps;
    an exception that it raises ends the run. `engine_loop`: see `simulate`.
    """

    frontend: FrontendTimes | None = None
    sample_interval_s: float | None = None
    keep_work: bool = False
    observer: "StepObserver | None" = None
    progress: Callable[[int, int], None] | None = None
    check: Callable[[], None] | None = None
    engine_loop: EngineLoop = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSummary:
    """Summary of one replica. It accepted requests from `from_s` to `until_s` (None: to the end of the run)."""

    number: int
    label: str
    role: Role
    requests: int
    busy_s: float
    steps: int
    preemptions: int
    kv_utilization_peak: float
    from_s: float
    until_s: float | None
    ended: str | None = None  # failed, or scaled down
    pool: int = 0  # index in the deployment's pools


@dataclass(slots=True)
class Member:
    """State of one replica. It takes requests while it is `open`, and exists until it is stopped."""

    setup: EngineSetup
    from_ps: int
    requests: int = 0
    until_ps: int | None = None
    ended: str | None = None
    open: bool = False
    paused: bool = False  # it has as many outstanding requests as allowed
    draining: bool = False

    @property
    def alive(self) -> bool:
        return self.until_ps is None

    @property
    def serving(self) -> bool:
        return self.open or (self.draining and self.alive)

    @property
    def starting(self) -> bool:
        """Whether the replica is still starting and will take requests later."""
        return self.alive and not self.draining and not self.open

    def summary(self, number: int, account: EngineAccount) -> ReplicaSummary:
        return make_from(
            ReplicaSummary,
            self,
            account,
            self.setup,
            number=number,
            busy_s=account.busy_ps / PS_PER_S,
            kv_utilization_peak=account.kv_peak_blocks / account.num_blocks,
            from_s=self.from_ps / PS_PER_S,
            until_s=None if self.until_ps is None else self.until_ps / PS_PER_S,
            pool=self.setup.takes.pool,
        )

    def alive_ps(self, end_ps: int) -> int:
        """Return how long (ps) the replica existed until `end_ps`, the time when the last request ended."""
        until_ps = end_ps if self.until_ps is None else min(self.until_ps, end_ps)
        return max(0, until_ps - self.from_ps)
