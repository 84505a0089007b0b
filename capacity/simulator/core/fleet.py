"""Fleet of compiled engines: the C interface with Python types, errors and lifetimes."""

import ctypes
import functools
from array import array
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_int64
from typing import Any, Protocol

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.base.record import make_from
from capacity.simulator.core import binding, interface, library
from capacity.simulator.core.binding import NEVER_KEY
from capacity.simulator.core.interface import enums, structs
from capacity.simulator.core.step_data import StepData
from capacity.simulator.front_end_process import FrontendTimes
from capacity.simulator.gap_counter import (
    BIN_BITS,
    MAX_BATCHES,
    NUM_BATCH_BINS,
    GapBatches,
    GapCounter,
    bin_middles_ps,
)
from capacity.simulator.kv_cache.offload import TierUse
from capacity.simulator.setup import EngineSetup
from capacity.simulator.step_work import StepWork
from capacity.step import StepShape, StepTimes, picoseconds
from capacity.workload import Workload
from capacity.workload.columns import IntArray

STEPS_PER_CALL = 100_000  # a few 0.01 s, the longest delay of an interrupt
EVENT_FIELDS = len(structs.core_event._fields_)
LIMIT_KEY, STOP_AT, MAX_STEPS, LOAD_ENGINE, _, _, NEXT_KEY, NUM_EVENTS = range(8)  # indices in `turn`
LEDGER_COLUMNS = tuple(name for name, _ in structs.core_columns._fields_)


@functools.cache
def _load_core() -> ctypes.CDLL:
    """Return the compiled library with the types of its functions set. Raises InvalidInput if it is not available."""
    found = library.load()
    if found is None:
        raise InvalidInput(
            "the compiled engines are not available: use the Python engines (--engine-loop events)"
        )
    return interface.declare(found)


class SharedRuns(Protocol):
    """Interface of the KV blocks that requests share, as runs of consecutive blocks; `Chains` implements it."""

    def columns(self) -> tuple[IntArray, IntArray, IntArray] | None:
        """Return arrays: number of each request's first run, key and end block of each run; None without runs."""
        ...


class Fleet:
    """Compiled engines of one run. The C code keeps pointers to the workload's arrays and to the ledger's `columns`."""

    def __init__(
        self,
        workload: Workload,
        columns: dict[str, memoryview],
        *,
        routed: bool,
        order: IntArray | None = None,
    ) -> None:
        """Create a fleet. `order` ranks simultaneous arrivals (default: request number). Raises InvalidInput."""
        self._core = core = _load_core()
        self._kept: list[object] = [columns]
        self._setups: list[EngineSetup] = []
        self._data: list[StepData] = []
        self._contents: dict[int, ctypes.Structure] = {}
        self._workload = workload
        requests = structs.core_requests(
            count=len(workload),
            prompt_tokens=self._column(workload.prompt_tokens),
            output_tokens=self._column(workload.output_tokens),
            max_tokens=self._column(workload.max_tokens),
            priority=self._column(workload.priority),
            adapter=self._column(workload.adapter),
            images=self._column(workload.images),
            image_tokens=self._column(workload.image_tokens),
            audio_tokens=self._column(workload.audio_tokens),
            order=self._column(order),
        )
        places = structs.core_columns(
            **{name: binding.array_address(np.asarray(columns[name])) for name in LEDGER_COLUMNS}
        )
        self._pointer: int | None = core.fleet_new(byref(requests), byref(places), routed)
        # laid out as core_turn; it never moves
        self.turn = array("q", bytes(ctypes.sizeof(structs.core_turn)))
        self.turn[LIMIT_KEY], self.turn[MAX_STEPS], self.turn[LOAD_ENGINE] = NEVER_KEY, STEPS_PER_CALL, -1
        self._check(core.fleet_failed(self._pointer))
        core.fleet_keep_turn(self._pointer, self.turn.buffer_info()[0])

    def close(self) -> None:
        """Free the memory of the C fleet; results that were copied remain."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            self._core.fleet_free(pointer)

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) is not None:
            self.close()

    def _column(self, values: IntArray | None) -> int | None:
        if values is None:
            return None
        column = np.ascontiguousarray(values, dtype=np.int64)
        self._kept.append(column)
        return binding.array_address(column)

    def _check(self, error: int) -> None:
        if error == enums.OK:
            return
        for data in self._data:
            data.raise_error()
        message = (self._core.fleet_error(self._pointer) or b"").decode()
        if error == enums.OUT_OF_MEMORY:
            raise MemoryError(message)
        if error == enums.BAD_INPUT:
            raise InvalidInput(message)
        raise RuntimeError(f"the compiled engines failed: {message}")

    def add(
        self,
        setup: EngineSetup,
        now_ps: int,
        *,
        chains: Callable[[int], SharedRuns],
        answers_private: bool,
        frontend: FrontendTimes | None = None,
        keep_work: bool = False,
        keep_log: bool = False,
        turns_away: bool = True,
    ) -> int:
        """Add an engine; return its number. `chains(block size)` returns shared KV blocks. Raises InvalidInput."""
        described = binding.describe(setup)
        engine = described.engine
        data = StepData(setup.step_times, self._core)
        engine.times = data.pointer
        if engine.prefix_caching:
            engine.contents = ctypes.addressof(self._contents_of(setup.block_size, chains))
        engine.answers_private = answers_private
        if frontend is not None:
            engine.input_token_s, engine.num_processes = frontend.input_token_s, frontend.processes
            engine.request_ps = picoseconds(frontend.request_s)
            engine.message_ps = picoseconds(frontend.output_token_s)
            engine.stream_interval = frontend.stream_interval
        engine.keep_work, engine.keep_log = keep_work, keep_log
        engine.admits_long_prompts = not turns_away
        self._kept.append(described)
        self._data.append(data)
        number: int = self._core.fleet_add(self._pointer, byref(engine), now_ps)
        if number < 0:
            self._check(self._core.fleet_failed(self._pointer))
        self._setups.append(setup)
        return number

    def _contents_of(self, block_size: int, chains: Callable[[int], SharedRuns]) -> ctypes.Structure:
        known = self._contents.get(block_size)
        if known is None:
            known = self._contents[block_size] = structs.core_contents()
            columns = chains(block_size).columns()
            if columns is not None:
                offsets, keys, stops = columns
                unique, dense = np.unique(keys, return_inverse=True)
                known.offsets, known.stops = self._column(offsets), self._column(stops)
                known.keys, known.num_keys = self._column(dense), len(unique)
        return known

    def feed(self, number: int, requests: IntArray | None, instants_ps: IntArray) -> None:
        """Schedule `requests` (None: all) to arrive at `instants_ps`, one time per request. Raises InvalidInput."""
        instants = self._column(instants_ps)
        self._check(
            self._core.fleet_feed(self._pointer, number, len(instants_ps), self._column(requests), instants)
        )

    def feed_loop(self, in_flight: int, first_ps: int, delay_ps: int) -> None:
        """Send `in_flight` requests to the first engine at `first_ps`, and each next one `delay_ps` after an end."""
        instants = self._column(np.zeros(len(self._workload), dtype=np.int64))
        self._check(self._core.fleet_feed_loop(self._pointer, 0, in_flight, first_ps, delay_ps, instants))

    def deliver(self, number: int, request: int, at_ps: int) -> bool:
        taken: int = self._core.fleet_deliver(self._pointer, number, request, at_ps)
        return taken > 0 or self._is_taken(taken)

    def _is_taken(self, answer: int) -> bool:
        if answer < 0:
            self._check(self._core.fleet_failed(self._pointer))
        return answer > 0

    def cancel(self, number: int, request: int, at_ps: int) -> None:
        self._check(self._core.fleet_cancel(self._pointer, number, request, at_ps))

    def release_kept(self, number: int, request: int, at_ps: int) -> None:
        self._check(self._core.fleet_release_kept(self._pointer, number, request, at_ps))

    def want_load(self, number: int, request: int, tokens: int, at_ps: int) -> bool:
        return self._is_taken(self._core.fleet_want_load(self._pointer, number, request, tokens, at_ps))

    def set_load_end(self, number: int, request: int, end_ps: int) -> None:
        """Set the time (ps) when a request's KV arrives; `take_turn` then continues the decision that waits for it."""
        turn = self.turn
        turn[LOAD_ENGINE], turn[LOAD_ENGINE + 1], turn[LOAD_ENGINE + 2] = number, request, end_ps

    def on_kv_arrival(self, number: int, request: int, at_ps: int) -> None:
        self._check(self._core.fleet_loaded(self._pointer, number, request, at_ps))

    def unload(self, number: int, request: int, at_ps: int) -> None:
        self._check(self._core.fleet_unload(self._pointer, number, request, at_ps))

    def stop(self, number: int) -> None:
        self._core.fleet_stop(self._pointer, number)

    def take_turn(self) -> int:
        """Run the engines up to the sort key `turn[LIMIT_KEY]`, for at most `turn[MAX_STEPS]` steps; return the number
        of events that occurred.

        The engines stop after the first time at which an event occurs whose kind is set in the bit mask
        `turn[STOP_AT]`. `turn[NEXT_KEY]` is then the sort key of their next step or arrival.
        """
        count: int = self._core.fleet_take_turn(self._pointer)
        if count < 0:
            self._check(-count)
        return count

    def events(self, told: int) -> Sequence[int]:
        """Return the `told` events of the last turn as a flat list: kind (core.h), engine, request, time, value."""
        if told <= enums.TOLD_IN_TURN:
            return self.turn[NUM_EVENTS : NUM_EVENTS + EVENT_FIELDS * told]
        events = POINTER(c_int64)()
        count = self._core.fleet_events(self._pointer, byref(events))
        return events[: EVENT_FIELDS * count]

    def advance(self, limit_key: int) -> list[tuple[int, ...]]:
        """Process everything that is due before `limit_key` and return the events."""
        told: list[tuple[int, ...]] = []
        self.turn[LIMIT_KEY] = limit_key
        while True:
            fields = iter(self.events(self.take_turn()))
            told += zip(*[fields] * EVENT_FIELDS)
            if self.turn[NEXT_KEY] >= limit_key:
                return told

    @property
    def next_key(self) -> int:
        return int(self._core.fleet_next_key(self._pointer))

    @property
    def completed(self) -> int:
        """Number of completed requests, summed over all engines."""
        return int(self._core.fleet_completed(self._pointer))

    def state(self, number: int) -> ctypes.Structure:
        state: ctypes.Structure = structs.core_state()
        self._core.fleet_state(self._pointer, number, byref(state))
        return state

    def rank_requests(self, number: int) -> tuple[int, ...]:
        counts = (c_int64 * self._setups[number].data_parallel_size)()
        found = self._core.fleet_rank_requests(self._pointer, number, counts)
        return tuple(counts[:found])

    def tier_use(self, number: int) -> tuple[TierUse, ...]:
        setup = self._setups[number]
        uses = (structs.core_tier_use * 2)()
        count = self._core.fleet_tier_use(self._pointer, number, uses)
        offload = setup.policy_options.get("offload")
        if offload is None:
            names, chunk_bytes = ["swap"], setup.policy_options.get("block_bytes", 0.0)
        else:
            names = [tier.name for tier in offload.tiers]
            chunk_bytes = offload.block_bytes * offload.chunk_blocks
        return tuple(
            make_from(
                TierUse,
                use,
                name=name,
                stored_bytes=use.stored * chunk_bytes,
                loaded_bytes=use.loaded * chunk_bytes,
            )
            for name, use in zip(names, uses[:count])
        )

    def work(self, number: int) -> StepWork | None:
        pointer = self._core.fleet_work(self._pointer, number)
        if not pointer:
            return None
        arrays = structs.work_arrays()
        self._core.work_export(pointer, byref(arrays))
        return step_work(arrays, self._setups[number].step_times)

    def gaps(self) -> GapCounter:
        arrays = structs.gaps_arrays()
        self._core.gaps_export(self._core.fleet_gaps(self._pointer), byref(arrays))
        return gap_counter(arrays)

    def log(self, number: int) -> list[int]:
        """Return the step log of an engine as a flat list, in the format of log_step in ledger.c."""
        entries = POINTER(c_int64)()
        count = self._core.fleet_log(self._pointer, number, byref(entries))
        return entries[:count] if count else []


SHAPE_FIELDS = len(structs.shape._fields_)
NUM_OCTAVES = 64  # octaves of gaps
OCTAVE_BINS = NUM_BATCH_BINS // NUM_OCTAVES


def gap_counter(arrays: Any) -> GapCounter:
    """Return a counter of the run's gaps between token deliveries, copied from the C structure `gaps_arrays`."""
    octaves = (ctypes.c_void_p * NUM_OCTAVES).from_address(arrays.octaves)[:]
    used = [number for number, address in enumerate(octaves) if address] or [0]
    filled = -(-arrays.count // arrays.batch_size)
    counts = np.zeros((filled, (used[-1] + 1 - used[0]) * OCTAVE_BINS), dtype=np.int64)
    for number in used:
        place = (number - used[0]) * OCTAVE_BINS
        bins = _array_at(octaves[number], MAX_BATCHES, OCTAVE_BINS)[:filled]
        counts[: len(bins), place : place + OCTAVE_BINS] = bins
    batches = GapBatches.from_core(counts, used[0] * OCTAVE_BINS, size=arrays.batch_size)
    if arrays.bins:
        times = _array_at(arrays.bins, 1, 64 << BIN_BITS)[0]
        bins = np.flatnonzero(times)
        multiset, resolution = (bin_middles_ps(bins, BIN_BITS), times[bins]), 2.0**-BIN_BITS
    else:
        gaps, times = _array_at(arrays.gaps, arrays.num_gaps, 2).T.copy()
        multiset, resolution = (gaps, times), 0.0
    total_ps = arrays.total_high << 64 | arrays.total_low
    return GapCounter.from_core(multiset, resolution=resolution, total_ps=total_ps, batches=batches)


def step_work(arrays: Any, step_times: StepTimes) -> StepWork:
    """Return the step statistics of one engine, copied from the C structure `work_arrays`."""
    kinds = _array_at(arrays.kinds, arrays.num_kinds, SHAPE_FIELDS + 2).tolist()
    prefills = _array_at(arrays.prefills, arrays.num_prefills, SHAPE_FIELDS + 1).tolist()
    return StepWork.from_core(
        step_times,
        [(StepShape(*shape), steps, busy_ps) for *shape, steps, busy_ps in kinds],
        [(StepShape(*shape), duration_ps) for *shape, duration_ps in prefills],
        stride=arrays.stride,
        prefill_steps=arrays.prefill_steps,
        prefill_ps=arrays.prefill_ps,
        held_ps=arrays.held_ps,
    )


def _array_at(address: int | None, rows: int, columns: int) -> IntArray:
    """Return a view of `rows` x `columns` integers in the core's memory; it is valid until the core frees them."""
    if not rows or address is None:
        return np.zeros((0, columns), dtype=np.int64)
    place = memoryview((ctypes.c_char * (8 * rows * columns)).from_address(address))
    held: IntArray = np.frombuffer(place, dtype=np.int64)
    return held.reshape(rows, columns)
