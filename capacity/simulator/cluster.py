"""Who gets which request, who gives up, and which replicas there are: admission and dispatch before the engines."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace

import simpy

from capacity.base.errors import InvalidInput
from capacity.deployment.routers import Router, make_router
from capacity.simulator.client import Arrivals, client_of
from capacity.simulator.driven import NEVER_KEY, Action, DrivenEngine
from capacity.simulator.event_loop import EventLoop
from capacity.simulator.fleet import Failures, failing
from capacity.simulator.frontend import client_behind, to_client_clock
from capacity.simulator.ledger import Sample
from capacity.simulator.members import Member, MemberMaker, Recording, new_ledger
from capacity.simulator.metrics import MISSING
from capacity.simulator.requests import Requests
from capacity.simulator.result import LoadSample, SimulationResult, Status, add_up
from capacity.simulator.schedulers import Sequence
from capacity.simulator.setup import EngineSetup, Role
from capacity.simulator.transfer import KvLink
from capacity.step import PS_PER_S, picoseconds
from capacity.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """What stands between the clients and the engines.

    `router` None: one engine takes its requests straight from the clients. `queue_limit`: a replica turns away whoever
    comes while so many wait. `outstanding_limit`: the router keeps requests back, in order, while every replica has
    that many. `timeout_s`: a client gives up that long after it has sent, and the request is cancelled. `link` and
    `decode_router` lead from prefill to decode replicas. `seed` is for routers that draw.
    """

    router: str | None = None
    decode_router: str = "least-outstanding"
    queue_limit: int | None = None
    outstanding_limit: int | None = None
    timeout_s: float | None = None
    failures: Failures | None = None
    link: KvLink | None = None
    seed: int = 0


class Cluster(EventLoop):
    """The replicas there are, and the router before them."""

    def __init__(self, workload: Workload, dispatch: Dispatch, recording: Recording) -> None:
        self.workload = workload
        self.dispatch = dispatch
        self.recording = recording
        self.requests = Requests(workload)
        self.router = self._make_router(dispatch.router or "round-robin")
        self.ledger = new_ledger(workload, recording)
        frontend = recording.frontend
        client: Arrivals = client_of(workload)
        if frontend is not None and frontend.delays:
            client = client_behind(workload, self.ledger, frontend)
        super().__init__(
            client,
            independent=not workload.is_closed_loop and dispatch.outstanding_limit is None,
            feedback=workload.is_closed_loop,
        )
        self.members: list[Member] = []
        self._maker = MemberMaker(self.env, self.requests, self.ledger, recording)
        self.timed_out = self.restarted = self.lost = self.rejected = 0
        self.load: list[LoadSample] = []
        self.series: list[Sample] = []
        self._paused: set[int] = set()
        self._sending: deque[tuple[int, int]] = deque()
        self._timeout_ps = None if dispatch.timeout_s is None else picoseconds(dispatch.timeout_s)
        self._home: dict[int, int] = {}  # replica of each request that is outstanding
        self._held: dict[int, None] = {}  # requests that wait at the router, in order: no replica takes any

    def _make_router(self, name: str) -> Router:
        return make_router(name, has_sessions=self.workload.session is not None, seed=self.dispatch.seed)

    def run(self) -> Generator[simpy.Event, None, None]:
        """Until nobody has anything to do; an engine without a router before it pulls its requests itself."""
        return self.drive() if self.replicas else self.members[0].engine.run()

    # replicas

    def add(self, setup: EngineSetup, now_ps: int = 0, *, ready: bool = True) -> int:
        """A new replica, empty; returns its number. With `ready`, it takes requests from now on.

        Raises InvalidInput.
        """
        number, limit = len(self.members), self.dispatch.queue_limit
        if self.dispatch.router is None:
            member = self._maker.pulling(setup, self.client)
        else:
            member = self._maker.driven(setup, now_ps, number=number, owner=self, queue_limit=limit)
        if self._timeout_ps is not None and not member.engine.policy.aborts:
            raise InvalidInput(
                f"requests cannot time out under the {setup.policy} scheduler: it cannot abort any"
            )
        self.members.append(member)
        if member.driven is not None:
            self.replicas.append(member.driven)
            self.keys.append(NEVER_KEY)
            if ready:
                self.open(number, now_ps)
        return number

    def open(self, number: int, now_ps: int) -> None:
        """The replica takes requests, those held first."""
        self.members[number].open = True
        self.router_of(number).joined(number)
        if self.dispatch.failures is not None:
            self.env.process(failing(self, number, self.dispatch.failures))
        self._release(now_ps)

    def _release(self, now_ps: int) -> None:
        """Send on who waits at the router, for as long as a replica takes requests."""
        while self._held and self.router.ready:
            request = next(iter(self._held))
            del self._held[request]
            self._dispatch(request, now_ps)

    def drain(self, number: int, now_ps: int, why: str) -> None:
        """The replica takes no more requests, and is gone once it has none."""
        self.replicas[number].draining = True
        self.members[number].ended = why
        self._close(number)
        if self._idle(number):
            self._retire(number, now_ps)

    def _idle(self, number: int) -> bool:
        """Whether a replica has nothing left to do."""
        return not self.router_of(number).requests[number]

    def is_alive(self, number: int) -> bool:
        return self.replicas[number].alive

    def is_draining(self, number: int) -> bool:
        return self.replicas[number].draining

    def setup_of(self, number: int) -> EngineSetup:
        return self.members[number].setup

    def of_role(self, role: Role) -> list[int]:
        """All replicas of a role that there are or were."""
        return [number for number, member in enumerate(self.members) if member.setup.role == role]

    def pool_size(self, role: Role) -> int:
        """Replicas of a role that take requests."""
        return sum(self.members[number].open for number in self.of_role(role))

    def starting(self, role: Role) -> int:
        """Replicas of a role that will take requests."""
        return sum(
            replica.alive and not replica.draining and not self.members[number].open
            for number in self.of_role(role)
            for replica in (self.replicas[number],)
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
            (self.router_of(n).requests[n], -n) for n in self.of_role(role) if self.members[n].open
        )
        return [-negative for _, negative in ranked[:count]]

    def sample(self, now_ps: int) -> None:
        """Take down the load of the deployment and the state of its engines, added up."""
        for number, replica in enumerate(self.replicas):
            replica.catch_up(now_ps)
            self.keys[number] = replica.key
        pairs = zip(self.members, self.replicas, strict=True)
        serving = [
            replica for member, replica in pairs if member.open or (replica.draining and replica.alive)
        ]
        self.load.append(
            LoadSample(
                time_s=now_ps / PS_PER_S,
                replicas=len(serving),
                outstanding=self.outstanding,
                by_role=self._by_role(),
            )
        )
        self.series.append(
            Sample(
                time_s=now_ps / PS_PER_S,
                running=sum(replica.num_running for replica in serving),
                waiting=sum(replica.num_waiting for replica in serving) + self.waiting_for_replica,
                kv_used_blocks=sum(replica.kv_used_blocks for replica in serving),
            )
        )

    def _by_role(self) -> dict[Role, int] | None:
        """`load_of` each role, where there are several."""
        return None

    def _close(self, number: int) -> None:
        self.members[number].open = False
        if number in self._paused:
            self._paused.remove(number)
            self.router_of(number).resume(number)
        self.router_of(number).gone(number)

    def _retire(self, number: int, now_ps: int) -> None:
        self.members[number].until_ps = now_ps
        self.replicas[number].stop()
        self.keys[number] = NEVER_KEY

    def fail(self, number: int, now_ps: int) -> None:
        """The replica is lost with all it holds; its requests start anew on the others, from their prompt."""
        replica = self.replicas[number]
        if not replica.draining:
            self._close(number)
        self.members[number].ended = "failed"
        lost = [request for request in replica.requests if self._home.get(request) == number]
        self._retire(number, now_ps)
        for request in lost:
            self._lose(request)
        for request in lost:
            self._start_anew(request, now_ps)

    def _start_anew(self, request: int, now_ps: int) -> None:
        """A request that was lost with its replica is sent to another, or fails."""
        failures = self.dispatch.failures
        if failures is None or failures.requests == "restart":
            self.restarted += 1
            self._dispatch(request, now_ps)
            return
        self.lost += 1
        self._send(self.client.completed(request, now_ps))

    def _lose(self, request: int) -> None:
        """What its replica did for a request is gone."""
        number = self._home.pop(request)
        self.router_of(number).left(number, self.requests.prompt_tokens[request])
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

    def _send(self, sent: list[tuple[int, int]]) -> None:
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
        replica = self.replicas[number]
        replica.deliver(at_ps, request)
        self.keys[number] = replica.key

    def _assign(self, request: int, router: Router) -> int:
        """The replica that a router chooses for a request, which is there from now on; at least one must be ready."""
        block_size = self.members[router.ready[0]].setup.block_size
        number = router.send(self.requests.prompt(request, router, block_size))
        self._home[request] = number
        if router.requests[number] == self.dispatch.outstanding_limit:
            self._paused.add(number)
            router.pause(number)
        self.members[number].requests += 1
        return number

    def _deliver(self, number: int, at_ps: int, request: int, action: Action) -> None:
        """Have a replica do something when it next decides."""
        replica = self.replicas[number]
        replica.deliver(at_ps, request, action)
        self.keys[number] = replica.key

    def finished(self, replica: DrivenEngine, sequence: Sequence, now_ps: int) -> None:
        """A replica has answered a request."""
        request = sequence.index
        number = replica.number
        if self._home.get(request) != number:  # its client timed out
            return
        replica.ledger.finished(sequence, now_ps)
        if self._independent and not replica.draining:
            del self._home[request]
            self.router.left(number, sequence.prompt_tokens)
        else:
            self._left(request, now_ps)

    def refused(self, replica: DrivenEngine, request: int, now_ps: int) -> None:
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
        router.left(number, self.requests.prompt_tokens[request])
        if self.replicas[number].draining and self._idle(number):
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
        replica = self.replicas[number]
        self._left(request, now_ps)
        if replica.alive:
            self._deliver(number, now_ps, request, lambda at_ps: replica.cancel(request, at_ps))

    def _is_outstanding(self, request: int) -> bool:
        return request in self._home or request in self._held

    # the account

    def result(
        self, *, goodput_ms: Mapping[str, float] | None = None, interrupted: bool = False
    ) -> SimulationResult:
        """What happened, added up."""
        if not self.replicas:
            self.members[0].requests = len(self.workload) - self.ledger.arrival_ps.count(MISSING)
        frontend = self.recording.frontend
        if frontend is not None and frontend.delays:
            to_client_clock(self.ledger, frontend)
        status, reason = self._ended(interrupted)
        result = add_up(
            self.members,
            self.ledger.table(self.workload),
            gaps=self.ledger.gaps,
            goodput_ms=goodput_ms,
            status=status,
            reason=reason,
            rejected=self.rejected + sum(member.ledger.rejected for member in self.members),
        )
        return replace(
            result,
            router=self.dispatch.router,
            timed_out=self.timed_out,
            restarted=self.restarted,
            lost=self.lost,
            load=tuple(self.load),
            series=tuple(self.series if self.replicas else self.ledger.samples),
        )

    def _ended(self, interrupted: bool) -> tuple[Status, str | None]:
        """How the run ended, and why not all requests were answered."""
        if interrupted:
            now_ps = self.now_ps if self.replicas else self.members[0].engine.now_ps
            return "interrupted", f"interrupted at {now_ps / PS_PER_S:.3f} s of simulated time"
        if self.replicas:
            stalled = next(
                (replica for replica in self.replicas if replica.alive and replica.sequences), None
            )
            if stalled is not None:
                return "stalled", stalled.stall
            if self.waiting_for_replica:
                waiting = f"{self.waiting_for_replica} requests wait for a replica, and there is none"
                return "stalled", waiting
            return "complete", None
        engine, ledger = self.members[0].engine, self.ledger
        if engine.stalled_by is not None:
            return "stalled", engine.stalled_by
        # facts about our own code, cheap enough to check always
        assert engine.pool.free_blocks == engine.pool.num_blocks, "KV blocks leaked"
        assert ledger.completed + ledger.rejected == len(self.workload), "requests were lost"
        return "complete", None
