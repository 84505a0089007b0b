"""Step times for the compiled engines: as data where they have it, else a call into Python for each step.

In: any `StepTimes`. Out: a `StepData` whose `pointer` goes into an engine's setup. An exception in Python ends the
engine's call; `StepData.raise_error` raises it once that has come back.
"""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast

from capacity.step import TEXT_FIELDS, JointStepTimes, SlowestRank, StepShape, StepTimes
from capacity.step.export import (
    AffineData,
    DelayedData,
    DraftedData,
    ModelData,
    OperatorData,
    ScaledData,
    SlowestData,
    step_data,
)
from capacity.step.model import StepModel

NEVER = 1 << 62
NUM_FIELDS = TEXT_FIELDS
ROW_SECONDS, SAMPLE_SECONDS, SHARED_SECONDS, DRAFT_SECONDS = range(4)  # which table of a model
ASKED, AFFINE, MODEL, SCALED, DELAYED, SLOWEST, DRAFTED = range(7)

Result = TypeVar("Result")


class DecodeLine(ctypes.Structure):
    """A `DecodePiece`; NEVER: no limit."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "base_ps",
            "context_ps",
            "window_context_ps",
            "max_context_tokens",
            "max_window_context_tokens",
        )
    ]


_WHOLE = ("kind", "windowed", "top_k", "fills", "short_dense", "local_routing")
_FLOATS = (
    *("count", "compute_rate", "memory_rate", "sharpness", "fixed_s"),
    *("heads", "flops_per_pair", "context_bytes", "row_bytes", "occupancy_s", "sm_count"),
    *("per_doubling_s", "per_token_s"),
    *("n", "k", "weight_bytes", "quantize_bytes", "quantize_rate", "walk_s", "from_rows", "below_rows"),
    *("ranks", "latency_s", "one_shot_rate", "one_shot_fixed_s", "per_rank_s"),
    *("token_groups", "experts_per_token", "num_experts", "matrices", "hidden", "intermediate"),
    *("weight_bits", "value_bytes", "routed_rate", "crowding", "evenness", "tilt", "tilted_least"),
)


class Operator(ctypes.Structure):
    """A `OperatorData`."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _WHOLE),
        *((name, ctypes.c_double) for name in _FLOATS),
    ]


_Shapes = ctypes.POINTER(ctypes.c_int64)
_AskStep = ctypes.CFUNCTYPE(ctypes.c_int64, _Shapes)
_AskJoint = ctypes.CFUNCTYPE(ctypes.c_int64, _Shapes, ctypes.c_int64)
_AskPiece = ctypes.CFUNCTYPE(ctypes.c_int64, _Shapes, ctypes.POINTER(DecodeLine))
_AskSeconds = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_int64)


class Source(ctypes.Structure):
    """Where step times come from; see step_times.h."""

    _fields_ = [
        ("size", ctypes.c_int64),
        ("operator_size", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("ask_step", _AskStep),
        ("ask_joint", _AskJoint),
        ("ask_piece", _AskPiece),
        ("ask_seconds", _AskSeconds),
        ("base_ps", ctypes.c_int64),
        ("row_ps", ctypes.c_int64),
        ("context_ps", ctypes.c_int64),
        ("host_step_s", ctypes.c_double),
        ("host_sequence_s", ctypes.c_double),
        ("overlap_sharpness", ctypes.c_double),
        ("eager_s", ctypes.c_double),
        ("waiting_s", ctypes.c_double),
        ("host_serial_s", ctypes.c_double),
        ("overlapped", ctypes.c_int64),
        ("graphs_for_prefill", ctypes.c_int64),
        ("num_graph_rows", ctypes.c_int64),
        ("graph_rows", ctypes.POINTER(ctypes.c_int64)),
        ("ranks", ctypes.c_int64),
        ("has_shared", ctypes.c_int64),
        ("num_operators", ctypes.c_int64),
        ("first_operator", ctypes.c_int64 * 4),
        ("end_operator", ctypes.c_int64 * 4),
        ("operators", ctypes.POINTER(Operator)),
        ("inner", ctypes.c_void_p),
        ("prefill_factor", ctypes.c_double),
        ("decode_factor", ctypes.c_double),
        ("added_ps", ctypes.c_int64),
        ("draft", ctypes.c_void_p),
        ("draft_window_tokens", ctypes.c_int64),
        ("draft_steps", ctypes.c_int64),
        ("first_drafts", ctypes.c_double),
        ("level_drafts", ctypes.c_double),
    ]


@cache
def declare(library: ctypes.CDLL) -> None:
    """The types of the library's functions of step times; done by whoever makes a `StepData`."""
    pointer, whole = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("step_ps", whole, [pointer, _Shapes]),
        ("joint_ps", whole, [pointer, _Shapes, whole]),
        ("decode_piece", ctypes.c_int, [pointer, _Shapes, ctypes.POINTER(DecodeLine)]),
        ("step_times_new", pointer, [ctypes.POINTER(Source)]),
        ("step_times_free", None, [pointer]),
        ("step_times_failed", whole, [pointer]),
        ("step_times_forgive", None, [pointer]),
        ("step_times_many", None, [pointer, _Shapes, whole, whole, _Shapes]),
        ("step_times_pow", ctypes.c_double, [ctypes.c_double, ctypes.c_double]),
        ("step_times_log2", ctypes.c_double, [ctypes.c_double]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


class StepData:
    """Step times that an engine reads. One thread may use it at a time; `of` gives each thread its own."""

    def __init__(self, step_times: StepTimes, library: ctypes.CDLL) -> None:
        declare(library)
        self.step_times = step_times
        self._native = _native(step_times, library)

    @classmethod
    def of(cls, step_times: StepTimes, library: ctypes.CDLL) -> StepData:
        """As data where it has some. A step model's tables and lines are kept for the next run."""
        return cls(step_times, library)

    @property
    def pointer(self) -> int:
        """The `step_times *`; valid as long as this object."""
        return self._native.pointer

    @property
    def kind(self) -> int:
        """Which of the sources it is."""
        return self._native.kind

    def raise_error(self) -> None:
        """Raise what Python raised while it was asked, if anything, and forget it."""
        error = self._native.taken_error()
        if error is not None:
            raise error


class _Native:
    """The C object, and what must live as long. It holds its step model weakly, as the model's cache holds it."""

    def __init__(self, asked: Callable[[], StepTimes], library: ctypes.CDLL) -> None:
        self._asked = asked
        self._library = library
        self._error: BaseException | None = None
        self._batch_seconds: Callable[[int], float] | None = None
        self.within: tuple[_Native, ...] = ()
        self.kind = ASKED
        step_times = asked()
        source = self._source(step_times)
        self._kept = source
        pointer = library.step_times_new(ctypes.byref(source))
        if not pointer:
            raise MemoryError("step times of a compiled engine, or a library of another version")
        self.pointer = int(pointer)
        weakref.finalize(self, library.step_times_free, self.pointer).atexit = False

    def taken_error(self) -> BaseException | None:
        """What was raised, here or within; the times can be used again."""
        errors = (self._error, *(own.taken_error() for own in self.within))
        self._error = None
        self._library.step_times_forgive(self.pointer)
        return next((error for error in errors if error is not None), None)

    # what C asks

    def _tried(self, call: Callable[[], Result], failed: Result) -> Result:
        try:
            return call()
        except BaseException as error:  # raised again by `raise_error`
            self._error = self._error or error
            return failed

    def _ask_step(self, shape: Any) -> int:
        return self._tried(lambda: _time(self._asked().step_ps(_shapes(shape, 1)[0])), -1)

    def _ask_joint(self, shapes: Any, count: int) -> int:
        def call() -> int:
            times = self._asked()
            joint = cast("JointStepTimes", times if hasattr(times, "joint_ps") else SlowestRank(times))
            return _time(joint.joint_ps(_shapes(shapes, count)))

        return self._tried(call, -1)

    def _ask_piece(self, shape: Any, out: Any) -> int:
        def call() -> int:
            piece = self._asked().decode_piece(_shapes(shape, 1)[0])
            if piece is None:
                return 0
            limits = (NEVER if limit is None else min(limit, NEVER) for limit in piece[3:])
            values = (*piece[:3], *limits)
            if any(abs(value) > NEVER for value in values):
                raise OverflowError(f"decode piece beyond {NEVER} ps: {piece}")
            out[0] = DecodeLine(*values)
            return 1

        return self._tried(call, -1)

    def _ask_seconds(self, table: int, rows: int) -> float:
        def call() -> float:
            if table == DRAFT_SECONDS:
                assert self._batch_seconds is not None
                return self._batch_seconds(rows)
            model = cast("StepModel", self._asked())
            if table == SHARED_SECONDS:
                return model.shared_seconds(rows / model.ranks)
            return model.row_seconds(rows) if table == ROW_SECONDS else model.sample_seconds(rows)

        return self._tried(call, math.nan)

    # the source

    def _source(self, step_times: StepTimes) -> Source:
        source = Source(size=ctypes.sizeof(Source), operator_size=ctypes.sizeof(Operator))
        source.overlap_sharpness = 1.0
        source.first_operator[:] = source.end_operator[:] = [-1] * 4
        me = weakref.WeakMethod
        source.ask_step = _AskStep(_weakly(me(self._ask_step)))
        source.ask_joint = _AskJoint(_weakly(me(self._ask_joint)))
        if hasattr(step_times, "decode_piece"):
            source.ask_piece = _AskPiece(_weakly(me(self._ask_piece)))
        source.ask_seconds = _AskSeconds(_weakly(me(self._ask_seconds)))
        data = step_data(step_times)
        if isinstance(data, AffineData):
            self.kind = AFFINE
            source.base_ps, source.row_ps, source.context_ps = data.base_ps, data.row_ps, data.context_ps
        elif isinstance(data, ModelData):
            self.kind = MODEL
            self._fill_model(source, data)
        elif data is not None:
            self._fill_changed(source, data)
        source.kind = self.kind
        return source

    def _fill_changed(
        self, source: Source, data: ScaledData | DelayedData | SlowestData | DraftedData
    ) -> None:
        """Others' times, changed."""
        self.within = (_native(data.inner, self._library),)
        source.inner = self.within[0].pointer
        match data:
            case ScaledData():
                self.kind = SCALED
                source.prefill_factor, source.decode_factor = data.prefill, data.decode
            case DelayedData():
                self.kind = DELAYED
                source.added_ps = data.added_ps
            case SlowestData():
                self.kind = SLOWEST
            case DraftedData():
                self._fill_drafted(source, data)

    def _fill_drafted(self, source: Source, data: DraftedData) -> None:
        """Left to be asked where the draft is no model with data."""
        if data.draft is not None:
            draft = _native(data.draft, self._library)
            if draft.kind != MODEL:
                return
            self.within += (draft,)
            source.draft = draft.pointer
        self.kind = DRAFTED
        self._batch_seconds = data.batch_seconds
        window = data.draft_window_tokens
        source.draft_window_tokens, source.draft_steps = -1 if window is None else window, data.draft_steps
        source.first_drafts, source.level_drafts = data.first_drafts, data.level_drafts

    def _fill_model(self, source: Source, data: ModelData) -> None:
        host = data.host
        source.host_step_s, source.host_sequence_s = host.step_s, host.per_sequence_s
        source.overlap_sharpness, source.eager_s = host.overlap_sharpness, host.eager_s
        source.waiting_s, source.host_serial_s = host.waiting_s, host.serial_s
        source.overlapped, source.graphs_for_prefill = host.overlapped, host.graphs_for_prefill
        source.num_graph_rows = len(data.graph_rows)
        source.graph_rows = (ctypes.c_int64 * len(data.graph_rows))(*data.graph_rows)
        source.ranks, source.has_shared = data.ranks, data.has_shared
        operators = data.context_operators
        source.num_operators = len(operators)
        for table, own in enumerate((data.row_operators, data.sample_operators, data.shared_operators)):
            if own is not None:
                source.first_operator[table] = len(operators)
                operators += own
                source.end_operator[table] = len(operators)
        source.operators = (Operator * len(operators))(*(_operator(own) for own in operators))


def _operator(own: OperatorData) -> Operator:
    return Operator(**{field.name: getattr(own, field.name) for field in fields(own)})


def _shapes(pointer: Any, count: int) -> tuple[StepShape, ...]:
    values = pointer[: count * NUM_FIELDS]
    return tuple(StepShape(*values[at : at + NUM_FIELDS]) for at in range(0, len(values), NUM_FIELDS))


def _time(ps: int) -> int:
    if not 0 <= ps < NEVER:
        raise OverflowError(f"a step takes {ps} ps; an engine's steps take 0 to {NEVER}")
    return ps


def _weakly(method: weakref.WeakMethod[Any]) -> Callable[..., Any]:
    """A method that does not keep its object alive: C calls it only while that lives."""

    def call(*arguments: Any) -> Any:
        own = method()
        assert own is not None
        return own(*arguments)

    return call


class _Kept(threading.local):
    """What was made of step times that have data and are told apart by identity, by thread; then by library."""

    def __init__(self) -> None:
        self.of: weakref.WeakKeyDictionary[StepTimes, dict[ctypes.CDLL, _Native]] = (
            weakref.WeakKeyDictionary()
        )


_kept = _Kept()


def _native(step_times: StepTimes, library: ctypes.CDLL) -> _Native:
    if not _can_be_kept(step_times):
        return _Native(lambda: step_times, library)
    made = _kept.of.setdefault(step_times, {})
    native = made.get(library)
    if native is None:
        own = weakref.ref(step_times)
        native = made[library] = _Native(lambda: cast("StepTimes", own()), library)
    return native


def _can_be_kept(step_times: StepTimes) -> bool:
    kind = type(step_times)
    alone = kind.__hash__ is object.__hash__ and kind.__weakrefoffset__ != 0
    return alone and (kind is StepModel or hasattr(step_times, "step_data"))
