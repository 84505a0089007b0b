"""Run cases until the budget is spent: prepare, check and time them; keep all results on any failure."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from capacity.base.errors import CapacityError
from capacity.base.record import make_from
from capacity.hardware import HardwareProfile
from capacity_validate.cases import MAX_ATTEMPTS, Case, MeasuredCase, MeasurementLog, Status
from capacity_validate.constant_fits import shape_key
from capacity_validate.failures import (
    DeviceLost,
    device_error,
    error_line,
    free_memory,
    is_out_of_memory,
    require_kernels_for_device,
)
from capacity_validate.kernels import KernelContext, PreparedCase, Unsupported, prepare
from capacity_validate.plausibility import (
    ENOUGH_IMPLAUSIBLE,
    ReferenceReading,
    explain_impossible_speed,
    find_equal_times,
    is_explained_by_cache,
    reference_drift,
    time_drift,
)
from capacity_validate.telemetry import Conditions, Telemetry, merge_conditions
from capacity_validate.timing import How, Samples, Stopwatch, Timing, summarise_samples

Progress = Callable[[int, int, str], None]
MIN_SAMPLES = 5
MAX_SAMPLES = 200
ORDER_WINDOW = 32  # cases shuffled together, so that a run that ends early still has a balanced sample
REFERENCE_EVERY_S = 10.0  # between two measurements of the reference case
BURST_S = 0.06  # first part of a sustained case, comparable to a short case
SPOILED_REASON = "a rejected graph capture made torch's allocator unusable"


@dataclass(slots=True)
class _PooledSamples:
    """Samples of one case from all passes. Only samples in CUDA graphs exclude launch gaps, so either all samples are
    timed in graphs or none."""

    samples: list[float] = field(default_factory=list)
    held_down: list[bool] = field(default_factory=list)
    conditions: list[Conditions] = field(default_factory=list)
    how: How | None = None
    calls: int = 1
    error: float | None = None
    extra_bytes: float | None = None
    passes: int = 0

    @classmethod
    def from_measurement(cls, measured: MeasuredCase | None) -> "_PooledSamples":
        """Return the samples that an earlier process stored; empty if the case was not timed or has none."""
        timing = None if measured is None or measured.status != "ok" else measured.timing
        if measured is None or timing is None or not timing.samples:
            return cls()
        return cls(
            samples=list(timing.samples),
            held_down=[False] * len(timing.samples),
            how=timing.how,
            calls=timing.calls_per_sample,
            error=measured.reference_error,
            extra_bytes=measured.extra_bytes,
            passes=measured.passes,
        )

    def add(self, samples: Samples, telemetry: Telemetry | None) -> None:
        """Add a pass's samples and clocks, unless it used graphs and the first pass did not, or vice versa."""
        self.passes += 1
        if self.how not in (None, samples.how):
            return
        self.how, self.calls = samples.how, samples.calls
        self.samples += samples.seconds
        if telemetry is None:
            self.held_down += [False] * len(samples.seconds)
            return
        conditions = telemetry.conditions(samples.began_s, samples.ended_s)
        self.conditions += [] if conditions is None else [conditions]
        self.held_down += telemetry.held_down(samples.instants)

    def timing(self) -> Timing:
        """Return the timing, excluding samples at reduced clocks unless hardly any others remain."""
        assert self.how is not None
        free = [s for s, down in zip(self.samples, self.held_down, strict=True) if not down]
        enough = len(free) >= max(MIN_SAMPLES, len(self.samples) / 2)
        chosen, held_down = free if enough else self.samples, sum(self.held_down)
        return summarise_samples(chosen, self.how, calls=self.calls, held_down=held_down, slowed=not enough)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The result of a run: case counts, omitted cases, the reason if the run was `stopped` early, and its `drift`.

    `drift` is the relative change of times during the run. It is computed from the `references` (measurements of the
    reference case), or from the first and the last pass if these are too few.
    """

    timed: int
    skipped: int
    left_out: tuple[str, ...]
    interrupted: bool
    drift: float = 0.0
    stopped: str = ""
    references: tuple[ReferenceReading, ...] = ()  # measurements of the reference case


@dataclass(slots=True)
class CaseRunner:
    """Times cases on one device. Each pass runs every case again, so that slow drift affects all cases equally.

    `own_calls` prepares steps of a whole model, which have no kernel builder, and returns None for other cases.
    With a `seed`, each pass runs the cases in another random order within windows of `ORDER_WINDOW` cases, so that
    size and time of measurement are independent. The `reference` case is timed again every `REFERENCE_EVERY_S`
    seconds, to detect heat and other load on the device. Times that are shorter than the peak rates of `datasheet`
    allow are marked; several that no cache explains end the run early.
    """

    bench: KernelContext
    stopwatch: Stopwatch
    log: MeasurementLog
    case_s: float
    own_calls: Callable[[Case], PreparedCase | None] = lambda case: None  # noqa: ARG005
    telemetry: Telemetry | None = None
    datasheet: HardwareProfile | None = None
    seed: int | None = None
    reference: Case | None = None
    _reference_calls: PreparedCase | None = None
    _references: list[ReferenceReading] = field(default_factory=list)
    _pooled: dict[str, _PooledSamples] = field(default_factory=dict)
    _implausible: dict[str, str] = field(default_factory=dict)  # reasons by case, without those of a cache
    _first_s: dict[str, float] = field(default_factory=dict)  # medians of the first pass
    _last_s: dict[str, float] = field(default_factory=dict)  # medians of later passes

    def run(
        self, cases: Sequence[Case], *, passes: int, deadline: float, progress: Progress | None = None
    ) -> RunOutcome:
        """Run cases in order, most valuable first. `deadline` is a `time.monotonic` value. Ctrl-C keeps the log.

        Raises DeviceLost if the run can only continue in a fresh process, InvalidInput if torch lacks code for the GPU.
        """
        todo = [case for case in cases if not self.log.is_settled(case, passes=passes)]
        done, interrupted = 0, False
        total = len(todo) * passes
        try:
            for number in range(1, passes + 1):
                waiting = [case for case in todo if self._samples_of_case(case).passes < number]
                for case in self._shuffle(waiting, number):
                    if time.monotonic() > deadline or self._stop_reason:
                        break
                    self._time_reference()
                    if not self._run_case(case):
                        todo.remove(case)
                    done += 1
                    if progress is not None:
                        progress(done, total, case.id)
            if done:
                self._time_reference(last=True)
        except KeyboardInterrupt:
            interrupted = True
        self.log.clear_marker()
        drift = reference_drift(self._references)
        left_out = tuple(case.id for case in cases if case.id not in self.log.done)
        statuses = [self.log.done[case.id].status for case in cases if case.id in self.log.done]
        return RunOutcome(
            timed=statuses.count("ok"),
            skipped=len(statuses) - statuses.count("ok"),
            left_out=left_out,
            interrupted=interrupted,
            drift=time_drift(self._first_s, self._last_s) if drift is None else drift,
            stopped=self._stop_reason,
            references=tuple(self._references),
        )

    def _shuffle(self, cases: Sequence[Case], number: int) -> list[Case]:
        order = list(cases)
        if self.seed is None:
            return order
        generator = random.Random(f"{self.seed} {number}")
        for start in range(0, len(order), ORDER_WINDOW):
            window = order[start : start + ORDER_WINDOW]
            generator.shuffle(window)
            order[start : start + ORDER_WINDOW] = window
        return order

    def _time_reference(self, *, last: bool = False) -> None:
        """Time the reference case if it is due, or again after the `last` case; stop using it if it fails."""
        due_s = self._references[-1].at_s + REFERENCE_EVERY_S if self._references else 0.0
        if self.reference is None or (time.monotonic() < due_s and not last):
            return
        try:
            self._reference_calls = self._reference_calls or prepare(self.reference, self.bench)
            samples = self.stopwatch.sample(
                self._reference_calls.calls, budget_s=self.case_s, at_least=MIN_SAMPLES, at_most=MAX_SAMPLES
            )
        except (Unsupported, RuntimeError, MemoryError):  # a lost device shows in the next case
            self.reference = None
            return
        telemetry = self.telemetry
        found = None if telemetry is None else telemetry.conditions(samples.began_s, samples.ended_s)
        self._references.append(
            ReferenceReading(
                at_s=samples.ended_s,
                seconds=summarise_samples(samples.seconds, samples.how).seconds,
                clock_hz=None if found is None else found["clock_hz"],
                power_watts=None if found is None else found["power_watts"],
            )
        )

    @property
    def _stop_reason(self) -> str:
        """Return why further cases would give no valid times; empty to continue."""
        if len(self._implausible) < ENOUGH_IMPLAUSIBLE:
            return ""
        worst = "; ".join(
            f"{name}: {why}" for name, why in list(self._implausible.items())[:ENOUGH_IMPLAUSIBLE]
        )
        return f"{len(self._implausible)} cases have impossible times ({worst})"

    def _samples_of_case(self, case: Case) -> _PooledSamples:
        if case.id not in self._pooled:
            self._pooled[case.id] = _PooledSamples.from_measurement(self.log.done.get(case.id))
        return self._pooled[case.id]

    def _run_case(self, case: Case) -> bool:
        """Time a case in one more pass; return False if it cannot be timed, and write the reason to the log."""
        self.log.mark_started(case)
        timed = False
        try:
            prepared = self.own_calls(case) or prepare(case, self.bench)
            timed = self._time_case(case, prepared)
        except CapacityError:
            raise
        except Exception as error:  # a failed case must not end the others
            self._record_failure(case, error)
        if self.stopwatch.spoiled or self.bench.spoiled:
            self.log.clear_marker()
            raise DeviceLost(case.id, SPOILED_REASON)
        return timed

    def _record_failure(self, case: Case, error: Exception) -> None:
        """Write a case's failure to the log. Raises DeviceLost if the device no longer works."""
        require_kernels_for_device(error)
        text = str(error) if isinstance(error, Unsupported) else error_line(error)
        lost = device_error(self.bench.torch, self.bench.device)
        status: Status = "unsupported" if isinstance(error, Unsupported | RuntimeError) else "failed"
        if lost is not None:
            status = "failed"
        elif is_out_of_memory(error):
            status = "out of memory"
            free_memory(self.bench.torch, self.bench.device)
        timed = self.log.done.get(case.id)
        if timed is not None and timed.status == "ok":  # keep the times of earlier passes
            self.log.add(replace(timed, note=f"in a later pass: {status}: {text}"))
        else:
            attempts = self.log.attempts(case) + 1 if lost is None else MAX_ATTEMPTS
            self.log.add(MeasuredCase(case=case, status=status, note=text, attempts=attempts))
        if lost is not None:
            self.log.clear_marker()
            raise DeviceLost(case.id, text) from None

    def _time_case(self, case: Case, prepared: PreparedCase) -> bool:
        pooled = self._samples_of_case(case)
        if pooled.samples and prepared.sustained_s:
            return True
        if not self._gives_correct_result(case, prepared, pooled):
            return False
        if pooled.extra_bytes is None and prepared.extra_bytes is not None:
            pooled.extra_bytes = prepared.extra_bytes()
        samples = self.stopwatch.sample(
            prepared.calls,
            budget_s=prepared.sustained_s or self.case_s,
            at_least=MIN_SAMPLES,
            at_most=10**6 if prepared.sustained_s else MAX_SAMPLES,
            sustained=prepared.sustained_s is not None,
            capturable=prepared.capturable and pooled.how in (None, "graph"),
        )
        pooled.add(samples, self.telemetry)
        own_s = summarise_samples(samples.seconds, samples.how).seconds
        (self._last_s if case.id in self._first_s else self._first_s)[case.id] = own_s
        measured = make_from(
            MeasuredCase,
            pooled,
            prepared,
            case=case,
            status="ok",
            timing=_second_half(pooled) if prepared.sustained_s else pooled.timing(),
            reference_error=pooled.error,
            burst_s=_burst_s(samples) if prepared.sustained_s else None,
            conditions=merge_conditions(pooled.conditions),
        )
        self.log.add(measured)
        return self._plausible(measured)

    def _gives_correct_result(self, case: Case, prepared: PreparedCase, pooled: _PooledSamples) -> bool:
        """Check a case's result if no earlier pass did; return False and log the case if its error is too large."""
        if pooled.error is not None or prepared.check is None:
            return True
        pooled.error = prepared.check()
        if pooled.error <= prepared.tolerance:
            return True
        note = f"error {pooled.error:.2e} against float64, limit {prepared.tolerance:.0e}: not timed"
        self.log.add(
            MeasuredCase(case=case, status="wrong", reference_error=min(pooled.error, 1e30), note=note)
        )
        return False

    def _plausible(self, measured: MeasuredCase) -> bool:
        """Return whether the time is possible; otherwise mark the case in the log, so that no fit uses it."""
        if self.datasheet is None:
            return True
        reason = explain_impossible_speed(measured, self.datasheet)
        doubts = {} if reason is None else {measured.case.id: reason}
        shape = measured.case.family, shape_key(measured.case)
        same_shape = [m for m in self.log.done.values() if (m.case.family, shape_key(m.case)) == shape]
        doubts = find_equal_times(same_shape, self.datasheet) | doubts
        for name, why in doubts.items():
            if (
                name != measured.case.id
                or reason is None
                or not is_explained_by_cache(measured, self.datasheet)
            ):
                self._implausible[name] = why
            self.log.add(replace(self.log.done[name], status="implausible", note=why))
        return measured.case.id not in doubts


def _burst_s(samples: Samples) -> float:
    """Return the median time (s) of the calls in the first milliseconds, before power and heat have risen."""
    first = sum(instant - samples.began_s <= BURST_S for instant in samples.instants)
    return summarise_samples(samples.seconds[: max(MIN_SAMPLES, first)], samples.how).seconds


def _second_half(pooled: _PooledSamples) -> Timing:
    """Return the timing of the second half of a long run, when clocks, power and heat have settled as in serving."""
    assert pooled.how is not None
    return summarise_samples(pooled.samples[len(pooled.samples) // 2 :], pooled.how, calls=pooled.calls)
