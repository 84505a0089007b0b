"""Python engine loop: each engine is a SimPy process, and every decision and every end of a step is an event."""

from collections.abc import Sequence

import simpy

from capacity.simulator.engine import Engine
from capacity.simulator.engines import EngineAccount, EngineState, Reports
from capacity.simulator.front_end_process import FrontEndProcesses
from capacity.simulator.frontend import StreamingLedger
from capacity.simulator.gap_counter import GapCounter
from capacity.simulator.ledger import EngineLedger, Ledger
from capacity.simulator.members import Recording
from capacity.simulator.requests import Requests
from capacity.simulator.setup import EngineSetup, make_pool, make_scheduler
from capacity.simulator.step_work import StepWork


class ReadableEngines:
    """`Engines` with the Python policies and KV pools; their state is always current."""

    def __init__(
        self,
        env: simpy.Environment,
        requests: Requests,
        ledger: Ledger,
        reports: Reports,
        recording: Recording,
    ) -> None:
        self.env = env
        self.gaps = GapCounter()
        self.engines: list[Engine] = []
        self._requests = requests
        self._ledger = ledger
        self._reports = reports
        self._recording = recording

    def add(self, setup: EngineSetup, now_ps: int) -> int:  # noqa: ARG002
        number, pool, times = len(self.engines), make_pool(setup), self._recording.frontend
        work = StepWork(setup.step_times) if self._recording.keep_work else None
        ledger, front_end = EngineLedger(self._ledger, self.gaps, work), None
        if times is not None and (times.streams or times.queues_requests):
            front_end = FrontEndProcesses(times, self._requests.prompt_tokens)
            if times.streams:
                ledger = StreamingLedger(self._ledger, self.gaps, work, front_end=front_end)
        engine = Engine(
            self.env,
            setup,
            make_scheduler(setup, pool),
            pool,
            ledger=ledger,
            reports=self._reports,
            new_sequence=self._requests.sequence_maker(setup, pool),
            number=number,
            observer=self._recording.observer,
            front_end=front_end if front_end is not None and front_end.times.queues_requests else None,
        )
        self.engines.append(engine)
        self.env.process(engine.run())
        return number

    def feed(self, number: int, requests: Sequence[int], instants_ps: Sequence[int]) -> None:
        self.engines[number].feed(requests, instants_ps)

    def deliver(self, number: int, request: int, at_ps: int) -> bool:  # noqa: ARG002
        return self.engines[number].deliver(request)

    def cancel(self, number: int, request: int, at_ps: int) -> None:  # noqa: ARG002
        self.engines[number].cancel(request)

    def want_load(self, number: int, request: int, tokens: int, at_ps: int) -> bool:  # noqa: ARG002
        return self.engines[number].want_load(request, tokens)

    def on_kv_arrival(self, number: int, request: int, at_ps: int) -> None:  # noqa: ARG002
        self.engines[number].on_kv_arrival(request)

    def unload(self, number: int, request: int, at_ps: int) -> None:  # noqa: ARG002
        self.engines[number].unload(request)

    def rank_of(self, number: int, request: int) -> int:
        return self.engines[number].rank_of(request)

    def release_kept(self, number: int, request: int, at_ps: int) -> None:  # noqa: ARG002
        self.engines[number].release_kept(request)

    def stop(self, number: int) -> None:
        self.engines[number].stop()

    def run(self) -> None:
        check = self._recording.check
        if check is None:
            self.env.run()
            return
        while self.env._queue:
            self.env.step()
            check()

    def close(self) -> None:
        """Do nothing; the garbage collector frees the engines."""

    def report_at_once(self) -> None:
        """Do nothing; departures are always reported at the time when they occur."""

    @property
    def busy(self) -> bool:
        return any(engine.busy for engine in self.engines)

    def state(self, number: int) -> EngineState:
        return self.engines[number].state()

    def account(self, number: int) -> EngineAccount:
        return self.engines[number].account()
