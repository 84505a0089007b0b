"""Implementation of `Engines` with the compiled core, synchronised with SimPy's clock.

Between two SimPy events nothing affects the engines, so they run ahead to the time of the next event. They stop
earlier at an engine event to which the simulation reacts, because the reaction adds a SimPy event.
"""

from collections.abc import Sequence

import numpy as np
import simpy

from capacity.base.record import make_from
from capacity.simulator.core import binding
from capacity.simulator.core.fleet import (
    EVENT_FIELDS,
    LEDGER_COLUMNS,
    LIMIT_KEY,
    LOAD_ENGINE,
    MAX_STEPS,
    NEXT_KEY,
    STEPS_PER_CALL,
    STOP_AT,
    Fleet,
)
from capacity.simulator.core.interface import enums
from capacity.simulator.engines import (
    ENDLESS_PREEMPTION,
    EngineAccount,
    EngineState,
    NullReports,
    Reports,
    stall_reason,
)
from capacity.simulator.front_end_process import FrontendTimes
from capacity.simulator.gap_counter import GapCounter
from capacity.simulator.instants import next_event_key
from capacity.simulator.ledger import Ledger, Progress
from capacity.simulator.members import Recording
from capacity.simulator.requests import Requests
from capacity.simulator.setup import EngineSetup, check_setup
from capacity.step import picoseconds

FINISHED, REFUSED, PREFILLED = enums.EVENT_FINISHED, enums.EVENT_REFUSED, enums.EVENT_PREFILLED
LOAD_BEGINS = enums.EVENT_LOAD_BEGINS
ANY_EVENT = 0b11111  # bits of all kinds
MIN_STEPS_PER_CALL = 64  # steps per call when progress is shown
STEPS_PER_CHECKED_CALL = 10_000  # steps per call when the run may be stopped between calls


class CompiledEngines:
    """Compiled engines. If `reacts`, they report an ended request at once, else before the next SimPy event."""

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
        """Create the engines. Only if `routed`, they report ended and rejected requests. Raises InvalidInput."""
        columns = {name: getattr(ledger, name) for name in LEDGER_COLUMNS}
        self.fleet = Fleet(requests.workload, columns, routed=routed)
        self._env = env
        self._requests = requests
        self._ledger = ledger
        self._reports: Reports = reports
        self.deliver, self.cancel, self.stop = self.fleet.deliver, self.fleet.cancel, self.fleet.stop
        self.want_load, self.release_kept = self.fleet.want_load, self.fleet.release_kept
        self.on_kv_arrival, self.unload = self.fleet.on_kv_arrival, self.fleet.unload
        self._recording = recording
        self._setups: list[EngineSetup] = []
        turn = self.fleet.turn
        turn[STOP_AT] = ANY_EVENT if reacts else ANY_EVENT & ~(1 << FINISHED)
        self._steps_per_call = STEPS_PER_CALL if recording.check is None else STEPS_PER_CHECKED_CALL
        turn[MAX_STEPS] = self._steps_per_call if recording.progress is None else MIN_STEPS_PER_CALL

    def add(self, setup: EngineSetup, now_ps: int) -> int:
        check_setup(setup)
        caching = setup.enable_prefix_caching
        self._setups.append(setup)
        return self.fleet.add(
            setup,
            now_ps,
            chains=self._requests.block_chains,
            answers_private=not caching or self._requests.answers_are_private,
            frontend=self._recording.frontend,
            keep_work=self._recording.keep_work,
        )

    def feed(self, number: int, requests: Sequence[int], instants_ps: Sequence[int]) -> None:
        whole = isinstance(requests, range) and requests == range(len(instants_ps))
        self.fleet.feed(number, None if whole else np.asarray(requests), np.asarray(instants_ps))

    def feed_loop(self) -> None:
        """Let the first engine send all requests of a closed loop."""
        times, concurrency = self._recording.frontend or FrontendTimes(), self._requests.workload.concurrency
        assert concurrency is not None
        request_ps, response_ps = map(picoseconds, (times.request_latency_s, times.response_latency_s))
        self.fleet.feed_loop(concurrency, request_ps, response_ps + request_ps)

    def report_at_once(self) -> None:
        self.fleet.turn[STOP_AT] = ANY_EVENT

    def run(self) -> None:
        """Run the engines and the events of the simulation alternately until no event is left."""
        queue, happen, turn, take_turn = (
            self._env._queue,
            self._env.step,
            self.fleet.turn,
            self.fleet.take_turn,
        )
        progress, check = self._ledger.progress, self._recording.check
        while True:
            limit_key = turn[LIMIT_KEY] = next_event_key(queue)
            told = take_turn()
            if check is not None:
                check()
            if progress is not None:
                self._show_progress(progress, all_done=turn[NEXT_KEY] >= limit_key or told > 0)
            if told:
                self._report_events(told)
                limit_key = next_event_key(queue)
            if turn[NEXT_KEY] >= limit_key and turn[LOAD_ENGINE] < 0:
                if not queue:
                    return
                happen()

    def _show_progress(self, progress: Progress, *, all_done: bool) -> None:
        """Report progress, and adapt the steps per `take_turn` call so that two reports are rarely due in one call."""
        turn, passed = self.fleet.turn, progress.count_to(self.fleet.completed)
        if passed > 1:
            turn[MAX_STEPS] = max(MIN_STEPS_PER_CALL, turn[MAX_STEPS] // passed)
        elif not passed and not all_done:
            turn[MAX_STEPS] = min(self._steps_per_call, 2 * turn[MAX_STEPS])

    def _report_events(self, told: int) -> None:
        """Pass the `told` new engine events to `Reports`, and set the KV arrival time for each KV load that begins."""
        reports, events = self._reports, self.fleet.events(told)
        for at in range(0, EVENT_FIELDS * told, EVENT_FIELDS):
            kind, number, request, at_ps = events[at], events[at + 1], events[at + 2], events[at + 3]
            if kind == FINISHED:
                reports.on_request_end(number, request, at_ps)
            elif kind == LOAD_BEGINS:
                self.fleet.set_load_end(number, request, reports.load_begins(number, request, at_ps))
            elif kind == REFUSED:
                reports.on_refusal(number, request, at_ps)
            else:
                reports.on_prefill(number, request, at_ps, kept=kind == PREFILLED)

    def close(self) -> None:
        self.fleet.close()
        self._reports = NullReports()  # breaks the reference cycle

    @property
    def busy(self) -> bool:
        return self.fleet.next_key < binding.NEVER_KEY

    def rank_of(self, number: int, request: int) -> int:  # noqa: ARG002
        """Return 0, because disaggregated pools with ranks are not compiled."""
        return 0

    def state(self, number: int) -> EngineState:
        state = self.fleet.state(number)
        return EngineState(state.num_running, state.num_waiting, state.kv_used_blocks)

    def account(self, number: int) -> EngineAccount:
        state, setup = self.fleet.state(number), self._setups[number]
        num_blocks = setup.num_blocks * setup.data_parallel_size
        stalled_by = None
        if state.unfinished:
            stalled_by = ENDLESS_PREEMPTION if state.endless else stall_reason(state.num_waiting, num_blocks)
        block_ps, busy_ps = (high << 64 | low for low, high in (state.kv_block_ps, state.kv_busy_ps))
        return make_from(
            EngineAccount,
            state,
            kv_block_ps=block_ps,
            kv_busy_ps=busy_ps,
            num_blocks=num_blocks,
            free_blocks=num_blocks - state.kv_used_blocks,
            stalled_by=stalled_by,
            tier_use=self.fleet.tier_use(number),
            rank_requests=self.fleet.rank_requests(number),
            work=self.fleet.work(number),
        )

    @property
    def gaps(self) -> GapCounter:
        return self.fleet.gaps()
