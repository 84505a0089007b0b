"""Trials on demand: what is asked for runs here, what is likely to be asked for next meanwhile on workers.

Who asks sees the same trials, in the same order, whatever the number of workers; time alone can end them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType

from capacity.base.processes import check_workers
from capacity.planning.evaluation.evaluation_context import (
    EvaluationContext,
    EvaluationRequest,
    OutOfTime,
    run_task,
)
from capacity.planning.evaluation.slo_evaluation import Evaluation
from capacity.planning.workers.environment_fingerprint import NOTHING, Named
from capacity.planning.workers.worker_pool import NotDone, WorkerPool, opened

WORKERS_AFTER_S = 0.7  # a process takes about so long to start: shorter searches have none
WORKERS_FOR_S = 5.0  # nor have those that end so soon: on a busy machine starting takes as long
LOOK_S = 0.2  # between two looks at the clock while others work


Ahead = Callable[[], Sequence[EvaluationRequest]]


@dataclass(kw_only=True)
class EvaluationPool:
    """Runs trials until `until_s` (by `time.monotonic`), then raises OutOfTime; `tick` is called meanwhile.

    `workers` counts this process; with a `cluster` there are as many more as it has, which find there what is `named`.
    `trials` are those that were asked for, `seconds` what each took.
    """

    arena: EvaluationContext
    intervals: bool = True  # of sampling, around the levels of a full trial
    workers: int = 1
    cluster: str | None = None
    named: Named = NOTHING
    until_s: float = math.inf
    tick: Callable[[], None] | None = None
    trials: dict[EvaluationRequest, Evaluation] = field(default_factory=dict)
    seconds: dict[EvaluationRequest, float] = field(default_factory=dict)
    _found: dict[EvaluationRequest, Evaluation] = field(default_factory=dict, repr=False)
    _futures: dict[EvaluationRequest, Future[Evaluation | None]] = field(default_factory=dict, repr=False)
    _stack: ExitStack = field(default_factory=ExitStack, repr=False)
    _crew: WorkerPool | None = field(default=None, repr=False)
    _begun_s: float = field(default_factory=time.monotonic, repr=False)

    def __post_init__(self) -> None:
        check_workers(self.workers)

    def __enter__(self) -> EvaluationPool:
        """Raises InvalidInput where there is no such cluster."""
        if self.cluster is not None:
            self.workers = self._open().workers + 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the workers, whatever they are at."""
        self._crew = None
        self._stack.__exit__(OutOfTime, OutOfTime(), None)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What became of the workers, where that is worth a word."""
        return () if self._crew is None else self._crew.remarks

    def check(self) -> None:
        """Raises OutOfTime where time is up."""
        if time.monotonic() > self.until_s:
            raise OutOfTime
        if self.tick is not None:
            self.tick()

    def known(self, ask: EvaluationRequest) -> Evaluation | None:
        """What was seen of a candidate: in full, where it was."""
        full = ask._replace(sample=False, first_draw=False)
        whole = self.trials.get(full._replace(whole=True))
        return whole or self.trials.get(full) or self.trials.get(ask)

    def trial(self, ask: EvaluationRequest, ahead: Ahead = tuple) -> Evaluation:
        """The trial that is asked for; `ahead` says what is likely to be asked for next. Raises OutOfTime."""
        self.check()
        known = self.known(ask)
        if known is not None:
            return known
        if self._workers_are_there():
            self._send(ask, ahead)
            future = self._futures.get(ask)
            if future is not None and not self._taken_back(future):
                while not future.done():
                    self._meanwhile(ahead)
            self._collect()
        self.trials[ask] = self._found.get(ask) or self._run(ask)
        return self.trials[ask]

    def all(self, tasks: Sequence[EvaluationRequest]) -> list[Evaluation | None]:
        """The trials of `tasks`, in order; None for those that time, or Ctrl-C, did not allow."""
        futures = [self._submitted(task) for task in tasks]
        trials: list[Evaluation | None] = []
        for task, future in zip(tasks, futures, strict=True):
            try:
                self.check()
                found = None if future is None or self._taken_back(future) else self._result(future)
                trials.append(found or self.arena.run(task, check=self.check))
            except OutOfTime:
                trials.append(None)
            except KeyboardInterrupt:
                trials.append(None)
                self.until_s = -math.inf
        return trials

    def _run(self, ask: EvaluationRequest) -> Evaluation:
        begun_s = time.monotonic()
        trial = self._found[ask] = self.arena.run(self._with_intervals(ask), check=self.check)
        self.seconds[ask] = time.monotonic() - begun_s
        return trial

    def _with_intervals(self, ask: EvaluationRequest) -> EvaluationRequest:
        return ask._replace(intervals=self.intervals and not ask.sample)

    # workers

    def _workers_are_there(self) -> bool:
        """Whether there are any; a search that goes on for long enough starts them."""
        now_s = time.monotonic()
        worth_it = now_s - self._begun_s > WORKERS_AFTER_S and self.until_s - now_s > WORKERS_FOR_S
        if self._crew is None and self.workers > 1 and worth_it:
            self._open()
        return self._crew is not None and not self._crew.is_lost

    def _open(self) -> WorkerPool:
        crew = opened(self.workers - 1, self.cluster, common=(self.arena,), named=self.named)
        self._crew = self._stack.enter_context(crew)
        return self._crew

    def _taken_back(self, future: Future[Evaluation | None]) -> bool:
        return self._crew is not None and self._crew.take_back(future)

    def _submitted(self, task: EvaluationRequest) -> Future[Evaluation | None] | None:
        if not self._workers_are_there():
            return None
        assert self._crew is not None
        return self._crew.submit(run_task, task, self.until_s - time.monotonic())

    def _send(self, ask: EvaluationRequest, ahead: Ahead) -> None:
        """Give the workers what is likely to be asked for after `ask`."""
        self._collect()
        for other in ahead():
            if len(self._futures) >= self.workers:
                return
            if other != ask and other not in self._found and other not in self._futures:
                future = self._submitted(self._with_intervals(other))
                if future is not None:
                    self._futures[other] = future

    def _meanwhile(self, ahead: Ahead) -> None:
        """While a worker is at what was asked for: something else, or wait."""
        self.check()
        other = next((ask for ask in ahead() if ask not in self._found and ask not in self._futures), None)
        if other is None:
            wait(list(self._futures.values()), timeout=LOOK_S, return_when="FIRST_COMPLETED")
        else:
            self._run(other)

    def _collect(self) -> None:
        """What workers have found."""
        for ask, future in list(self._futures.items()):
            if future.done():
                del self._futures[ask]
                trial = self._result(future)
                if trial is not None:
                    self._found[ask] = trial

    def _result(self, future: Future[Evaluation | None]) -> Evaluation | None:
        """None where time was up there, or the worker died: then it is run here, and says what is the matter."""
        assert self._crew is not None
        while not future.done():
            self.check()
            wait([future], timeout=LOOK_S)
        try:
            trial: Evaluation | None = self._crew.result(future)
        except NotDone:
            return None
        return trial
