"""`Engines` that run compiled: a fleet of the core, and the SimPy process that keeps it with the clock.

Between two events of anyone else nothing can meet the engines, so they run ahead to the next one. Where the world acts
on what leaves them, they stop at the first instant at which something does, and that is an event of its own.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
import simpy

from capacity.simulator.core import binding
from capacity.simulator.core.fleet import LEDGER_COLUMNS, STEPS_PER_CALL, Fleet
from capacity.simulator.engines import ENDLESS, EngineAccount, EngineState, Reports, stall_reason
from capacity.simulator.gap_counter import GapCounter
from capacity.simulator.instants import ARRIVE, DECIDE, NEVER, SETTLE, Instant
from capacity.simulator.ledger import Ledger
from capacity.simulator.members import Recording
from capacity.simulator.requests import Requests
from capacity.simulator.setup import EngineSetup, check_setup
from capacity.step import picoseconds

FEWEST_STEPS = 64  # of one call, where progress is shown


class CompiledEngines:
    """`Engines` of the core. With `reacts`, what leaves is reported at its very instant, else before the next event."""

    def __init__(
        self,
        env: simpy.Environment,
        requests: Requests,
        ledger: Ledger,
        reports: Reports,
        recording: Recording,
        *,
        reacts: bool,
        routed: bool,
    ) -> None:
        """`routed`: somebody wants the reports. Raises InvalidInput for requests that no engine can take."""
        columns = {name: getattr(ledger, name) for name in LEDGER_COLUMNS}
        self.fleet = Fleet(requests.workload, columns, routed=routed)
        self._env = env
        self._requests = requests
        self._ledger = ledger
        self._reports = reports
        self._recording = recording
        self._setups: list[EngineSetup] = []
        self._most_steps = FEWEST_STEPS
        self._bell: Instant | None = None  # while all of them rest: who comes, rings
        self._reacts = False
        self._routed = routed
        if reacts:
            self.report_at_once()

    def add(self, setup: EngineSetup, now_ps: int) -> int:
        check_setup(setup)
        frontend, caching = self._recording.frontend, setup.enable_prefix_caching
        self._setups.append(setup)
        return self.fleet.add(
            setup,
            now_ps,
            chains=self._requests.chains_of,
            answers_private=not caching or self._requests.answers_are_private,
            message_ps=0 if frontend is None else picoseconds(frontend.output_token_s),
            stream_interval=1 if frontend is None else frontend.stream_interval,
            keep_work=self._recording.keep_work,
        )

    # requests

    def feed(self, number: int, requests: Sequence[int], instants_ps: Sequence[int]) -> None:
        whole = isinstance(requests, range) and requests == range(len(instants_ps))
        self.fleet.feed(number, None if whole else np.asarray(requests), np.asarray(instants_ps))

    def deliver(self, number: int, request: int, at_ps: int) -> bool:
        self._ring()
        return self.fleet.deliver(number, request, at_ps)

    def cancel(self, number: int, request: int, at_ps: int) -> None:
        self._ring()
        self.fleet.cancel(number, request, at_ps)

    def want_load(self, number: int, request: int, tokens: int, at_ps: int) -> bool:
        self._ring()
        return self.fleet.want_load(number, request, tokens, at_ps)

    def loaded(self, number: int, request: int, at_ps: int) -> None:
        self._ring()
        self.fleet.loaded(number, request, at_ps)

    def unload(self, number: int, request: int, at_ps: int) -> None:
        self._ring()
        self.fleet.unload(number, request, at_ps)

    def release_kept(self, number: int, request: int, at_ps: int) -> None:
        self._ring()
        self.fleet.release_kept(number, request, at_ps)

    def stop(self, number: int) -> None:
        self.fleet.stop(number)

    # time

    def catch_up(self, now_ps: int, kind: int) -> None:
        limit_key = binding.NEVER_KEY if now_ps >= NEVER // 4 else 4 * now_ps + kind
        fleet = self.fleet
        while True:
            self._advance(limit_key, stop=False)
            if self._routed:
                self._report()
            if fleet.next_key >= limit_key:
                return

    def _advance(self, limit_key: int, *, stop: bool) -> None:
        """With few enough steps that progress is seen as it is made."""
        progress = self._ledger.progress
        if progress is None:
            self.fleet.advance(limit_key, stop=stop)
            return
        self.fleet.advance(limit_key, stop=stop, most_steps=self._most_steps)
        passed = progress.reached(self._completed())
        if passed > 1:
            self._most_steps = max(FEWEST_STEPS, self._most_steps // passed)
        elif not passed and not stop:
            self._most_steps = min(STEPS_PER_CALL, 2 * self._most_steps)

    def report_at_once(self) -> None:
        if not self._reacts:
            self._reacts = True
            self._env.process(self._run())

    def _run(self) -> Generator[simpy.Event, None, None]:
        """Ahead to the next event of anyone else, but not beyond the first instant at which somebody leaves."""
        env, fleet = self._env, self.fleet
        while True:
            others_ps = env.peek()
            limit_key = binding.NEVER_KEY if others_ps >= NEVER // 4 else 4 * int(others_ps)
            while not fleet.waiting_events and fleet.next_key < limit_key:
                self._advance(limit_key, stop=True)
            if fleet.waiting_events:
                at_ps = fleet.waiting_events[0][3]
                if at_ps > env.now:
                    yield Instant(env, SETTLE).at(at_ps)
                self._report()
            elif fleet.next_key < min(
                limit_key + ARRIVE, binding.NEVER_KEY
            ):  # a step ends at that very instant, before others' arrivals
                yield Instant(env, SETTLE).at(int(others_ps))
                fleet.advance(limit_key + ARRIVE, stop=True)
                self._report()
            elif limit_key < binding.NEVER_KEY:
                yield Instant(env, DECIDE).at(int(others_ps))
            else:
                self._bell = Instant(env, DECIDE)
                yield self._bell

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.at(int(self._env.now))
            self._bell = None

    def _report(self) -> None:
        """Tell what has left, in order; an engine that asks when KV will come goes on with the answer."""
        reports, fleet = self._reports, self.fleet
        for kind, number, request, at_ps, _ in fleet.take_events():
            if kind == binding.FINISHED:
                reports.left(number, request, at_ps)
            elif kind == binding.LOAD_BEGINS:
                fleet.load_begun(number, request, reports.load_begins(number, request, at_ps))
            elif kind == binding.REFUSED:
                reports.refused(number, request, at_ps)
            else:
                reports.prefilled(number, request, at_ps, kept=kind == binding.PREFILLED)

    # what there is to know

    def _completed(self) -> int:
        return sum(self.fleet.state(number).completed for number in range(len(self._setups)))

    @property
    def busy(self) -> bool:
        return self.fleet.next_key < binding.NEVER_KEY

    def state(self, number: int) -> EngineState:
        state = self.fleet.state(number)
        return EngineState(state.num_running, state.num_waiting, state.kv_used_blocks)

    def unfinished(self, number: int) -> int:
        return int(self.fleet.state(number).unfinished)

    def account(self, number: int) -> EngineAccount:
        state, setup = self.fleet.state(number), self._setups[number]
        num_blocks = setup.num_blocks * setup.data_parallel_size
        stalled_by = None
        if state.unfinished:
            stalled_by = ENDLESS if state.endless else stall_reason(state.num_waiting, num_blocks)
        return EngineAccount(
            steps=state.steps,
            rows=state.rows,
            busy_ps=state.busy_ps,
            rejected=state.rejected,
            preemptions=state.preemptions,
            completed=state.completed,
            kv_block_ps=state.kv_block_ps[1] << 64 | state.kv_block_ps[0],
            kv_busy_ps=state.kv_busy_ps[1] << 64 | state.kv_busy_ps[0],
            kv_peak_blocks=state.kv_peak_blocks,
            hit_tokens=state.hit_tokens,
            queried_tokens=state.queried_tokens,
            num_blocks=num_blocks,
            free_blocks=num_blocks - state.kv_used_blocks,
            now_ps=state.now_ps,
            stalled_by=stalled_by,
            tier_use=self.fleet.tier_use(number),
            rank_requests=self.fleet.rank_requests(number),
            work=self.fleet.work(number),
        )

    @property
    def gaps(self) -> GapCounter:
        return self.fleet.gaps()
