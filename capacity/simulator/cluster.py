"""Replicas behind a router, on one clock: requests in, each to one engine, records and a summary out.

The engine loop is the same as for one engine; here is only who gets which request, who gives up, and which replicas
there are. Whatever happens at fixed instants (failures, scaling) is a SimPy process; engines run between.
"""

from __future__ import annotations

import copy
import heapq
from array import array
from collections import deque
from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import simpy

from capacity.base.errors import InvalidInput
from capacity.simulator.chains import Chains
from capacity.simulator.client import NEVER, Arrivals, client_of
from capacity.simulator.fleet import Autoscaling, Failures, autoscaling, failing, watching
from capacity.simulator.frontend import FrontendTimes, StreamingLedger, client_behind, to_client_clock
from capacity.simulator.kv_cache.block_pool import BlockPool
from capacity.simulator.kv_cache.content import Content
from capacity.simulator.kv_cache.content_pool import ContentPool
from capacity.simulator.kv_cache.contiguous_pool import ContiguousPool
from capacity.simulator.kv_cache.offload import added_up
from capacity.simulator.kv_cache.run_pool import RunPool
from capacity.simulator.ledger import Ledger
from capacity.simulator.metrics import MISSING, Distribution, summarize
from capacity.simulator.replica import ARRIVE, NEVER_KEY, Action, Replica
from capacity.simulator.router import Prompt, Router, make_router
from capacity.simulator.schedulers import SchedulerLimits, Sequence, make_policy
from capacity.simulator.shapes import new_tuple
from capacity.simulator.simulate import SimulationResult, _answers_stay_private
from capacity.simulator.step_work import StepWork
from capacity.simulator.transfer import KvLink, LoadBlockPool, LoadPool
from capacity.step import PS_PER_S, StepTimes, picoseconds
from capacity.workload import Workload

Role = Literal["both", "prefill", "decode"]


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
    kv_contiguous_tokens: int | None = None
    window_tokens: int | None = None
    label: str = "engine"
    role: Role = "both"

    def pool(self, mode: str) -> Any:
        """An empty KV pool."""
        if self.num_blocks < 1 or self.block_size < 1:
            raise InvalidInput(
                "the KV cache must have at least 1 block of at least 1 token, "
                f"not {self.num_blocks} of {self.block_size}"
            )
        if self.policy == "vllm-v0":
            return ContentPool(self.num_blocks, self.block_size, prefix_caching=self.enable_prefix_caching)
        if self.kv_contiguous_tokens is not None:
            return ContiguousPool(self.num_blocks, self.block_size, reserved_tokens=self.kv_contiguous_tokens)
        if self.role == "decode":
            return self._load_pool()
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

    def _load_pool(self) -> LoadPool | LoadBlockPool:
        if self.kv_windows == (None,):
            return LoadPool(self.num_blocks, self.block_size, prefix_caching=self.enable_prefix_caching)
        return LoadBlockPool(
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
    role: Role
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

    `timed_out` requests were given up by their client, `restarted` ones begun anew after a failure, `lost` ones failed
    with their replica; these and `rejected` are counted, and all that did not complete are the summary's `failed`.
    `replica_s` is the time that replicas were there for, and paid for, until the last request ended.
    """

    router: str
    replicas: tuple[ReplicaSummary, ...]
    timed_out: int
    restarted: int
    replica_s: float
    lost: int = 0
    load: tuple[LoadSample, ...] = ()  # over time, where samples were asked for
    prefilled_ps: npt.NDArray[np.int64] | None = (
        None  # disaggregated: the end of prefill, where it came to one
    )
    transfer_ps: npt.NDArray[np.int64] | None = None  # disaggregated: from then to the KV's arrival
    transfers: Mapping[str, int] | None = None  # disaggregated: begun, arrived, aborted
    decode_router: str | None = None

    def to_dict(self) -> dict[str, Any]:
        shared = SimulationResult.to_dict(self)
        return {
            **shared,
            "router": self.router,
            "decode_router": self.decode_router,
            "timed_out": self.timed_out,
            "restarted": self.restarted,
            "lost": self.lost,
            "replica_s": self.replica_s,
            "transfer_ms": None if self.transfer_ps is None else _milliseconds(self.transfer_ps),
            "transfers": None if self.transfers is None else dict(self.transfers),
            "replicas": [
                {name: getattr(replica, name) for name in ReplicaSummary.__slots__}
                for replica in self.replicas
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """The deployment at one instant: replicas that take requests or still answer some, and requests in all; those of
    a disaggregated deployment by the side that has them or that they wait for."""

    time_s: float
    replicas: int
    outstanding: int
    by_role: Mapping[Role, int] | None = None


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
        keep_work: bool = False,
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
            self.client = client_behind(workload, self.ledger, frontend)
        self._frontend = frontend
        self.lives: list[_Life] = []
        self.keys: list[int] = []
        self.timed_out = 0
        self.restarted = 0
        self.lost = 0
        self.rejected = 0
        self.now_ps = 0
        self.load: list[LoadSample] = []
        self._failures = failures
        self._keep_work = keep_work
        self._mode: Literal["jump", "step"] = mode
        self._queue_limit = queue_limit
        self._outstanding_limit = outstanding_limit
        self._paused: set[int] = set()
        self._sending: deque[tuple[int, int]] = deque()
        self._timeout_ps = None if timeout_s is None else picoseconds(timeout_s)
        self._deadlines: list[tuple[int, int]] = []  # (instant, request)
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._engines_act = False  # whether what one engine does can act on another
        self._home: dict[int, int] = {}  # replica of each request that is outstanding
        self._held: dict[int, None] = {}  # requests that wait at the router, in order: no replica takes any
        self._feedback = workload.is_closed_loop
        # a completion brings no request, and frees no place at the router: each engine may run by itself
        self._independent = not workload.is_closed_loop and outstanding_limit is None
        self._jumps = mode == "jump" and not streams
        self._private_answers: bool | None = None
        self._prompts = array("q", workload.prompt_tokens.tobytes())
        self._outputs = array("q", workload.output_tokens.tobytes())
        self._priorities = workload.priority.tolist() if workload.priority is not None else None
        self._sessions = workload.session.tolist() if workload.session is not None else None
        self._chains: dict[int, Chains] = {}  # by block size

    # replicas

    def add(self, setup: EngineSetup, now_ps: int = 0, *, ready: bool = True) -> int:
        """A new replica, empty; returns its number. With `ready`, it takes requests from now on."""
        number = len(self.lives)
        ledger = copy.copy(self.ledger)  # columns are shared, sums are its own
        ledger.samples = []
        ledger.work = StepWork(setup.step_times) if self._keep_work else None
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
            new_sequence=self._sequence_maker(pool, setup),
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
        if ready:
            self.open(number, now_ps)
        return number

    def open(self, number: int, now_ps: int) -> None:
        """The replica takes requests, those held first."""
        self.lives[number].open = True
        self.router_of(number).joined(number)
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
        if self._idle(number):
            self._retire(number, now_ps)

    def _idle(self, number: int) -> bool:
        """Whether a replica has nothing left to do."""
        return not self.router_of(number).requests[number]

    def pool_size(self, role: Role) -> int:
        """Replicas of a role that take requests."""
        return sum(life.open for life in self.lives if life.setup.role == role)

    def starting(self, role: Role) -> int:
        """Replicas of a role that will take requests."""
        return sum(
            life.replica.alive and not life.open and not life.replica.draining
            for life in self.lives
            if life.setup.role == role
        )

    @property
    def outstanding(self) -> int:
        """Requests that are not answered yet."""
        return len(self._home) + self.waiting_for_replica

    @property
    def waiting_for_replica(self) -> int:
        """Requests that no replica has yet."""
        return len(self._held)

    def load_of(self, role: Role) -> int:  # noqa: ARG002
        """Requests that the replicas of a role have or wait for."""
        return self.outstanding

    def least_loaded(self, role: Role, count: int) -> list[int]:
        """`count` of a role's replicas that take requests, those with the fewest first, of equals the youngest."""
        ranked = sorted(
            (self.router_of(n).requests[n], -n)
            for n, life in enumerate(self.lives)
            if life.open and life.setup.role == role
        )
        return [-negative for _, negative in ranked[:count]]

    def sample(self, now_ps: int) -> None:
        replicas = sum(life.open or (life.replica.draining and life.replica.alive) for life in self.lives)
        self.load.append(
            LoadSample(
                time_s=now_ps / PS_PER_S,
                replicas=replicas,
                outstanding=self.outstanding,
                by_role=self._by_role(),
            )
        )

    def _by_role(self) -> dict[Role, int] | None:
        """`load_of` each role, where there are several."""
        return None

    def _close(self, number: int) -> None:
        self.lives[number].open = False
        if number in self._paused:
            self._paused.remove(number)
            self.router_of(number).resume(number)
        self.router_of(number).gone(number)

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
        for request in lost:
            self._lose(request)
        for request in lost:
            self._start_anew(request, now_ps)

    def _start_anew(self, request: int, now_ps: int) -> None:
        """A request that was lost with its replica is sent to another, or fails."""
        if self._failures is None or self._failures.requests == "restart":
            self.restarted += 1
            self._dispatch(request, now_ps)
            return
        self.lost += 1
        self._send(self.client.completed(request, now_ps))

    def _lose(self, request: int) -> None:
        """What its replica did for a request is gone."""
        number = self._home.pop(request)
        self.router_of(number).left(number, self._prompts[request])
        self._forget(request)

    def _forget(self, request: int) -> None:
        """Nothing that was done for a request counts."""
        ledger = self.ledger
        ledger.first_scheduled_ps[request] = ledger.first_token_ps[request] = MISSING
        ledger.preempted_ps[request] = 0

    def router_of(self, number: int) -> Router:  # noqa: ARG002
        """The router that sends requests to this replica."""
        return self.router

    # requests

    def _answers_are_private(self) -> bool:
        if self._private_answers is None:
            self._private_answers = _answers_stay_private(self.workload)
        return self._private_answers

    def _chains_of(self, block_size: int) -> Chains:
        chains = self._chains.get(block_size)
        if chains is None:
            chains = self._chains[block_size] = Chains(self.workload, block_size)
        return chains

    def last_token(self, request: int, setup: EngineSetup) -> int:
        """Tokens, prompt and output, at which a request ends on such a replica."""
        tokens, most = self._prompts[request] + self._outputs[request], setup.limits.max_model_len
        return tokens if tokens < most else most

    def _sequence_maker(self, pool: Any, setup: EngineSetup) -> Any:
        prompts, priorities, max_model_len = self._prompts, self._priorities, setup.limits.max_model_len
        chains = self._chains_of(pool.block_size) if pool.prefix_caching else None

        def new_sequence(request: int, sent_ps: int) -> Sequence | None:
            prompt_tokens = prompts[request]
            if prompt_tokens >= max_model_len:
                return None
            content = chains.content(request) if chains is not None else Content(~request)
            return Sequence(
                request,
                id=request,
                arrival=sent_ps,
                prompt_tokens=prompt_tokens,
                max_known=self.last_token(request, setup),
                priority=priorities[request] if priorities is not None else 0,
                table=pool.table(content),
            )

        return new_sequence

    def _send(self, sent: list[tuple[int, int]]) -> None:
        """Requests from the client, each with its instant; those turned away at once may bring others."""
        if self._independent:
            for request, at_ps in sent:
                self._arrive(request, at_ps)
            return
        if not sent:
            return
        self._sending.extend(sent)
        if len(self._sending) > len(sent):
            return  # whoever sends them will come to these
        while self._sending:
            self._arrive(*self._sending[0])
            self._sending.popleft()

    def _arrive(self, request: int, at_ps: int) -> None:
        self.ledger.arrival_ps[request] = at_ps
        if self._timeout_ps is not None:
            heapq.heappush(self._deadlines, (at_ps + self._timeout_ps, request))
        self._dispatch(request, at_ps)

    def _dispatch(self, request: int, at_ps: int) -> None:
        if not self.router.ready:
            self._held[request] = None
            return
        number = self._assign(request, self.router)
        replica = self.lives[number].replica
        replica.deliver(at_ps, request)
        self.keys[number] = replica.key

    def _assign(self, request: int, router: Router) -> int:
        """The replica that a router chooses for a request, which is there from now on; at least one must be ready."""
        tokens = self._prompts[request]
        session = self._sessions[request] if self._sessions is not None else None
        if router.needs_prefixes:
            block_size = self.lives[router.ready[0]].setup.block_size
            keys, stops = self._chains_of(block_size).of(request)
            prompt = new_tuple(Prompt, (request, tokens, session, keys, stops, tokens // block_size))
        else:
            prompt = new_tuple(Prompt, (request, tokens, session, (), (), 0))
        number = router.send(prompt)
        self._home[request] = number
        if router.requests[number] == self._outstanding_limit:
            self._paused.add(number)
            router.pause(number)
        self.lives[number].requests += 1
        return number

    def _deliver(self, number: int, at_ps: int, request: int, action: Action) -> None:
        """Have a replica do something when it next decides."""
        replica = self.lives[number].replica
        replica.deliver(at_ps, request, action)
        self.keys[number] = replica.key

    def at(self, at_ps: int, act: Callable[[], None]) -> None:
        """Do something at an instant to come."""
        heapq.heappush(self._timers, (at_ps, next(self._order), act))

    def finished(self, replica: Replica, sequence: Sequence, now_ps: int) -> None:
        """A replica has answered a request."""
        request = sequence.index
        number = replica.number
        if self._home.get(request) != number:  # its client has given up
            return
        replica.ledger.finished(sequence, now_ps)
        if self._independent and not replica.draining:
            del self._home[request]
            self.router.left(number, sequence.prompt_tokens)
        else:
            self._left(request, now_ps)

    def refused(self, replica: Replica, request: int, now_ps: int) -> None:
        """A replica has turned a request away."""
        if self._home.get(request) == replica.number:
            self.rejected += 1
            self._left(request, now_ps)

    def _left(self, request: int, now_ps: int) -> None:
        self._depart(request, now_ps)
        if self.waiting_for_replica:
            self._release(now_ps)
        self._send(self.client.completed(request, now_ps))

    def _depart(self, request: int, now_ps: int) -> None:
        """A request leaves its replica, which may take another, or go."""
        number = self._home.pop(request)
        router = self.router_of(number)
        router.left(number, self._prompts[request])
        if self.lives[number].replica.draining and self._idle(number):
            self._retire(number, now_ps)
        if number in self._paused:
            self._paused.remove(number)
            router.resume(number)

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
            self._deliver(number, now_ps, request, lambda at_ps: replica.cancel(request, at_ps))

    # the clock

    def run(self) -> Generator[simpy.Event, None, None]:
        """Until nobody has anything to do. Others' events come first at their instant, then the engines'."""
        env, keys, client, lives, timers = self.env, self.keys, self.client, self.lives, self._timers
        others_ps = env.peek()  # nothing is added to it but while this waits
        while True:
            first = min(keys)
            due_ps = outside_ps = client.due_ps
            action_ps = self._next_action() if timers or self._deadlines else NEVER
            if action_ps < outside_ps:
                outside_ps = action_ps
            arrives = 4 * outside_ps + ARRIVE < first and outside_ps < NEVER
            at_ps = outside_ps if arrives else first >> 2
            if others_ps <= at_ps:
                if at_ps == NEVER and (not self.waiting_for_replica or others_ps == float("inf")):
                    return
                yield env.timeout(others_ps - env.now)
                self.now_ps = int(env.now)
                others_ps = env.peek()
                continue
            if at_ps == NEVER:
                return
            self.now_ps = at_ps
            if arrives:
                if outside_ps == due_ps:
                    self._send(client.take(at_ps))
                elif timers and timers[0][0] == at_ps:
                    heapq.heappop(timers)[2]()
                else:
                    self._give_up(heapq.heappop(self._deadlines)[1], at_ps)
                continue
            if others_ps < action_ps:
                action_ps = int(others_ps)
            horizon_ps = action_ps if action_ps < outside_ps else outside_ps
            if self._independent:
                if others_ps <= outside_ps:
                    limit_key = 4 * int(others_ps)
                else:
                    limit_key = 4 * outside_ps + ARRIVE if outside_ps < NEVER else NEVER_KEY
                self._proceed_until(limit_key, horizon_ps, action_ps)
                if not (timers or self._deadlines):
                    self._serve(others_ps)
                continue
            number = keys.index(first)
            if self._feedback:
                horizon_ps = min(horizon_ps, self._next_of_others(number))
                if self._engines_act:  # an arrival elsewhere may be what makes another act
                    action_ps = horizon_ps
            replica = lives[number].replica
            replica.proceed(horizon_ps, action_ps)
            if replica.alive:
                keys[number] = replica.key

    def _proceed_until(self, limit_key: int, horizon_ps: int, action_ps: int) -> int:
        """Have the engines do all that is due before `limit_key`, in order; returns the key after that."""
        keys, lives = self.keys, self.lives
        first = min(keys)
        while first < limit_key:
            number = keys.index(first)
            keys[number] = lives[number].replica.proceed_until(limit_key, horizon_ps, action_ps)
            first = min(keys)
        return first

    def _serve(self, until_ps: float) -> None:
        """Arrivals, and the engines between them, for as long as nothing else happens."""
        client, timers, deadlines = self.client, self._timers, self._deadlines
        action_ps = int(until_ps) if until_ps < NEVER else NEVER
        while not timers and not deadlines:
            due_ps = client.due_ps
            if due_ps >= action_ps:
                return
            self._proceed_until(4 * due_ps + ARRIVE, due_ps, action_ps)
            self.now_ps = due_ps
            for request, at_ps in client.take(due_ps):
                self._arrive(request, at_ps)

    def _next_action(self) -> int:
        """When a timer ends, or the patience of a client who still waits."""
        deadlines, timers = self._deadlines, self._timers
        while deadlines and not self._is_outstanding(deadlines[0][1]):
            heapq.heappop(deadlines)
        patience_ps = deadlines[0][0] if deadlines else NEVER
        return min(patience_ps, timers[0][0]) if timers else patience_ps

    def _is_outstanding(self, request: int) -> bool:
        return request in self._home or request in self._held

    def _next_of_others(self, number: int) -> int:
        """When another replica may complete a request, and so bring a new one."""
        return min((key for other, key in enumerate(self.keys) if other != number), default=NEVER_KEY) >> 2

    def result(
        self, *, goodput_ms: Mapping[str, float] | None = None, interrupted: str | None = None
    ) -> ClusterResult:
        """What happened, added up."""
        if self._frontend is not None and self._frontend.delays:
            to_client_clock(self.ledger, self._frontend)
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
        elif self.waiting_for_replica:
            status = "stalled"
            reason = f"{self.waiting_for_replica} requests wait for a replica, and there is none"
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
            kv_tiers=added_up(
                use for life in self.lives for use in getattr(life.replica.policy, "tier_use", ())
            ),
            data_parallel_requests=tuple(
                given for life in self.lives for given in getattr(life.replica.policy, "rank_requests", ())
            ),
            router=self.router_name,
            replicas=tuple(self._summary(life) for life in self.lives),
            timed_out=self.timed_out,
            restarted=self.restarted,
            lost=self.lost,
            load=tuple(self.load),
            gaps=self.ledger.gaps,
            step_work=tuple(ledger.work for ledger in ledgers if ledger.work is not None),
            replica_s=sum(max(0, _end(life, end_ps) - life.from_ps) for life in self.lives) / PS_PER_S,
        )

    @staticmethod
    def _summary(life: _Life) -> ReplicaSummary:
        return ReplicaSummary(
            number=life.replica.number,
            label=life.setup.label,
            role=life.setup.role,
            requests=life.requests,
            busy_s=life.ledger.busy_ps / PS_PER_S,
            steps=life.ledger.steps,
            preemptions=life.ledger.total_preemptions,
            kv_utilization_peak=life.ledger.kv_peak_blocks / life.setup.num_blocks,
            from_s=life.from_ps / PS_PER_S,
            until_s=None if life.until_ps is None else life.until_ps / PS_PER_S,
            ended=life.ended,
        )


def _milliseconds(times_ps: npt.NDArray[np.int64]) -> dict[str, float] | None:
    """Mean and percentiles of the times that came to an end."""
    found = Distribution.of(times_ps[times_ps >= 0] * (1e3 / PS_PER_S))
    if found is None:
        return None
    return {"mean": found.mean, **{f"p{percent}": value for percent, value in found.percentiles.items()}}


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
    decode_scaling: Autoscaling | None = None,
    link: KvLink | None = None,
    decode_router: str = "least-outstanding",
    sample_interval_s: float | None = None,
    goodput_ms: Mapping[str, float] | None = None,
    keep_work: bool = False,
    keep_interrupted: bool = False,
    mode: Literal["jump", "step"] = "jump",
) -> ClusterResult:
    """Simulate `workload` on one replica for each of `setups`, behind a router.

    `queue_limit`: a replica turns away whoever finds that many waiting. `outstanding_limit`: the router keeps
    requests back, in order, while every replica has that many. `timeout_s`: a client gives up that long
    after it has sent, and the request is cancelled. `scaling` adds replicas like the first of `setups`.
    Where the setups have roles, requests are prefilled here and decoded there, by way of `link` and `decode_router`;
    `scaling` is then of the prefill replicas, and `decode_scaling` of the others.
    `sample_interval_s` asks for samples of the load; `keep_interrupted` is as for `simulate_engine`. Raises
    InvalidInput and UnknownName.
    """
    if not setups:
        raise InvalidInput("a deployment needs at least 1 replica")
    if timeout_s is not None and not timeout_s > 0:
        raise InvalidInput(f"the client timeout must be above 0 s, not {timeout_s}")
    options: dict[str, Any] = {
        "router": router,
        "frontend": frontend,
        "queue_limit": queue_limit,
        "outstanding_limit": outstanding_limit,
        "timeout_s": timeout_s,
        "failures": failures,
        "keep_work": keep_work,
        "mode": mode,
    }
    if any(setup.role != "both" for setup in setups):
        from capacity.simulator.disaggregated import Disaggregated, check_roles

        check_roles(setups)
        if link is None:
            raise InvalidInput("disaggregated pools need a link for their KV")
        cluster: Cluster = Disaggregated(workload, link=link, decode_router=decode_router, **options)
    else:
        cluster = Cluster(workload, **options)
    for setup in setups:
        cluster.add(setup)
    for role, plan in (("decode", decode_scaling), (setups[0].role if link is None else "prefill", scaling)):
        if plan is None:
            continue
        like = [setup for setup in setups if setup.role == role]
        if not like:
            raise InvalidInput(f"there are no {role} replicas to scale")
        if plan.max_replicas < len(like):
            raise InvalidInput(f"{len(like)} replicas at first are more than the {plan.max_replicas} at most")
        cluster.env.process(autoscaling(cluster, like[0], plan))
    if sample_interval_s is not None:
        cluster.env.process(watching(cluster, sample_interval_s))
    done = cluster.env.process(cluster.run())
    interrupted = None
    try:
        cluster.env.run(until=done)
    except KeyboardInterrupt:
        if not keep_interrupted:
            raise
        interrupted = f"interrupted at {cluster.now_ps / PS_PER_S:.3f} s of simulated time"
    return cluster.result(goodput_ms=goodput_ms, interrupted=interrupted)
