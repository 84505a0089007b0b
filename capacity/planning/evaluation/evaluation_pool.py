"""Run evaluations (trials) on demand; worker processes run the trials that will probably be requested next.

The requested trials and their order do not depend on the number of workers; only the time limit can change how many
are completed.
"""

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
from capacity.planning.workers.environment_fingerprint import NO_NAMED_INPUTS, NamedInputs
from capacity.planning.workers.worker_pool import NotDone, WorkerPool, open_pool

WORKERS_AFTER_S = 0.7  # time to start a process: shorter searches start no workers
WORKERS_FOR_S = 5.0  # least time left: on a busy machine a start takes this long
LOOK_S = 0.2  # seconds between two checks of the clock while workers run


Ahead = Callable[[], Sequence[EvaluationRequest]]


@dataclass(kw_only=True)
class EvaluationPool:
    """Runner of evaluations (trials) of candidates; raises OutOfTime at `until_s` on `time.monotonic`.

    `workers` is the number of processes, including this one and those of a Dask `cluster`. `named`: GPU profiles,
    models and files that trials look up by name. `tick` is called repeatedly. `trials`: results by request, `seconds`:
    their durations.
    """

    context: EvaluationContext
    intervals: bool = True  # sampling intervals around the levels of a full trial
    workers: int = 1
    cluster: str | None = None
    named: NamedInputs = NO_NAMED_INPUTS
    until_s: float = math.inf
    tick: Callable[[], None] | None = None
    trials: dict[EvaluationRequest, Evaluation] = field(default_factory=dict)
    seconds: dict[EvaluationRequest, float] = field(default_factory=dict)
    _found: dict[EvaluationRequest, Evaluation] = field(default_factory=dict, repr=False)
    _futures: dict[EvaluationRequest, Future[Evaluation | None]] = field(default_factory=dict, repr=False)
    _stack: ExitStack = field(default_factory=ExitStack, repr=False)
    _worker_pool: WorkerPool | None = field(default=None, repr=False)
    _begun_s: float = field(default_factory=time.monotonic, repr=False)

    def __post_init__(self) -> None:
        check_workers(self.workers)

    def __enter__(self) -> "EvaluationPool":
        """Connect to the cluster, if one is set. Raises InvalidInput if it does not exist."""
        if self.cluster is not None:
            self.workers = self._open().workers + 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the workers, also in the middle of an evaluation."""
        self._worker_pool = None
        self._stack.__exit__(OutOfTime, OutOfTime(), None)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return notes about workers that were lost or failed."""
        return () if self._worker_pool is None else self._worker_pool.remarks

    def check(self) -> None:
        if time.monotonic() > self.until_s:
            raise OutOfTime
        if self.tick is not None:
            self.tick()

    def best_known(self, ask: EvaluationRequest) -> Evaluation | None:
        """Return the most complete of the results so far for the candidate of `ask`; None if there are none."""
        full = ask._replace(sample=False, first_draw=False)
        whole = self.trials.get(full._replace(whole=True))
        return whole or self.trials.get(full) or self.trials.get(ask)

    def trial(self, ask: EvaluationRequest, ahead: Ahead = tuple) -> Evaluation:
        """Return the evaluation of `ask`; meanwhile, idle workers run the evaluations that `ahead()` returns, which
        will probably be requested next. Raises OutOfTime."""
        self.check()
        known = self.best_known(ask)
        if known is not None:
            return known
        if self._has_workers():
            self._send(ask, ahead)
            future = self._futures.get(ask)
            if future is not None and not self._take_back(future):
                while not future.done():
                    self._run_another(ahead)
            self._collect()
        self.trials[ask] = self._found.get(ask) or self._run(ask)
        return self.trials[ask]

    def run_all(self, tasks: Sequence[EvaluationRequest]) -> list[Evaluation | None]:
        """Return the results of `tasks` in order; None for each that the time limit or Ctrl-C prevented."""
        futures = [self._submit(task) for task in tasks]
        trials: list[Evaluation | None] = []
        for task, future in zip(tasks, futures, strict=True):
            try:
                self.check()
                found = None if future is None or self._take_back(future) else self._result(future)
                trials.append(found or self.context.run(task, check=self.check))
            except OutOfTime:
                trials.append(None)
            except KeyboardInterrupt:
                trials.append(None)
                self.until_s = -math.inf
        return trials

    def _run(self, ask: EvaluationRequest) -> Evaluation:
        begun_s = time.monotonic()
        trial = self._found[ask] = self.context.run(self._with_intervals(ask), check=self.check)
        self.seconds[ask] = time.monotonic() - begun_s
        return trial

    def _with_intervals(self, ask: EvaluationRequest) -> EvaluationRequest:
        return ask._replace(intervals=self.intervals and not ask.sample)

    def _has_workers(self) -> bool:
        """Return whether workers are available; start them if the search has run long enough."""
        now_s = time.monotonic()
        worth_it = now_s - self._begun_s > WORKERS_AFTER_S and self.until_s - now_s > WORKERS_FOR_S
        if self._worker_pool is None and self.workers > 1 and worth_it:
            self._open()
        return self._worker_pool is not None and not self._worker_pool.is_lost

    def _open(self) -> WorkerPool:
        worker_pool = open_pool(self.workers - 1, self.cluster, common=(self.context,), named=self.named)
        self._worker_pool = self._stack.enter_context(worker_pool)
        return self._worker_pool

    def _take_back(self, future: Future[Evaluation | None]) -> bool:
        return self._worker_pool is not None and self._worker_pool.take_back(future)

    def _submit(self, task: EvaluationRequest) -> Future[Evaluation | None] | None:
        if not self._has_workers():
            return None
        assert self._worker_pool is not None
        return self._worker_pool.submit(run_task, task, self.until_s - time.monotonic())

    def _send(self, ask: EvaluationRequest, ahead: Ahead) -> None:
        """Submit to idle workers the evaluations of `ahead()`, which will probably be requested after `ask`."""
        self._collect()
        for other in ahead():
            if len(self._futures) >= self.workers:
                return
            if other != ask and other not in self._found and other not in self._futures:
                future = self._submit(self._with_intervals(other))
                if future is not None:
                    self._futures[other] = future

    def _run_another(self, ahead: Ahead) -> None:
        """Run the next evaluation of `ahead()` in this process while a worker runs the one that is needed now; if none
        is left, wait for a worker."""
        self.check()
        other = next((ask for ask in ahead() if ask not in self._found and ask not in self._futures), None)
        if other is None:
            wait(list(self._futures.values()), timeout=LOOK_S, return_when="FIRST_COMPLETED")
        else:
            self._run(other)

    def _collect(self) -> None:
        for ask, future in list(self._futures.items()):
            if future.done():
                del self._futures[ask]
                trial = self._result(future)
                if trial is not None:
                    self._found[ask] = trial

    def _result(self, future: Future[Evaluation | None]) -> Evaluation | None:
        """Return a worker's result; None if the worker ran out of time or died; the caller then evaluates it."""
        assert self._worker_pool is not None
        while not future.done():
            self.check()
            wait([future], timeout=LOOK_S)
        try:
            trial: Evaluation | None = self._worker_pool.result(future)
        except NotDone:
            return None
        return trial
