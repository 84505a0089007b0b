"""Runs cases until the budget is spent: prepare, check, time; keep what there is whatever happens."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from capacity.base.errors import CapacityError
from capacity_validate.cases import Case, MeasuredCase, MeasurementLog
from capacity_validate.kernels import Bench, Prepared, Unsupported, prepare
from capacity_validate.timing import How, Stopwatch, summarise_samples

Progress = Callable[[int, int, str], None]
MIN_SAMPLES = 5
_NO_MEMORY = ("out of memory", "not enough memory", "allocate memory")
_LOST = ("illegal memory access", "misaligned address", "unspecified launch failure", "device-side assert")
MAX_SAMPLES = 200


class DeviceLost(Exception):
    """A kernel broke the device's context: nothing more runs in this process. The log names it, a new run goes on."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(
            f"{what} broke the device's context ({text}); run the same command again to go on after it"
        )


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    text = str(error).strip()
    line = text.splitlines()[0] if text else ""
    name = type(error).__name__
    return line if isinstance(error, RuntimeError) and line else f"{name}: {line}" if line else name


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on the device or the host."""
    return isinstance(error, MemoryError) or any(part in str(error).lower() for part in _NO_MEMORY)


def is_device_lost(error: BaseException) -> bool:
    """Whether CUDA's context is beyond use: every later call would fail with the same error."""
    return any(part in str(error).lower() for part in _LOST)


@dataclass(slots=True)
class _Pooled:
    """Samples of one case over all passes."""

    samples: list[float] = field(default_factory=list)
    how: How = "wall time"
    error: float | None = None
    extra_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """What a run did: cases timed, cases that the budget left out, passes finished, how long it took."""

    timed: int
    skipped: int
    left_out: tuple[str, ...]
    passes: int
    seconds: float
    interrupted: bool


@dataclass(slots=True)
class CaseRunner:
    """Times cases on one device. Each pass takes every case once more, so that slow drift touches all alike.

    `own_calls` gives the call of a case that no kernel builder knows (steps of a whole model).
    """

    bench: Bench
    stopwatch: Stopwatch
    log: MeasurementLog
    case_s: float
    own_calls: Callable[[Case], Prepared | None] = lambda case: None  # noqa: ARG005
    _pooled: dict[str, _Pooled] = field(default_factory=dict)

    def run(
        self, cases: Sequence[Case], *, passes: int, deadline: float, progress: Progress | None = None
    ) -> RunOutcome:
        """Cases in order, most valuable first. `deadline` is of `time.monotonic`. Ctrl-C ends it and keeps the log."""
        start = time.monotonic()
        todo = [case for case in cases if case.id not in self.log.done]
        done, finished, interrupted = 0, 0, False
        total = len(todo) * passes
        try:
            for _ in range(passes):
                for case in list(todo):
                    if time.monotonic() > deadline:
                        break
                    if not self._one(case):
                        todo.remove(case)
                    done += 1
                    if progress is not None:
                        progress(done, total, case.id)
                else:
                    finished += 1
                    continue
                break
        except KeyboardInterrupt:
            interrupted = True
        left_out = tuple(case.id for case in cases if case.id not in self.log.done)
        return RunOutcome(
            timed=sum(1 for case in cases if self._status(case) == "ok"),
            skipped=sum(1 for case in cases if self._status(case) not in ("ok", None)),
            left_out=left_out,
            passes=finished,
            seconds=time.monotonic() - start,
            interrupted=interrupted,
        )

    def _status(self, case: Case) -> str | None:
        measured = self.log.done.get(case.id)
        return None if measured is None else measured.status

    def _one(self, case: Case) -> bool:
        """Time a case once more; False: it cannot be timed, and the log says why."""
        try:
            prepared = self.own_calls(case) or prepare(case, self.bench)
            return self._timed(case, prepared)
        except Unsupported as reason:
            self.log.add(MeasuredCase(case=case, status="unsupported", note=str(reason)))
        except CapacityError:
            raise
        except Exception as error:  # one case's bad luck must not cost the others
            text = first_line(error)
            if is_out_of_memory(error):
                self._out_of_memory(case, text)
            else:
                known = isinstance(error, RuntimeError) and not is_device_lost(error)
                self.log.add(MeasuredCase(case=case, status="unsupported" if known else "failed", note=text))
            if is_device_lost(error):
                raise DeviceLost(case.id, text) from None
        return False

    def _out_of_memory(self, case: Case, text: str) -> None:
        gc.collect()
        if self.bench.on_cuda:
            self.bench.torch.cuda.empty_cache()
        self.log.add(MeasuredCase(case=case, status="out of memory", note=text))

    def _timed(self, case: Case, prepared: Prepared) -> bool:
        pooled = self._pooled.setdefault(case.id, _Pooled())
        if pooled.error is None and prepared.check is not None:
            pooled.error = prepared.check()
            if pooled.error > prepared.tolerance:
                note = f"off by {pooled.error:.2e} of a float64 reference, allowed {prepared.tolerance:.0e}: not timed"
                self.log.add(
                    MeasuredCase(
                        case=case, status="wrong", reference_error=min(pooled.error, 1e30), note=note
                    )
                )
                return False
        if pooled.extra_bytes is None and prepared.extra_bytes is not None:
            pooled.extra_bytes = prepared.extra_bytes()
        samples, pooled.how = self.stopwatch.sample(
            prepared.calls,
            budget_s=self.case_s,
            at_least=MIN_SAMPLES,
            at_most=MAX_SAMPLES,
            capturable=prepared.capturable,
        )
        pooled.samples += samples
        self.log.add(
            MeasuredCase(
                case=case,
                status="ok",
                timing=summarise_samples(pooled.samples, pooled.how),
                flops=prepared.flops,
                bytes=prepared.bytes,
                reference_error=pooled.error,
                extra_bytes=pooled.extra_bytes,
            )
        )
        return True
