"""Replicas behind a router, on one clock: requests in, each to one engine, records and a summary out.

The engine loop is the same as for one engine; here is only who gets which request, who gives up, and which replicas
there are. Whatever happens at fixed instants (failures, scaling) is a SimPy process; engines run between.
"""

from __future__ import annotations

import copy
import heapq
from array import array
from collections import deque
from collections.abc import Generator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import simpy

from capacity.errors import InvalidInput
from capacity.kv_cache.block_pool import BlockPool
from capacity.kv_cache.content import Content
from capacity.kv_cache.run_pool import RunPool
from capacity.metrics import MISSING, summarize
from capacity.schedulers import SchedulerLimits, Sequence, make_policy
from capacity.simulator.client import NEVER, Arrivals, client_of
from capacity.simulator.fleet import Autoscaling, Failures, autoscaling, failing, watching
from capacity.simulator.frontend import Frontend, FrontendTimes, StreamingLedger
from capacity.simulator.ledger import Ledger
from capacity.simulator.replica import ARRIVE, NEVER_KEY, Replica
from capacity.simulator.router import Prompt, make_router
from capacity.simulator.simulate import SimulationResult, _answers_stay_private
from capacity.step import PS_PER_S, StepTimes, picoseconds
from capacity.workload import BlockRuns, Workload

NO_CHAIN: tuple[tuple[int, ...], list[int]] = ((), [])


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """What one replica is: the arguments of `simulate_engine` that belong to the engine."""

    step_times: StepTimes
    num_blocks: int
    block_size: int = 16
    policy: str = "vllm-v1-async"
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    enable_prefix_caching: bool = True
    kv_windows: tuple[int | None, ...] = (None,)
    window_tokens: int | None = None
    label: str = "engine"

    def pool(self, mode: str) -> Any:
        """An empty KV pool."""
        if self.num_blocks < 1 or self.block_size < 1:
            raise InvalidInput(
                "the KV cache must have at least 1 block of at least 1 token, "
                f"not {self.num_blocks} of {self.block_size}"
            )
        if mode == "jump" and self.kv_windows == (None,):
            return RunPool(self.num_blocks, self.block_size, prefix_caching=self.enable_prefix_caching)
        return BlockPool(
            self.num_blocks,
            self.block_size,
            prefix_caching=self.enable_prefix_caching,
            windows=self.kv_windows,
            max_model_len=self.limits.max_model_len,
            in_flight_tokens=self.limits.max_num_batched_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSummary:
    """One replica's share. `from_s` to `until_s`: when it took requests (None: to the end)."""

    number: int
    label: str
    requests: int
    busy_s: float
    steps: int
    preemptions: int
    kv_utilization_peak: float
    from_s: float
    until_s: float | None
    ended: str | None = None  # failed, or scaled down


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult(SimulationResult):
    """What a deployment did with a workload: `SimulationResult` over all replicas, and what happened to each.

    `timed_out` requests were given up by their client, `restarted` ones begun anew after a failure; both of these and
    `rejected` are counted, and requests that did not complete are the summary's `failed`.
    `replica_s` is the time that replicas were there for, and paid for, until the last request ended.
    """

    router: str
    replicas: tuple[ReplicaSummary, ...]
    timed_out: int
    restarted: int
    replica_s: float
    load: tuple[LoadSample, ...] = ()  # over time, where samples were asked for

    def to_dict(self) -> dict[str, Any]:
        shared = SimulationResult.to_dict(self)
        return {
            **shared,
            "router": self.router,
            "timed_out": self.timed_out,
            "restarted": self.restarted,
            "replica_s": self.replica_s,
            "replicas": [
                {name: getattr(replica, name) for name in ReplicaSummary.__slots__}
                for replica in self.replicas
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """The deployment at one instant: replicas that take requests or still answer some, and requests in all."""

    time_s: float
    replicas: int
    outstanding: int


@dataclass(slots=True)
class _Life:
    """A replica, and what it did so far."""

    replica: Replica
    setup: EngineSetup
    ledger: Ledger
    from_ps: int
    requests: int = 0
    until_ps: int | None = None
    ended: str | None = None
    open: bool = False  # it takes requests


class Cluster:
    """The replicas there are, the router before them, and the clock that they share."""

    def __init__(
        self,
        workload: Workload,
        *,
        router: str = "round-robin",
        frontend: FrontendTimes | None = None,
        queue_limit: int | None = None,
        outstanding_limit: int | None = None,
        timeout_s: float | None = None,
        failures: Failures | None = None,
        mode: Literal["jump", "step"] = "jump",
    ) -> None:
        self.workload = workload
        self.env = simpy.Environment(initial_time=0)
        self.router = make_router(router, has_sessions=workload.session is not None)
        self.router_name = router
        streams = frontend is not None and frontend.streams
        self.ledger = (
            StreamingLedger(workload, frontend) if frontend is not None and streams else Ledger(workload)
        )
        self.client: Arrivals = client_of(workload)
        if frontend is not None and frontend.delays:
            self.client = Frontend(client_of(workload), self.ledger, frontend)
        self.lives: list[_Life] = []
        self.keys: list[int] = []
        self.timed_out = 0
        self.restarted = 0
        self.rejected = 0
        self.now_ps = 0
        self.load: list[LoadSample] = []
        self._failures = failures
        self._mode: Literal["jump", "step"] = mode
        self._queue_limit = queue_limit
        self._outstanding_limit = outstanding_limit
        self._paused: set[int] = set()
        self._sending: deque[tuple[int, int]] = deque()
        self._timeout_ps = None if timeout_s is None else picoseconds(timeout_s)
        self._deadlines: list[tuple[int, int]] = []  # (instant, request)
        self._home: dict[int, int] = {}  # replica of each request that is outstanding
        self._held: dict[int, None] = {}  # requests that wait at the router, in order: no replica takes any
        self._feedback = workload.is_closed_loop
        self._jumps = mode == "jump" and not streams
        self._private_answers: bool | None = None
        self._prompts = array("q", workload.prompt_tokens.tobytes())
        self._outputs = array("q", workload.output_tokens.tobytes())
        self._priorities = workload.priority.tolist() if workload.priority is not None else None
        self._sessions = workload.session.tolist() if workload.session is not None else None
        self._runs: dict[int, Any] = {}  # of shareable blocks, by block size

    # replicas

    def add(self, setup: EngineSetup, now_ps: int = 0, *, ready: bool = True) -> int:
        """A new replica, empty; returns its number. With `ready`, it takes requests from now on."""
        number = len(self.lives)
        ledger = copy.copy(self.ledger)  # columns are shared, sums are its own
        ledger.samples = []
        pool = setup.pool(self._mode)
        replica = Replica(
            self.env,
            number=number,
            owner=self,
            queue_limit=self._queue_limit,
            policy=make_policy(setup.policy, setup.limits, pool, **setup.policy_options),
            pool=pool,
            step_times=setup.step_times,
            ledger=ledger,
            new_sequence=self._sequence_maker(pool, setup.limits.max_model_len),
            jumps=self._jumps and (not setup.enable_prefix_caching or self._answers_are_private()),
            pipeline_stages=setup.limits.pipeline_stages,
            window_tokens=setup.window_tokens,
        )
        replica.now_ps = now_ps
        if self._timeout_ps is not None and not hasattr(replica.policy, "abort"):
            raise InvalidInput(
                f"requests cannot time out under the {setup.policy} scheduler: it cannot abort any"
            )
        self.lives.append(_Life(replica, setup, ledger, now_ps))
        self.keys.append(NEVER_KEY)
        self._find_runs(setup.block_size)
        if ready:
            self.open(number, now_ps)
        return number

    def open(self, number: int, now_ps: int) -> None:
        """The replica takes requests, those held first."""
        self.lives[number].open = True
        self.router.joined(number)
        if self._failures is not None:
            self.env.process(failing(self, number, self._failures))
        self._release(now_ps)

    def _release(self, now_ps: int) -> None:
        """Send on who waits at the router, for as long as a replica takes requests."""
        while self._held and self.router.ready:
            request = next(iter(self._held))
            del self._held[request]
            self._dispatch(request, now_ps)

    def drain(self, number: int, now_ps: int, why: str) -> None:
        """The replica takes no more requests, and is gone once it has none."""
        life = self.lives[number]
        life.replica.draining = True
        life.ended = why
        self._close(number)
        if not self.router.requests[number]:
            self._retire(number, now_ps)

    @property
    def serving(self) -> int:
        """Replicas that take requests."""
        return sum(life.open for life in self.lives)

    @property
    def starting(self) -> int:
        """Replicas that will take requests."""
        return sum(life.replica.alive and not life.open and not life.replica.draining for life in self.lives)

    @property
    def outstanding(self) -> int:
        """Requests that are not answered yet."""
        return len(self._home) + len(self._held)

    def least_loaded(self, count: int) -> list[int]:
        """`count` of the replicas that take requests, those with the fewest first, of equals the youngest."""
        ranked = sorted((self.router.requests[n], -n) for n, life in enumerate(self.lives) if life.open)
        return [-negative for _, negative in ranked[:count]]

    def sample(self, now_ps: int) -> None:
        replicas = sum(life.open or (life.replica.draining and life.replica.alive) for life in self.lives)
        self.load.append(
            LoadSample(time_s=now_ps / PS_PER_S, replicas=replicas, outstanding=self.outstanding)
        )

    def _close(self, number: int) -> None:
        self.lives[number].open = False
        if number in self._paused:
            self._paused.remove(number)
            self.router.resume(number)
        self.router.gone(number)

    def _retire(self, number: int, now_ps: int) -> None:
        life = self.lives[number]
        life.until_ps = now_ps
        life.replica.stop()
        self.keys[number] = NEVER_KEY

    def fail(self, number: int, now_ps: int) -> None:
        """The replica is lost with all it holds; its requests start anew on the others, from their prompt."""
        life = self.lives[number]
        if not life.replica.draining:
            self._close(number)
        life.ended = "failed"
        lost = [request for request in life.replica.requests if self._home.get(request) == number]
        self._retire(number, now_ps)
        ledger = self.ledger
        for request in lost:
            self.router.left(number, self._prompts[request])
            del self._home[request]
            ledger.first_scheduled_ps[request] = ledger.first_token_ps[request] = MISSING
            self.restarted += 1
        for request in lost:
            self._dispatch(request, now_ps)

    # requests

    def _answers_are_private(self) -> bool:
        if self._private_answers is None:
            self._private_answers = _answers_stay_private(self.workload)
        return self._private_answers

    def _find_runs(self, block_size: int) -> None:
        if block_size not in self._runs:
            runs = self.workload.block_runs(block_size)
            self._runs[block_size] = runs and (
                array("q", runs.offsets.tobytes()),
                array("q", runs.first_ids.tobytes()),
                array("q", _stops(runs).tobytes()),
                array("q", _shared(runs).tobytes()) if self.router.needs_prefixes else None,
            )

    def _chain(self, request: int, block_size: int) -> tuple[Items[int], list[int]]:
        """Keys of a request's runs of shareable blocks, and where each ends."""
        runs = self._runs[block_size]
        if runs is None:
            return NO_CHAIN
        offsets, firsts, ends, _ = runs
        begin, end = offsets[request], offsets[request + 1]
        return firsts[begin:end], ends[begin:end].tolist()

    def _shared_chain(self, request: int, block_size: int) -> tuple[Items[int], Items[int]]:
        """The part of the chain that any other request has as well: what a router gains from remembering."""
        runs = self._runs[block_size]
        if runs is None:
            return NO_CHAIN
        offsets, firsts, ends, shared = runs
        begin = offsets[request]
        end = begin + shared[request]
        return firsts[begin:end], ends[begin:end]

    def _sequence_maker(self, pool: Any, max_model_len: int) -> Any:
        prompts, outputs, priorities = self._prompts, self._outputs, self._priorities
        caching, block_size = pool.prefix_caching, pool.block_size

        def new_sequence(request: int, sent_ps: int) -> Sequence | None:
            prompt_tokens = prompts[request]
            if prompt_tokens >= max_model_len:
                return None
            keys, stops = self._chain(request, block_size) if caching else NO_CHAIN
            content = Content(("private", request), keys, stops) if keys else Content(request)
            return Sequence(
                request,
                id=request,
                arrival=sent_ps,
                prompt_tokens=prompt_tokens,
                max_known=min(prompt_tokens + outputs[request], max_model_len),
                priority=priorities[request] if priorities is not None else 0,
                table=pool.table(content),
            )

        return new_sequence

    def _send(self, sent: list[tuple[int, int]]) -> None:
        """Requests from the client, each with its instant; those turned away at once may bring others."""
        if not sent:
            return
        self._sending.extend(sent)
        if len(self._sending) > len(sent):
            return  # whoever sends them will come to these
        while self._sending:
            request, at_ps = self._sending[0]
            self.ledger.arrival_ps[request] = at_ps
            if self._timeout_ps is not None:
                heapq.heappush(self._deadlines, (at_ps + self._timeout_ps, request))
            self._dispatch(request, at_ps)
            self._sending.popleft()

    def _dispatch(self, request: int, at_ps: int) -> None:
        router = self.router
        if not router.ready:
            self._held[request] = None
            return
        tokens = self._prompts[request]
        session = self._sessions[request] if self._sessions is not None else None
        block_size = self.lives[router.ready[0]].setup.block_size
        keys, stops = self._shared_chain(request, block_size) if router.needs_prefixes else NO_CHAIN
        number = router.send(Prompt(request, tokens, session, keys, stops, tokens // block_size))
        self._home[request] = number
        if router.requests[number] == self._outstanding_limit:
            self._paused.add(number)
            router.pause(number)
        life = self.lives[number]
        life.requests += 1
        life.replica.deliver(at_ps, request)
        self.keys[number] = life.replica.key

    def finished(self, replica: Replica, sequence: Sequence, now_ps: int) -> None:
        """A replica has answered a request."""
        request = sequence.index
        if self._home.get(request) != replica.number:  # its client has given up
            return
        self.lives[replica.number].ledger.finished(sequence, now_ps)
        self._left(request, now_ps)

    def refused(self, replica: Replica, request: int, now_ps: int) -> None:
        """A replica has turned a request away."""
        if self._home.get(request) == replica.number:
            self.rejected += 1
            self._left(request, now_ps)

    def _left(self, request: int, now_ps: int) -> None:
        number = self._home.pop(request)
        self.router.left(number, self._prompts[request])
        replica = self.lives[number].replica
        if replica.draining and not self.router.requests[number]:
            self._retire(number, now_ps)
        if number in self._paused:
            self._paused.remove(number)
            self.router.resume(number)
        if self._held:
            self._release(now_ps)
        self._send(self.client.completed(request, now_ps))

    def _give_up(self, request: int, now_ps: int) -> None:
        """The client's patience ends: whatever is still outstanding is cancelled."""
        number = self._home.get(request)
        if number is None:
            if request in self._held:
                del self._held[request]
                self.timed_out += 1
                self._send(self.client.completed(request, now_ps))
            return
        self.timed_out += 1
        replica = self.lives[number].replica
        self._left(request, now_ps)
        if replica.alive:
            replica.deliver(now_ps, request, lambda at_ps: replica.cancel(request, at_ps))
            self.keys[number] = replica.key

    # the clock

    def run(self) -> Generator[simpy.Event, None, None]:
        """Until nobody has anything to do. Others' events come first at their instant, then the engines'."""
        env, keys, client, lives, deadlines = self.env, self.keys, self.client, self.lives, self._deadlines
        while True:
            first = min(keys)
            due_ps = client.due_ps
            while deadlines and deadlines[0][1] not in self._home and deadlines[0][1] not in self._held:
                heapq.heappop(deadlines)
            action_ps = deadlines[0][0] if deadlines else NEVER
            outside_ps = min(action_ps, due_ps)
            if outside_ps < NEVER and 4 * outside_ps + ARRIVE < first:
                at_ps, number = outside_ps, None
            elif first < NEVER_KEY:
                at_ps, number = first >> 2, keys.index(first)
            elif self._held and env.peek() < float("inf"):
                at_ps, number = NEVER, None
            else:
                return
            others_ps = env.peek()
            if others_ps <= at_ps:
                yield env.timeout(others_ps - env.now)
                self.now_ps = int(env.now)
                continue
            self.now_ps = at_ps
            if number is not None:
                if others_ps < action_ps:
                    action_ps = int(others_ps)
                horizon_ps = min(outside_ps, action_ps)
                if self._feedback:
                    horizon_ps = min(horizon_ps, self._next_of_others(number))
                replica = lives[number].replica
                replica.proceed(horizon_ps, action_ps)
                if replica.alive:
                    keys[number] = replica.key
            elif outside_ps == due_ps:
                self._send(client.take(at_ps))
            else:
                self._give_up(heapq.heappop(deadlines)[1], at_ps)

    def _next_of_others(self, number: int) -> int:
        """When another replica may complete a request, and so bring a new one."""
        return min((key for other, key in enumerate(self.keys) if other != number), default=NEVER_KEY) >> 2

    def result(
        self, *, goodput_ms: Mapping[str, float] | None = None, interrupted: str | None = None
    ) -> ClusterResult:
        """What happened, added up."""
        if isinstance(self.client, Frontend):
            self.client.to_client_clock()
        records = self.ledger.table(self.workload)
        ledgers = [life.ledger for life in self.lives]
        stalled = next(
            (life.replica for life in self.lives if life.replica.alive and life.replica.sequences), None
        )
        status: Literal["complete", "stalled", "interrupted"] = "complete"
        reason = None
        if interrupted is not None:
            status, reason = "interrupted", interrupted
        elif stalled is not None:
            status, reason = "stalled", stalled.stalled_by or stalled._stall_reason()
        elif self._held:
            status, reason = "stalled", f"{len(self._held)} requests wait for a replica, and there is none"
        caching = any(life.setup.enable_prefix_caching for life in self.lives)
        capacity_ps = sum(life.ledger.kv_busy_ps * life.setup.num_blocks for life in self.lives)
        steps = sum(ledger.steps for ledger in ledgers)
        end_ps = max((finish for finish in self.ledger.finish_ps), default=0)
        return ClusterResult(
            summary=summarize(records, gaps=self.ledger.gaps, goodput_ms=goodput_ms),
            records=records,
            series=(),
            status=status,
            reason=reason,
            steps=steps,
            preemptions=sum(ledger.total_preemptions for ledger in ledgers),
            rejected=self.rejected,
            prefix_cache_hit_fraction=(
                sum(ledger.hit_tokens for ledger in ledgers)
                / max(1, sum(ledger.queried_tokens for ledger in ledgers))
                if caching
                else None
            ),
            kv_utilization_mean=(
                sum(ledger.kv_block_ps for ledger in ledgers) / capacity_ps if capacity_ps else 0.0
            ),
            kv_utilization_peak=max(
                (life.ledger.kv_peak_blocks / life.setup.num_blocks for life in self.lives), default=0.0
            ),
            mean_batch_size=sum(ledger.rows for ledger in ledgers) / steps if steps else 0.0,
            busy_s=sum(ledger.busy_ps for ledger in ledgers) / PS_PER_S,
            router=self.router_name,
            replicas=tuple(self._summary(life) for life in self.lives),
            timed_out=self.timed_out,
            restarted=self.restarted,
            load=tuple(self.load),
            replica_s=sum(max(0, _end(life, end_ps) - life.from_ps) for life in self.lives) / PS_PER_S,
        )

    @staticmethod
    def _summary(life: _Life) -> ReplicaSummary:
        return ReplicaSummary(
            number=life.replica.number,
            label=life.setup.label,
            requests=life.requests,
            busy_s=life.ledger.busy_ps / PS_PER_S,
            steps=life.ledger.steps,
            preemptions=life.ledger.total_preemptions,
            kv_utilization_peak=life.ledger.kv_peak_blocks / life.setup.num_blocks,
            from_s=life.from_ps / PS_PER_S,
            until_s=None if life.until_ps is None else life.until_ps / PS_PER_S,
            ended=life.ended,
        )


def _stops(runs: BlockRuns) -> npt.NDArray[np.int64]:
    """Where each run ends, in blocks from the start of its prompt."""
    ends = np.cumsum(runs.counts)
    before = np.concatenate(([0], ends))[runs.offsets[:-1]]
    stops: npt.NDArray[np.int64] = ends - np.repeat(before, np.diff(runs.offsets))
    return stops


def _shared(runs: BlockRuns) -> npt.NDArray[np.int64]:
    """How many of each request's runs, from the first on, stand in another request as well."""
    _, number, users = np.unique(runs.first_ids, return_inverse=True, return_counts=True)
    alone = np.concatenate((users[number] == 1, [True]))
    at = np.where(alone, np.arange(len(alone)), len(alone))
    next_alone = np.minimum.accumulate(at[::-1])[::-1]
    shared: npt.NDArray[np.int64] = (
        np.minimum(next_alone[runs.offsets[:-1]], runs.offsets[1:]) - runs.offsets[:-1]
    )
    return shared


def _end(life: _Life, end_ps: int) -> int:
    return end_ps if life.until_ps is None else min(life.until_ps, end_ps)


def simulate_cluster(
    workload: Workload,
    setups: Items[EngineSetup],
    *,
    router: str = "round-robin",
    frontend: FrontendTimes | None = None,
    queue_limit: int | None = None,
    outstanding_limit: int | None = None,
    timeout_s: float | None = None,
    failures: Failures | None = None,
    scaling: Autoscaling | None = None,
    sample_interval_s: float | None = None,
    goodput_ms: Mapping[str, float] | None = None,
    mode: Literal["jump", "step"] = "jump",
) -> ClusterResult:
    """Simulate `workload` on one replica for each of `setups`, behind a router.

    `queue_limit`: a replica turns away whoever finds that many waiting. `outstanding_limit`: the router keeps
    requests back, in order, while every replica has that many. `timeout_s`: a client gives up that long
    after it has sent, and the request is cancelled. `scaling` adds replicas like the first of `setups`.
    `sample_interval_s` asks for samples of the load. Raises InvalidInput and UnknownName.
    """
    if not setups:
        raise InvalidInput("a deployment needs at least 1 replica")
    if timeout_s is not None and not timeout_s > 0:
        raise InvalidInput(f"the client timeout must be above 0 s, not {timeout_s}")
    cluster = Cluster(
        workload,
        router=router,
        frontend=frontend,
        queue_limit=queue_limit,
        outstanding_limit=outstanding_limit,
        timeout_s=timeout_s,
        failures=failures,
        mode=mode,
    )
    for setup in setups:
        cluster.add(setup)
    if scaling is not None:
        if scaling.max_replicas < len(setups):
            raise InvalidInput(
                f"{len(setups)} replicas at first are more than the {scaling.max_replicas} at most"
            )
        cluster.env.process(autoscaling(cluster, setups[0], scaling))
    if sample_interval_s is not None:
        cluster.env.process(watching(cluster, sample_interval_s))
    done = cluster.env.process(cluster.run())
    interrupted = None
    try:
        cluster.env.run(until=done)
    except KeyboardInterrupt:
        interrupted = f"interrupted at {cluster.now_ps / PS_PER_S:.3f} s of simulated time"
    return cluster.result(goodput_ms=goodput_ms, interrupted=interrupted)
