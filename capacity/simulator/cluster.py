"""Cluster: clients, router, replicas, timeouts and failures around the engines.

A single engine that gets its requests directly from the clients is a cluster too. The cluster calls the engines
through `Engines`, and the engines report departures through `Reports`, which the cluster implements. Reports are
handled together with the client arrivals of the same time (event kind ARRIVE), in the order of the reports. If no
request depends on an answer, an ended request leaves its replica at once, before the other reports of that time.
"""

from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import simpy

from capacity.base.errors import InvalidInput
from capacity.deployment.routers import make_router
from capacity.deployment.routing import Prompt, Router
from capacity.simulator.account import RunAccount
from capacity.simulator.client import ClientTimeouts, OpenLoopClient
from capacity.simulator.core.engines import CompiledEngines
from capacity.simulator.dispatch import Dispatch
from capacity.simulator.engine_loop import can_send_loop, make_engines
from capacity.simulator.fleet import NoProgress, ProgressGuard, fail_replica, sample_states
from capacity.simulator.frontend import make_client_with_latency
from capacity.simulator.instants import ARRIVE, CLIENT, NEVER, call_at
from capacity.simulator.ledger import Ledger
from capacity.simulator.members import Member, Recording
from capacity.simulator.metrics import MISSING
from capacity.simulator.requests import Requests
from capacity.simulator.result import SimulationResult
from capacity.simulator.setup import EngineSetup, Role, make_pool, make_scheduler
from capacity.step import PS_PER_S, picoseconds
from capacity.workload import Workload


class Cluster:
    """The replicas, the router in front of them and the clients; implements the engines' `Reports`."""

    acts_on_answers = False  # True if requests may go on after an answer

    def __init__(
        self, workload: Workload, setups: Sequence[EngineSetup], dispatch: Dispatch, recording: Recording
    ) -> None:
        """Create a cluster without replicas. Each replica that `add` adds later must have one of these `setups`."""
        self.workload = workload
        self.dispatch = dispatch
        self.recording = recording
        self.env = simpy.Environment(initial_time=0)
        self.requests = Requests(workload)
        self.router = self._make_router(dispatch.router or "round-robin")
        self.ledger = Ledger(len(workload), recording.progress)
        self.client = make_client_with_latency(workload, self.ledger, recording.frontend)
        self.rules = dispatch.rules
        loops = dispatch.router is None and can_send_loop(recording, setups, self.requests)
        self.feeds = loops or self._can_feed()
        self._reacts = workload.is_closed_loop or self.rules.holds or self.acts_on_answers
        surroundings = self.env, self.requests, self.ledger, self, recording
        self.engines = make_engines(*surroundings, setups, reacts=self._reacts, routed=not self.feeds)
        self.members: list[Member] = []
        self.coming = 0  # replacements of failed replicas under way
        self.account = RunAccount()
        self.in_vain = ProgressGuard()
        self.routers: list[Router] = []  # by replica
        self._prompts: dict[int | None, Callable[[int], Prompt]] = {}  # by size of blocks
        self._home: dict[int, int] = {}  # replica of each outstanding request
        self.replica_of = array("q", [MISSING]) * len(workload)  # last replica of each request
        self._held: dict[int, None] = {}  # requests held at the router, in order
        self._actions: deque[tuple[Callable[[int, int], None], int]] = deque()  # (action, request), in order
        self._planned_ps: set[int] = set()  # scheduled calls of `_arrivals`
        self._timeouts: ClientTimeouts | None = None
        if dispatch.timeout_s is not None:
            limit_ps = picoseconds(dispatch.timeout_s)
            self._timeouts = ClientTimeouts(self.env, limit_ps, self._is_outstanding, self._give_up)

    def _make_router(self, router: str | type[Router]) -> Router:
        seed = self.dispatch.seed
        if isinstance(router, type):
            return router(seed=seed)
        return make_router(router, has_sessions=self.workload.session is not None, seed=seed)

    def _can_feed(self) -> bool:
        """Return whether all requests can be passed to the engines before the run. This is possible in an open loop
        with a single engine without router, or with round-robin routing without limits, timeouts, failures and
        scaling."""
        dispatch = self.dispatch
        sampled = self.recording.sample_interval_s is not None
        in_turn = dispatch.router == "round-robin" and dispatch.is_static and not sampled
        return isinstance(self.client, OpenLoopClient) and (dispatch.router is None or in_turn)

    # the run

    def run(self) -> None:
        """Run the simulation until no events remain."""
        if self.feeds and not isinstance(self.client, OpenLoopClient):
            assert isinstance(self.engines, CompiledEngines)
            self.engines.feed_loop()
        elif self.feeds:
            assert isinstance(self.client, OpenLoopClient)
            instants_ps, count = self.client.take_all(), len(self.members)
            for number in range(min(count, len(self.workload))):
                fed = range(number, len(self.workload), count)
                self.engines.feed(number, fed, instants_ps[number::count])
        else:
            self._schedule_arrivals(self.client.due_ps)
        if self.recording.sample_interval_s is not None:
            self.env.process(sample_states(self, self.recording.sample_interval_s))
        if self._timeouts is not None:
            self.env.process(self._timeouts.run())
        try:
            self.engines.run()
        except NoProgress as reason:
            self.account.stalled_by = str(reason)

    @property
    def is_over(self) -> bool:
        """Whether no work remains, so that periodic processes (sampling, autoscaling, failures) can stop."""
        if self.engines.busy or self._actions:
            return False
        if self.client.due_ps < NEVER and not self.feeds:  # fed engines already have all requests
            return False
        if self._timeouts is not None and self.outstanding:
            return False
        may_open = self.coming or any(member.starting for member in self.members)
        return not (self.waiting_for_replica and may_open)

    # arrivals

    def _schedule_arrivals(self, at_ps: int) -> None:
        """Schedule a call of `_handle_arrivals` at this time, unless there is one already."""
        if at_ps < NEVER and at_ps not in self._planned_ps:
            self._planned_ps.add(at_ps)
            call_at(self.env, at_ps, self._handle_arrivals, ARRIVE, CLIENT)

    def _queue_action(self, act: Callable[[int, int], None], request: int, at_ps: int) -> None:
        """Queue an action on a request, to be processed with the requests that arrive at `at_ps`."""
        self._actions.append((act, request))
        if at_ps not in self._planned_ps:
            self._schedule_arrivals(at_ps)

    def _handle_arrivals(self, event: simpy.Event) -> None:  # noqa: ARG002
        """Process the queued actions (engine reports) first, then the requests that clients send at this time."""
        now_ps: int = self.env.now
        client, news = self.client, self._actions
        while news or client.due_ps <= now_ps:
            if news:
                act, request = news.popleft()
                act(request, now_ps)
            else:
                self._handle_requests(client.take(now_ps))
        self._planned_ps.remove(now_ps)
        self._schedule_arrivals(client.due_ps)

    def _handle_requests(self, sent: list[tuple[int, int]]) -> None:
        """Record and dispatch requests that reach the router; `sent` contains (request, arrival time)."""
        for request, at_ps in sent:
            self._begin(request, at_ps)
            self._dispatch(request, at_ps)

    def _begin(self, request: int, at_ps: int) -> None:
        self.ledger.arrival_ps[request] = at_ps
        if self._timeouts is not None:
            self._timeouts.begin(request, at_ps)

    def _dispatch(self, request: int, at_ps: int) -> None:
        """Send a request to a replica, reject it, or hold it at the router."""
        if self._held or not self._send(request, at_ps):
            self._held[request] = None

    def _send(self, request: int, at_ps: int) -> bool:
        """Send a request to a replica, or reject it; return False if it must wait at the router."""
        router, rules = self.router, self.rules
        if not router.ready:
            return False
        router.now_s = at_ps / PS_PER_S
        prompt = self._prompt_for(router)(request)
        if rules.looks_at_requests:
            decision = rules.at_router(prompt, router.requests)
            if decision != "admit":
                if decision == "refuse":
                    self.account.rejected += 1
                    self._on_early_end(request)
                return decision == "refuse"
        number = self._choose(request, prompt, router)
        refused = rules.looks_at_replicas and rules.is_refused(request, self.engines.state(number))
        if refused or not self.engines.deliver(number, request, at_ps):
            self._turn_away(request, at_ps)
        return True

    def _prompt_for(self, router: Router) -> Callable[[int], Prompt]:
        """Return a function that builds the `Prompt` of a request for this router, which must have replicas."""
        block_size = self.members[router.ready[0]].setup.block_size if router.needs_prefixes else None
        if block_size not in self._prompts:
            self._prompts[block_size] = self.requests.prompts(block_size)
        return self._prompts[block_size]

    def _choose(self, request: int, prompt: Prompt, router: Router) -> int:
        number = self._home[request] = self.replica_of[request] = router.send(prompt)
        member = self.members[number]
        member.requests += 1
        if self.rules.limits_replicas and self.rules.full(router.requests[number]):
            member.paused = True
            router.pause(number)
        return number

    def _turn_away(self, request: int, now_ps: int) -> None:
        self.account.rejected += 1
        self._depart(request, now_ps)
        self._on_early_end(request)

    def _release(self, now_ps: int) -> None:
        """Send the requests that are held at the router, in order, until no replica accepts the next one."""
        while self._held:
            request = next(iter(self._held))
            if not self._send(request, now_ps):
                return
            del self._held[request]

    # reports of the engines

    def on_request_end(self, number: int, request: int, at_ps: int) -> None:  # noqa: ARG002
        self.in_vain.request_ended()
        if self._reacts:
            self._queue_action(self._on_answer, request, at_ps)
        else:
            self._depart(request, at_ps)

    def on_refusal(self, number: int, request: int, at_ps: int) -> None:
        self.account.rejected += 1
        self.on_request_end(number, request, at_ps)

    def on_prefill(self, number: int, request: int, at_ps: int, *, kept: bool) -> None:
        raise NotImplementedError

    def load_begins(self, number: int, request: int, at_ps: int) -> int:
        raise NotImplementedError

    def _on_answer(self, request: int, now_ps: int) -> None:
        """Remove an ended request from its replica; then send held requests and the next requests of the client."""
        self._depart(request, now_ps)
        if self.waiting_for_replica:
            self._release(now_ps)
        self._handle_requests(self.client.on_completion(request, now_ps))

    def _on_early_end(self, request: int) -> None:
        """End a request without a complete answer: rejected, timed out or lost."""
        self.in_vain.request_ended()
        if self._reacts:
            self._queue_action(self._on_answer, request, int(self.env.now))

    def _depart(self, request: int, now_ps: int) -> None:
        """Remove a request from its replica, if it has one. A draining replica then retires if it is empty, and a full
        replica accepts requests again."""
        number = self._home.pop(request, None)
        if number is not None:
            member, router = self.members[number], self.routers[number]
            router.on_request_end(number, self.requests.prompt_tokens[request])
            if member.draining and self._is_idle(number):
                self._retire(number, now_ps)
            if member.paused and not self.rules.full(router.requests[number]):
                member.paused = False
                router.resume(number)

    # client timeouts

    def _give_up(self, request: int, now_ps: int) -> None:
        self.account.timed_out += 1
        number = self._home.get(request)
        if number is None:
            del self._held[request]
        else:
            self._depart(request, now_ps)
            if self.members[number].alive:
                self.engines.cancel(number, request, now_ps)
        self._on_early_end(request)

    def _is_outstanding(self, request: int) -> bool:
        return request in self._home or request in self._held

    # replicas

    def add(self, setup: EngineSetup, now_ps: int = 0, *, ready: bool = True) -> int:
        """Add an empty replica and return its number; if `ready`, it accepts requests at once. Raises InvalidInput
        if the engine does not support the requests or the client timeout."""
        if self._timeouts is not None and not make_scheduler(setup, make_pool(setup)).aborts:
            raise InvalidInput(
                f"the {setup.policy_name} scheduler cannot abort requests: leave out the client timeout"
            )
        self.requests.check_engine(setup)
        number = self.engines.add(setup, now_ps)
        self.members.append(Member(setup, now_ps))
        router = self._router_for(setup.role)
        router.assign_pool(number, setup.takes)
        self.routers.append(router)
        if ready:
            self.open(number, now_ps)
        return number

    def open(self, number: int, now_ps: int) -> None:
        """Let a replica accept requests, beginning with those that the router holds."""
        self.members[number].open = True
        self.routers[number].add_replica(number)
        if self.dispatch.failures is not None:
            self.env.process(fail_replica(self, number, self.dispatch.failures))
        self._release(now_ps)

    def drain(self, number: int, now_ps: int, why: str) -> None:
        """Stop sending requests to a replica; it retires when its last request leaves."""
        self.members[number].draining = True
        self.members[number].ended = why
        self._close(number)
        if self._is_idle(number):
            self._retire(number, now_ps)
        else:
            self.engines.report_at_once()  # the replica stops when its last request leaves

    def fail(self, number: int, now_ps: int) -> None:
        """Remove a failed replica with its KV cache; its requests restart from their prompt elsewhere, or fail."""
        if not self.members[number].draining:
            self._close(number)
        self.members[number].ended = "failed"
        lost = [request for request, home in self._home.items() if home == number]
        self._retire(number, now_ps)
        self.in_vain.count_lost_replica(with_requests=bool(lost), now_ps=now_ps)
        for request in lost:
            self._remove_from_failed(request)
        for request in lost:
            self._restart_or_fail(request, now_ps)

    def _close(self, number: int) -> None:
        member = self.members[number]
        member.open = False
        if member.paused:
            member.paused = False
            self.routers[number].resume(number)
        self.routers[number].remove_replica(number)

    def _retire(self, number: int, now_ps: int) -> None:
        self.members[number].until_ps = now_ps
        self.engines.stop(number)

    def _is_idle(self, number: int) -> bool:
        return not self.routers[number].requests[number]

    def _remove_from_failed(self, request: int) -> None:
        """Remove a request from its failed replica and discard its results."""
        number = self._home.pop(request)
        self.routers[number].on_request_end(number, self.requests.prompt_tokens[request])
        self._forget(request)

    def _forget(self, request: int) -> None:
        self.ledger.forget(request)

    def _restart_or_fail(self, request: int, now_ps: int) -> None:
        failures = self.dispatch.failures
        if failures is None or failures.requests == "restart":
            self.account.restarted += 1
            self._dispatch(request, now_ps)
        else:
            self.account.lost += 1
            self._on_early_end(request)

    # queries

    def _router_for(self, role: Role) -> Router:  # noqa: ARG002
        """Return the router that sends requests to replicas of a role."""
        return self.router

    def replicas_of_role(self, role: Role) -> list[int]:
        """Return the numbers of all current and former replicas of a role."""
        return [number for number, member in enumerate(self.members) if member.setup.role == role]

    @property
    def outstanding(self) -> int:
        """Number of requests without an answer yet."""
        return len(self._home) + self.waiting_for_replica

    @property
    def waiting_for_replica(self) -> int:
        """Number of requests that have no replica yet."""
        return len(self._held)

    def replicas_of(self, setup: EngineSetup) -> list[int]:
        """Return the numbers of all current and former replicas of a setup's pool and role."""
        pool = setup.takes.pool
        return [n for n in self.replicas_of_role(setup.role) if self.members[n].setup.takes.pool == pool]

    def pool_load(self, setup: EngineSetup) -> int:
        """Return the number of requests in the setup's pool, plus all requests that the router holds."""
        requests = self._router_for(setup.role).requests
        return len(self._held) + sum(requests[n] for n in self.replicas_of(setup) if n < len(requests))

    @property
    def by_role(self) -> dict[Role, int] | None:
        """Number of outstanding requests by role (prefill, decode); None if all replicas do both."""
        return None

    def result(
        self, *, goodput_ms: Mapping[str, float] | None = None, interrupted: bool = False
    ) -> SimulationResult:
        return self.account.result(self, goodput_ms=goodput_ms, interrupted=interrupted)
