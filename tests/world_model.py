"""A second simulator of a deployment, to compare with `capacity.simulator`, whose source its author had read.

It has clients, sessions, routers, limits, timeouts, failures, autoscaling, cascades and KV transfers, in whole
milliseconds. An engine runs one request at a time: a step takes `base` and `token` for each token that it computes.
Nothing here imports the product. Order within an instant: changes of replicas, ends of steps, arrivals (reports and
clients, then timers, then timeouts), decisions of the engines.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

CHANGE, END, CLIENT, TIMER, DEADLINE, DECIDE = range(6)


@dataclass(kw_only=True)
class Fleet:
    """What is deployed, and the traffic. All times are milliseconds; the fields have the names of the product."""

    arrival: list[int]
    prompt: list[int]
    output: list[int]
    after: list[int] | None = None
    think: list[int] | None = None
    concurrency: int | None = None
    pools: list[int]  # pool of each replica; pool 0 prefills and pool 1 decodes if there is a link
    base: list[int]  # by pool
    token: list[int]
    router: str = "round-robin"
    session: list[int] | None = None
    queue_limit: int | None = None
    outstanding_limit: int | None = None
    timeout: int | None = None
    lifetimes: list[int] | None = None  # by replica number, repeated
    recovery: int = 0
    restarts: bool = True
    scaling: dict[int, tuple[int, float, int, int, int]] = field(
        default_factory=dict
    )  # by pool, see `_scale`
    final: list[int] | None = None  # pool that answers each request of a cascade; -1 is the cache
    by_answer: bool = True
    judge: int = 0
    lookup: int = 0
    link: tuple[int, int, int, int, int, int] | None = None  # see `_payload`; latency; layers


class Replica:
    """One engine: a queue in order of arrival and at most one running request."""

    def __init__(self, number: int, pool: int, now: int) -> None:
        self.number, self.pool, self.since, self.until = number, pool, now, -1
        self.open = self.draining = self.awake = False
        self.load = self.tokens = 0  # outstanding requests, as the router counts them
        self.queue: deque[int] = deque()
        self.loads: list[int] = []  # requests whose KV is to be loaded
        self.cancelled: set[int] = set()
        self.running = -1
        self.steps = 0  # that the running request has finished
        self.port = 0  # the time from which the link is free


class World:
    """One run; afterwards, `start`, `first`, `end` and `replica_of` have the time or replica of each request."""

    def __init__(self, fleet: Fleet) -> None:
        self.f, self.now, self._count = fleet, 0, 0
        n = self.n = len(fleet.arrival)
        self.sent, self.start, self.first, self.end = ([-1] * n for _ in range(4))
        self.replica_of = [-1] * n
        self.home: dict[int, int] = {}  # replica of each outstanding request
        self.done: set[int] = set()
        self.timed_out, self.lost, self.rejected = set(), set(), set()  # type: ignore[var-annotated]
        self.restarted = 0
        self.held: list[int] = []
        self.between: set[int] = set()
        self.stage = [0] * n if fleet.by_answer or not fleet.final else [max(0, p) for p in fleet.final]
        self.turns: dict[int, int] = {}
        self.sticky: dict[int, int] = {}
        self.due = [(at, r) for r, at in enumerate(fleet.arrival) if not fleet.after or fleet.after[r] < 0]
        heapq.heapify(self.due)
        follows = any(trigger >= 0 for trigger in fleet.after or ())
        self.reacts = bool(follows or fleet.concurrency or fleet.outstanding_limit or fleet.final)
        self.capped: deque[int] = deque()
        self.in_flight = 0
        self.news: deque[tuple[Callable[[int], None], int]] = deque()
        self.kept: dict[int, int] = {}  # prefill replica that keeps the KV of a request
        self.prefilled: dict[int, int] = {}
        self.no_decoder: list[int] = []
        self.sending: dict[int, list[int]] = {}  # request: begin, end of the payload, arrival
        self.events: list[tuple[int, int, int, int, Callable[[], None]]] = []
        self.replicas: list[Replica] = []
        for pool in fleet.pools:
            self._open(self._add(pool))
        for pool in (1, 0) if fleet.link else dict.fromkeys(fleet.pools):
            if pool in fleet.scaling:
                self._scale(pool, fleet.scaling[pool], len(self._of(pool)))

    def run(self) -> World:
        self._call_client()
        while self.events and len(self.done) < self.n:
            self.now, _, _, _, act = heapq.heappop(self.events)
            act()
        return self

    def _at(self, time: int, kind: int, act: Callable[[], None], rank: int = 0) -> None:
        self._count += 1
        heapq.heappush(self.events, (time, kind, rank, self._count, act))

    # clients

    def _call_client(self) -> None:
        if self.due and (self.f.concurrency is None or self.in_flight < self.f.concurrency):
            self._at(max(self.now, self.due[0][0]), CLIENT, self._handle)

    def _report(self, act: Callable[[int], None], request: int) -> None:
        self.news.append((act, request))
        self._at(self.now, CLIENT, self._handle)

    def _handle(self) -> None:
        while self.news or (self.due and self.due[0][0] <= self.now and not self._is_capped()):
            if self.news:
                act, request = self.news.popleft()
                act(request)
            else:
                self._take_due()
        self._call_client()

    def _is_capped(self) -> bool:
        return self.f.concurrency is not None and self.in_flight >= self.f.concurrency

    def _take_due(self) -> None:
        sent = []
        while self.due and self.due[0][0] <= self.now:
            at, request = heapq.heappop(self.due)
            if self._is_capped():
                self.capped.append(request)
            else:
                self.in_flight += 1
                sent.append((request, at))
        for request, at in sent:
            self._arrive(request, at)

    def _ended(self, request: int) -> None:
        """The client has its answer, or knows that there is none."""
        self.done.add(request)
        self._leave(request)
        self._release()
        if self.f.concurrency is not None:
            self._take_due()
        self.in_flight -= 1
        for follower, trigger in enumerate(self.f.after or ()):
            if trigger == request:
                heapq.heappush(self.due, (self.now + self.f.think[follower], follower))  # type: ignore[index]
        if self.capped and not self._is_capped():
            self.in_flight += 1
            self._arrive(self.capped.popleft(), self.now)

    def _arrive(self, request: int, at: int) -> None:
        self.sent[request] = at
        if self.f.timeout is not None:
            self._at(at + self.f.timeout, DEADLINE, lambda: self._give_up(request))
        wait = self.f.lookup + (0 if self.f.by_answer else self.f.judge)
        if self.f.final and self.f.final[request] < 0:
            self._later(self.f.lookup, self._from_cache, request)
        elif self.f.final and (wait or min(self.f.final) < 0):
            self._later(wait, self._dispatch, request)
        else:
            self._dispatch(request)

    def _give_up(self, request: int) -> None:
        if request in self.done:
            return
        self.timed_out.add(request)
        if request in self.between:
            self.between.remove(request)
        elif request in self.held:
            self.held.remove(request)
        elif request in self.kept:
            self._free_kept(request, drop=True)
        else:
            number = self.home[request]
            self._leave(request)
            self._cancel(self.replicas[number], request)
        self._report(self._ended, request)

    # router

    def _of(self, pool: int) -> list[Replica]:
        return [replica for replica in self.replicas if replica.pool == pool]

    def _dispatch(self, request: int) -> None:
        stage = self.stage[request]
        if any(self.stage[other] == stage for other in self.held) or not self._send(request):
            self.held.append(request)

    def _release(self) -> None:
        full = set()
        for request in list(self.no_decoder):
            if self._ready(1):
                self.no_decoder.remove(request)
                self._hand_over(request)
        for request in list(self.held):
            if self.stage[request] not in full and self._send(request):
                self.held.remove(request)
            else:
                full.add(self.stage[request])

    def _ready(self, pool: int) -> list[Replica]:
        most = self.f.outstanding_limit or math.inf
        return [replica for replica in self._of(pool) if replica.open and replica.load < most]

    def _choose(self, request: int, pool: int, router: str) -> Replica | None:
        ready = self._ready(pool)
        if not ready:
            return None
        turn = self.turns.get(pool, 0)
        in_turn = [r for r in ready if r.number >= turn] + [r for r in ready if r.number < turn]
        if router == "least-outstanding" or router == "session-sticky":
            chosen = min(in_turn, key=lambda r: r.load)
        elif router == "least-kv":
            chosen = min(in_turn, key=lambda r: r.tokens)
        else:
            chosen = in_turn[0]
        if router == "session-sticky":
            session = self.f.session[request]  # type: ignore[index]
            homes = [r for r in ready if r.number == self.sticky.get(session)]
            if homes:
                chosen, turn = homes[0], turn - 1
            self.sticky[session] = chosen.number
        if turn == self.turns.get(pool, 0):
            self.turns[pool] = chosen.number + 1
        self.home[request] = self.replica_of[request] = chosen.number
        chosen.load += 1
        chosen.tokens += self.f.prompt[request]
        return chosen

    def _send(self, request: int) -> bool:
        replica = self._choose(
            request, self.stage[request], "least-outstanding" if self.f.final else self.f.router
        )
        if replica is None:
            return False
        if self.f.queue_limit is not None and len(replica.queue) >= self.f.queue_limit:
            self.rejected.add(request)
            self._leave(request)
            self._report(self._ended, request)
        else:
            replica.queue.append(request)
            self._wake(replica)
        return True

    def _leave(self, request: int) -> None:
        if request in self.home:
            replica = self.replicas[self.home.pop(request)]
            replica.load -= 1
            replica.tokens -= self.f.prompt[request]
            self._retire_if_idle(replica)

    # engines

    def _wake(self, replica: Replica) -> None:
        if not replica.awake:
            replica.awake = True
            self._at(self.now, DECIDE, lambda: self._decide(replica), replica.number)

    def _cancel(self, replica: Replica, request: int) -> None:
        """The engine learns of it when it schedules its next step; until then the request keeps its place."""
        if replica.until < 0:
            replica.cancelled.add(request)
            self._wake(replica)

    def _decide(self, replica: Replica) -> None:
        if replica.until >= 0:
            return
        replica.queue = deque(r for r in replica.queue if r not in replica.cancelled)
        if replica.running in replica.cancelled:
            replica.running = -1
        replica.cancelled.clear()
        loads, replica.loads = replica.loads, []
        for request in loads:
            self._begin_transfer(request, replica)
        if replica.running < 0 and replica.queue:
            replica.running, replica.steps = replica.queue.popleft(), 0
            if self.start[replica.running] < 0:
                self.start[replica.running] = self.now
        replica.awake = replica.running >= 0
        if replica.awake:
            f, loaded = self.f, self.f.link and replica.pool == 1
            computes = f.prompt[replica.running] if not replica.steps and not loaded else 1
            until = self.now + f.base[replica.pool] + f.token[replica.pool] * computes
            self._at(until, END, lambda: self._end_step(replica), replica.number)

    def _end_step(self, replica: Replica) -> None:
        if replica.until >= 0:
            return
        request, prefills = replica.running, bool(self.f.link) and replica.pool == 0
        replica.steps += 1
        if replica.steps == 1:
            self.first[request] = self.now
        if replica.steps == (1 if prefills else self.f.output[request]):
            replica.running = -1
            if request not in replica.cancelled:
                self._finish(request, prefills)
        self._at(self.now, DECIDE, lambda: self._decide(replica), replica.number)

    def _finish(self, request: int, prefills: bool) -> None:
        if prefills:
            self._report(self._leave_prefill, request)
            return
        self.end[request] = self.now
        if not self.reacts:
            self._leave(request)  # at once, before the reports of this instant
        judged = self.f.final and self.f.by_answer and self.stage[request] < max(self.f.pools)
        self._report(self._judge if judged else self._ended, request)

    # replicas

    def _add(self, pool: int) -> Replica:
        self.replicas.append(Replica(len(self.replicas), pool, self.now))
        return self.replicas[-1]

    def _open(self, replica: Replica) -> None:
        replica.open = True
        if self.f.lifetimes:
            life = self.f.lifetimes[replica.number % len(self.f.lifetimes)]
            self._at(self.now + life, CHANGE, lambda: self._fail(replica))
        self._release()

    def _retire_if_idle(self, replica: Replica) -> None:
        keeps = any(sender == replica.number for sender in self.kept.values())
        if replica.draining and replica.until < 0 and not replica.load and not keeps:
            replica.until = self.now

    def _fail(self, replica: Replica) -> None:
        if replica.until >= 0:
            return
        replica.open = False
        stranded = [r for r, sender in self.kept.items() if sender == replica.number]
        for request in stranded:
            self._free_kept(request, drop=True)
        saved = [r for r in self.kept if self.home.get(r) == replica.number]
        for request in saved:
            self._take_back(request)
        replica.until = self.now
        gone = [r for r, number in self.home.items() if number == replica.number]
        for request in gone:
            self._leave(request)
        for request in gone + stranded:
            self.start[request] = self.first[request] = self.end[request] = -1
            if self.f.restarts:
                self.restarted += 1
                self._dispatch(request)
            else:
                self.lost.add(request)
                self._report(self._ended, request)
        for request in saved:
            self._hand_over(request)
        if not replica.draining:
            self._at(self.now + self.f.recovery, CHANGE, lambda: self._open(self._add(replica.pool)))

    def _scale(self, pool: int, plan: tuple[int, float, int, int, int], least: int, surplus: int = 0) -> None:
        most, target, startup, interval, delay = plan

        def decide() -> None:
            replicas = self._of(pool)
            opened = [r for r in replicas if r.open]
            current = sum(r.until < 0 and not r.draining for r in replicas)
            waiting = self.no_decoder if self.f.link and pool == 1 else self.held
            load = sum(self.f.link is not None or self.stage[r] == pool for r in waiting)
            load += sum(r.load for r in (opened if self.f.link else replicas))
            wanted = min(max(math.ceil(load / target), least), most)
            since = surplus if wanted < current else self.now  # the last time without a surplus
            self._scale(pool, plan, least, since)
            for _ in range(wanted - current):
                added = self._add(pool)
                self._at(self.now + startup, CHANGE, lambda added=added: self._open(added))
            if wanted < current and self.now - since >= delay:
                opened.sort(key=lambda r: (r.load, -r.number))
                for replica in opened[: min(current - wanted, len(opened) - 1)]:
                    replica.open, replica.draining = False, True
                    self._retire_if_idle(replica)

        self._at(self.now + interval, CHANGE, decide)

    # cascades

    def _later(self, delay: int, act: Callable[[int], None], request: int) -> None:
        def due() -> None:
            if request in self.between:
                self.between.remove(request)
                self._report(act, request)

        self.between.add(request)
        self._at(self.now + delay, TIMER, due)

    def _from_cache(self, request: int) -> None:
        self.start[request] = self.sent[request]
        self.first[request] = self.end[request] = self.now
        self._ended(request)

    def _judge(self, request: int) -> None:
        self._leave(request)
        self._release()
        goes_on = self.stage[request] < self.f.final[request]  # type: ignore[index]
        self._later(self.f.judge, self._escalate if goes_on else self._show, request)

    def _show(self, request: int) -> None:
        self.first[request] = self.end[request] = self.now
        self._ended(request)

    def _escalate(self, request: int) -> None:
        self.start[request] = self.first[request] = self.end[request] = -1
        self.stage[request] += 1
        self._dispatch(request)

    # prefill and decode pools

    def _leave_prefill(self, request: int) -> None:
        self.prefilled[request] = self.now
        self.kept[request] = self.home[request]
        self._leave(request)
        self._hand_over(request)
        self._release()

    def _hand_over(self, request: int) -> None:
        replica = self._choose(request, 1, "least-outstanding")
        if replica is None:
            self.no_decoder.append(request)
        else:
            replica.loads.append(request)
            self._wake(replica)

    def _payload(self, request: int) -> int:
        per_token, per_window_token, window, per_request, _, _ = self.f.link  # type: ignore[misc]
        tokens = self.f.prompt[request]
        return per_token * tokens + per_window_token * min(tokens, window) + per_request

    def _begin_transfer(self, request: int, replica: Replica) -> None:
        self._reserve(request, (self.replicas[self.kept[request]], replica))

    def _reserve(self, request: int, ports: tuple[Replica, Replica]) -> None:
        latency, layers = self.f.link[4:]  # type: ignore[index]
        begin = max(self.start[request] if layers else self.now, *(replica.port for replica in ports))
        sent = begin + self._payload(request)
        if layers:
            sent = max(sent, self.prefilled[request] + -(-self._payload(request) // layers))
        for replica in ports:
            replica.port = sent
        arrives = max(self.now, sent + latency)
        record = self.sending[request] = [begin, sent, arrives]

        def arrive() -> None:
            if self.sending.get(request) is record:
                del self.sending[request]
                decoder = self.replicas[self.home[request]]
                self._free_kept(request, drop=False)
                decoder.queue.append(request)
                self._wake(decoder)

        self._at(arrives, TIMER, arrive)

    def _free_kept(self, request: int, *, drop: bool) -> None:
        if drop:
            self._take_back(request)
        self._retire_if_idle(self.replicas[self.kept.pop(request)])

    def _take_back(self, request: int) -> None:
        """Remove a request from its decode replica and abort its transfer; the transfers behind it move up."""
        if request in self.no_decoder:
            self.no_decoder.remove(request)
            return
        number = self.home[request]
        replica = self.replicas[number]
        ends = {r: (self.replicas[self.kept[r]], self.replicas[self.home[r]]) for r in self.sending}
        self._leave(request)
        if request not in self.sending:
            replica.loads.remove(request)
            return
        del self.sending[request]
        behind = [r for r in self.sending if self.sending[r][0] > self.now]
        for port in {port for r in (request, *behind) for port in ends[r]}:
            active = [self.sending[r][1] for r in self.sending if r not in behind and port in ends[r]]
            port.port = max([self.now, *active])
        for other in behind:
            del self.sending[other]
        for other in behind:
            self._reserve(other, ends[other])
