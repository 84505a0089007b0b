"""Step times for the compiled engines, as data if possible, otherwise as a call to Python for each step.

`StepData` wraps any `StepTimes`; its `pointer` is part of an engine's setup. An exception in a call to Python ends the
C function that made the call; `StepData.raise_error` then raises the exception.
"""

import ctypes
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from capacity.simulator.core.interface import enums, structs
from capacity.step import JointStepTimes, SlowestRank, StepShape, StepTimes
from capacity.step.export import (
    AffineData,
    DelayedData,
    DraftedData,
    ModelData,
    ScaledData,
    SlowestData,
    step_data,
)
from capacity.step.model import StepModel

NEVER = 1 << 62
NUM_FIELDS = len(structs.shape._fields_)
CALLBACKS = dict(structs.step_source._fields_)

Result = TypeVar("Result")


class StepData:
    """Step times in the format that the compiled engines read. The tables of a `StepModel` are cached per thread."""

    def __init__(self, step_times: StepTimes, library: ctypes.CDLL) -> None:
        self.step_times = step_times
        self._native = _native_step_times(step_times, library)
        self.pointer = self._native.pointer  # address of a `step_times`, valid as long as this object lives
        self.kind = self._native.kind  # such as `enums.STEPS_MODEL`

    def raise_error(self) -> None:
        """Raise and clear the exception of an earlier call to Python, if any."""
        error = self._native.pop_error()
        if error is not None:
            raise error


class _NativeStepTimes:
    """C object of a `StepTimes`, with the data that C reads. A cached object does not keep its `StepTimes` alive."""

    def __init__(self, asked: Callable[[], StepTimes], library: ctypes.CDLL) -> None:
        self._asked = asked
        self._library = library
        self._error: BaseException | None = None
        self._batch_seconds: Callable[[int], float] | None = None
        self.within: tuple[_NativeStepTimes, ...] = ()
        self.kind: int = enums.STEPS_ASKED
        step_times = asked()
        self._kept: list[Any] = []  # data that C reads
        source = self._source(step_times)
        self._kept.append(source)
        pointer = library.step_times_new(ctypes.byref(source))
        if not pointer:
            raise MemoryError(
                "the compiled core cannot create step times: no memory, or a library with another version"
            )
        self.pointer = int(pointer)
        weakref.finalize(self, library.step_times_free, self.pointer).atexit = False

    def pop_error(self) -> BaseException | None:
        """Return and clear the exception of a call to Python for these step times or for step times inside them."""
        errors = (self._error, *(own.pop_error() for own in self.within))
        self._error = None
        self._library.step_times_forgive(self.pointer)
        return next((error for error in errors if error is not None), None)

    def _try(self, call: Callable[[], Result], failed: Result) -> Result:
        try:
            return call()
        except BaseException as error:  # `raise_error` raises it again
            self._error = self._error or error
            return failed

    def _ask_step(self, shape: int) -> int:
        return self._try(lambda: _check_time(self._asked().step_ps(_read_shapes(shape, 1)[0])), -1)

    def _ask_joint(self, shapes: int, count: int) -> int:
        def call() -> int:
            times = self._asked()
            joint = cast("JointStepTimes", times if hasattr(times, "joint_ps") else SlowestRank(times))
            return _check_time(joint.joint_ps(_read_shapes(shapes, count)))

        return self._try(call, -1)

    def _ask_piece(self, shape: int, out: int) -> int:
        def call() -> int:
            piece = self._asked().decode_piece(_read_shapes(shape, 1)[0])
            if piece is None:
                return 0
            limits = (NEVER if limit is None else min(limit, NEVER) for limit in piece[3:])
            values = (*piece[:3], *limits)
            if any(abs(value) > NEVER for value in values):
                raise OverflowError(f"the numbers of a decode_piece must be at most {NEVER} ps: {piece}")
            (ctypes.c_int64 * len(values)).from_address(out)[:] = list(values)
            return 1

        return self._try(call, -1)

    def _ask_seconds(self, table: int, rows: int) -> float:
        def call() -> float:
            if table == enums.DRAFT_SECONDS:
                assert self._batch_seconds is not None
                return self._batch_seconds(rows)
            model = cast("StepModel", self._asked())
            if table == enums.SHARED_SECONDS:
                return model.shared_seconds(rows / model.ranks)
            return model.row_seconds(rows) if table == enums.ROW_SECONDS else model.sample_seconds(rows)

        return self._try(call, math.nan)

    def _source(self, step_times: StepTimes) -> Any:
        source = structs.step_source()
        source.overlap_sharpness = 1.0
        source.first_operator[:] = source.end_operator[:] = [-1] * 4
        asks = [self._ask_step, self._ask_joint, self._ask_seconds]
        if hasattr(step_times, "decode_piece"):
            asks.append(self._ask_piece)
        for ask in asks:
            name = ask.__name__.removeprefix("_")
            setattr(source, name, CALLBACKS[name](_weak_call(weakref.WeakMethod(ask))))
        data = step_data(step_times)
        if isinstance(data, AffineData):
            self.kind = enums.STEPS_AFFINE
            source.base_ps, source.row_ps, source.context_ps = data.base_ps, data.row_ps, data.context_ps
        elif isinstance(data, ModelData):
            self.kind = enums.STEPS_MODEL
            self._fill_model(source, data)
        elif data is not None:
            self._fill_modified(source, data)
        source.kind = self.kind
        return source

    def _fill_modified(self, source: Any, data: ScaledData | DelayedData | SlowestData | DraftedData) -> None:
        """Write step times that modify other step times (scaled, delayed, with drafts, of the slowest rank) to the C
        structure `source`."""
        self.within = (_native_step_times(data.inner, self._library),)
        source.inner = self.within[0].pointer
        match data:
            case ScaledData():
                self.kind = enums.STEPS_SCALED
                source.prefill_factor, source.decode_factor = data.prefill, data.decode
            case DelayedData():
                self.kind = enums.STEPS_DELAYED
                source.added_ps = data.added_ps
            case SlowestData():
                self.kind = enums.STEPS_SLOWEST
            case DraftedData():
                self._fill_drafted(source, data)

    def _fill_drafted(self, source: Any, data: DraftedData) -> None:
        """Write times of steps with drafts to `source`. If C cannot compute the draft model, each step calls Python."""
        if data.draft is not None:
            draft = _native_step_times(data.draft, self._library)
            if draft.kind != enums.STEPS_MODEL:
                return
            self.within += (draft,)
            source.draft = draft.pointer
        self.kind = enums.STEPS_DRAFTED
        self._batch_seconds = data.batch_seconds
        window = data.draft_window_tokens
        source.draft_window_tokens, source.draft_steps = -1 if window is None else window, data.draft_steps
        source.first_drafts, source.level_drafts = data.first_drafts, data.level_drafts

    def _fill_model(self, source: Any, data: ModelData) -> None:
        host = data.host
        source.host_step_s, source.host_sequence_s = host.step_s, host.per_sequence_s
        source.overlap_sharpness, source.eager_s = host.overlap_sharpness, host.eager_s
        source.waiting_s = host.waiting_s
        source.host_serial_s, source.host_serial_sequence_s = host.serial_s, host.serial_per_sequence_s
        source.overlapped, source.graphs_for_prefill = host.overlapped, host.graphs_for_prefill
        source.num_graph_rows = len(data.graph_rows)
        source.graph_rows = self._address_of(ctypes.c_int64, data.graph_rows)
        source.ranks, source.has_shared = data.ranks, data.has_shared
        operators = data.context_operators
        source.num_operators = len(operators)
        for table, own in enumerate((data.row_operators, data.sample_operators, data.shared_operators)):
            if own is not None:
                source.first_operator[table] = len(operators)
                operators += own
                source.end_operator[table] = len(operators)
        names = [name for name, _ in structs.step_operator._fields_]
        rows = [tuple(getattr(own, name) for name in names) for own in operators]
        source.operators = self._address_of(structs.step_operator, rows)

    def _address_of(self, kind: Any, values: Sequence[Any]) -> int:
        """Return the address of an array of these values, which lives as long as this object."""
        array = (kind * len(values))(*values)
        self._kept.append(array)
        return ctypes.addressof(array)


def _read_shapes(address: int, count: int) -> tuple[StepShape, ...]:
    values = (ctypes.c_int64 * (count * NUM_FIELDS)).from_address(address)[:]
    return tuple(StepShape(*values[at : at + NUM_FIELDS]) for at in range(0, len(values), NUM_FIELDS))


def _check_time(ps: int) -> int:
    if not 0 <= ps < NEVER:
        raise OverflowError(f"the time of a step must be from 0 to {NEVER} ps, not {ps}")
    return ps


def _weak_call(method: weakref.WeakMethod[Any]) -> Callable[..., Any]:
    """Return a function that calls `method` without keeping its object alive; the object must exist at each call."""

    def call(*arguments: Any) -> Any:
        own = method()
        assert own is not None
        return own(*arguments)

    return call


class _StepTimesCache(threading.local):
    """Cache of `_NativeStepTimes` of one thread, by step times and library."""

    def __init__(self) -> None:
        self.of: weakref.WeakKeyDictionary[StepTimes, dict[ctypes.CDLL, _NativeStepTimes]] = (
            weakref.WeakKeyDictionary()
        )


_cache = _StepTimesCache()


def _native_step_times(step_times: StepTimes, library: ctypes.CDLL) -> _NativeStepTimes:
    if not _is_cacheable(step_times):
        return _NativeStepTimes(lambda: step_times, library)
    made = _cache.of.setdefault(step_times, {})
    native = made.get(library)
    if native is None:
        own = weakref.ref(step_times)
        native = made[library] = _NativeStepTimes(lambda: cast("StepTimes", own()), library)
    return native


def _is_cacheable(step_times: StepTimes) -> bool:
    kind = type(step_times)
    alone = kind.__hash__ is object.__hash__ and kind.__weakrefoffset__ != 0
    return alone and (kind is StepModel or hasattr(step_times, "step_data"))
