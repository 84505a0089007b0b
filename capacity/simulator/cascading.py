"""Cascade of pools: the first pool answers every request, and a fraction of the requests goes on to the next pool.

The seed decides which requests go on; with the same seed, a higher rate includes all requests of a lower rate. With
routing by answer, a judge reads each answer except the last pool's. It accepts the answer, and the client gets all
tokens at once after the decision; or it discards the answer, and the next pool starts from the prompt. With routing by
prompt, the decision precedes the answer, and only one pool answers. A semantic cache before the first pool can answer
a fraction of the requests, which then use no pool.

For the client this is one request, from its arrival to the last token of the answer. So the client timeout, the start
of the next turn and the concurrency cap of a closed loop apply to the time in all pools together.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.deployment.pool_routers import ByCascade
from capacity.simulator.cluster import Cluster
from capacity.simulator.dispatch import Dispatch
from capacity.simulator.front_end_process import FrontendTimes
from capacity.simulator.instants import ARRIVE, CLOCK_ENDS_PS, TIMER, call_at, clock_overflow_error
from capacity.simulator.ledger import Progress
from capacity.simulator.members import Recording
from capacity.simulator.metrics import MISSING
from capacity.simulator.result import CascadeUse, SimulationResult
from capacity.simulator.setup import EngineSetup
from capacity.step import picoseconds
from capacity.workload import Workload


class CascadeCluster(Cluster):
    """A cluster of pools in sequence. A request that goes on leaves its replica and arrives at the next pool."""

    acts_on_answers = True

    def __init__(
        self, workload: Workload, setups: Sequence[EngineSetup], dispatch: Dispatch, recording: Recording
    ) -> None:
        """Create the cascade. Raises InvalidInput unless there is one pool more than escalation rates."""
        route = dispatch.cascade
        assert route is not None
        super().__init__(workload, setups, dispatch, recording)
        pools = {setup.takes.pool for setup in setups}
        if not isinstance(self.router, ByCascade) or pools != set(range(len(route.rates) + 1)):
            raise InvalidInput(
                f"a cascade with {len(route.rates)} rates needs {len(route.rates) + 1} pools and the router `cascade`, "
                f"not {len(pools)} pools and the router {dispatch.router}"
            )
        self._route = route
        steps = route.final_pools(len(workload), dispatch.seed)
        self._final = array("q", steps.tobytes())
        self.stage = array(
            "q", bytes(8 * len(workload)) if route.by_answer else np.maximum(steps, 0).tobytes()
        )
        self.router.stage_of = self.stage.__getitem__
        self._last = len(route.rates)
        self._judge_ps = picoseconds(route.judge_s)
        self._lookup_ps = picoseconds(route.lookup_s)
        server = (recording.frontend or FrontendTimes()).add_client_latency(
            -(workload.client_latency_s or 0.0)
        )
        self._server_ps = picoseconds(server.request_latency_s) + picoseconds(server.response_latency_s)
        self._between: dict[int, None] = {}  # requests in no pool: before a decision, or between pools
        self.made_ps = array("q", [MISSING]) * len(workload)  # first token, before the judgement
        self.sent_on_ps = array("q", [MISSING]) * len(
            workload
        )  # arrival at the pool that answers, if not the first
        self.unseen_answers = self.unseen_tokens = 0
        if recording.progress is not None:
            answers = (steps + 1).sum() if route.by_answer else (steps >= 0).sum()
            self.ledger.progress = Progress(int(answers), recording.progress)

    def _schedule_between_pools(self, act: Callable[[int, int], None], request: int, at_ps: int) -> None:
        """Schedule an action at `at_ps` on a request that is in no pool, unless its client times out before."""
        if at_ps >= CLOCK_ENDS_PS:
            raise clock_overflow_error(at_ps)
        self._between[request] = None

        def due(_: object) -> None:
            if request in self._between:
                del self._between[request]
                self._queue_action(act, request, at_ps)

        call_at(self.env, at_ps, due, ARRIVE, TIMER)

    @property
    def is_over(self) -> bool:
        return not self._between and super().is_over

    @property
    def outstanding(self) -> int:
        return super().outstanding + len(self._between)

    def _is_outstanding(self, request: int) -> bool:
        return request in self._between or super()._is_outstanding(request)

    def _handle_requests(self, sent: list[tuple[int, int]]) -> None:
        decision_ps = 0 if self._route.by_answer else self._judge_ps
        if not (self._lookup_ps or decision_ps or self._route.cache_hit_rate):
            super()._handle_requests(sent)
            return
        for request, at_ps in sent:
            self._begin(request, at_ps)
            found_ps = at_ps + self._lookup_ps
            if self._final[request] < 0:
                self._schedule_between_pools(self._on_cache_hit, request, found_ps)
            else:
                self.sent_on_ps[request] = found_ps + decision_ps
                self._schedule_between_pools(self._dispatch, request, found_ps + decision_ps)

    def _on_cache_hit(self, request: int, now_ps: int) -> None:
        """Answer a request from the cache at once, without the latency of the engine's API server."""
        ledger = self.ledger
        shown_ps = ledger.arrival_ps[request] + self._lookup_ps - self._server_ps
        ledger.first_token_ps[request] = ledger.finish_ps[request] = shown_ps
        ledger.first_scheduled_ps[request] = ledger.arrival_ps[request]
        ledger.output_tokens[request] = int(self.workload.output_tokens[request])
        self.account.from_cache += 1
        self.in_vain.request_ended()
        self._on_answer(request, now_ps)

    def _send(self, request: int, at_ps: int) -> bool:
        assert isinstance(self.router, ByCascade)
        return self.router.has_ready(self.stage[request]) and super()._send(request, at_ps)

    def _dispatch(self, request: int, at_ps: int) -> None:
        stage = self.stage[request]
        if any(self.stage[held] == stage for held in self._held) or not self._send(request, at_ps):
            self._held[request] = None

    def _release(self, now_ps: int) -> None:
        full: set[int] = set()
        for request in list(self._held):
            stage = self.stage[request]
            if stage in full:
                continue
            if self._send(request, now_ps):
                del self._held[request]
            else:
                full.add(stage)

    def pool_load(self, setup: EngineSetup) -> int:
        """Return the number of requests that are in the pool of this setup, or wait for it."""
        others = sum(self.stage[held] != setup.takes.pool for held in self._held)
        return super().pool_load(setup) - others

    def on_request_end(self, number: int, request: int, at_ps: int) -> None:
        judged = self._route.by_answer and self.stage[request] < self._last
        if judged and self.ledger.finish_ps[request] != MISSING:
            self.in_vain.request_ended()
            self._queue_action(self._judge_answer, request, at_ps)
        else:
            super().on_request_end(number, request, at_ps)

    def _judge_answer(self, request: int, now_ps: int) -> None:
        """Send a complete answer to the judge, and schedule the decision: show the answer, or escalate the request."""
        self._depart(request, now_ps)
        if self.waiting_for_replica:
            self._release(now_ps)
        judged_ps = max(now_ps, self.ledger.finish_ps[request]) + self._judge_ps
        if self.stage[request] < self._final[request]:
            self._schedule_between_pools(self._escalate, request, judged_ps + self._server_ps)
        else:
            self._schedule_between_pools(self._show_answer, request, judged_ps)

    def _show_answer(self, request: int, now_ps: int) -> None:
        """Deliver an accepted answer to the client, all tokens at once."""
        ledger = self.ledger
        self.made_ps[request] = ledger.first_token_ps[request]
        ledger.finish_ps[request] += self._judge_ps
        ledger.first_token_ps[request] = ledger.finish_ps[request]
        self._on_answer(request, now_ps)

    def _escalate(self, request: int, now_ps: int) -> None:
        """Discard a rejected answer and send the request to the next pool, which starts from the prompt."""
        self._discard_answer(request)
        self.stage[request] += 1
        self.sent_on_ps[request] = now_ps
        self._dispatch(request, now_ps)

    def _discard_answer(self, request: int) -> None:
        self.account.passed_on += 1
        self.unseen_answers += 1
        self.unseen_tokens += self.ledger.output_tokens[request]
        self._forget(request)

    def _give_up(self, request: int, now_ps: int) -> None:
        if request not in self._between:
            super()._give_up(request, now_ps)
            return
        del self._between[request]
        self.account.timed_out += 1
        if self.ledger.finish_ps[request] != MISSING:
            self._discard_answer(request)
        self._on_early_end(request)

    def result(
        self, *, goodput_ms: Mapping[str, float] | None = None, interrupted: bool = False
    ) -> SimulationResult:
        found = super().result(goodput_ms=goodput_ms, interrupted=interrupted)
        stage, done = np.frombuffer(self.stage, dtype=np.int64), found.records.completed
        cached = np.frombuffer(self._final, dtype=np.int64) < 0
        use = CascadeUse(
            by_answer=self._route.by_answer,
            judge_s=self._route.judge_s,
            answered=tuple(int((done & ~cached & (stage == pool)).sum()) for pool in range(self._last + 1)),
            from_cache=self.account.from_cache,
            unseen_answers=self.unseen_answers,
            unseen_tokens=self.unseen_tokens,
            cached=cached,
            made_ps=np.frombuffer(self.made_ps, dtype=np.int64),
            sent_on_ps=np.frombuffer(self.sent_on_ps, dtype=np.int64),
        )
        return replace(found, cascade=use)
