"""Gaps and work that the compiled core holds, taken out as the records that the readable engines fill."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from capacity.simulator.core.interface import structs
from capacity.simulator.gap_counter import (
    BIN_BITS,
    MOST_BATCHES,
    NUM_BATCH_BINS,
    GapBatches,
    GapCounter,
    bin_middles_ps,
)
from capacity.simulator.step_work import StepWork
from capacity.step import StepShape, StepTimes
from capacity.workload.columns import IntArray

SHAPE_FIELDS = len(structs.shape._fields_)
NUM_OCTAVES = 64  # of gaps
OCTAVE_BINS = NUM_BATCH_BINS // NUM_OCTAVES


def gap_counter(arrays: Any) -> GapCounter:
    """Copy the gaps of a run from a filled `gaps_arrays`."""
    octaves = (ctypes.c_void_p * NUM_OCTAVES).from_address(arrays.octaves)[:]
    used = [number for number, address in enumerate(octaves) if address] or [0]
    filled = -(-arrays.count // arrays.batch_size)
    counts = np.zeros((filled, (used[-1] + 1 - used[0]) * OCTAVE_BINS), dtype=np.int64)
    for number in used:
        place = (number - used[0]) * OCTAVE_BINS
        bins = _seen(octaves[number], MOST_BATCHES, OCTAVE_BINS)[:filled]
        counts[: len(bins), place : place + OCTAVE_BINS] = bins
    batches = GapBatches.from_core(counts, used[0] * OCTAVE_BINS, size=arrays.batch_size)
    if arrays.bins:
        times = _seen(arrays.bins, 1, 64 << BIN_BITS)[0]
        bins = np.flatnonzero(times)
        multiset, resolution = (bin_middles_ps(bins, BIN_BITS), times[bins]), 2.0**-BIN_BITS
    else:
        gaps, times = _seen(arrays.gaps, arrays.num_gaps, 2).T.copy()
        multiset, resolution = (gaps, times), 0.0
    total_ps = arrays.total_high << 64 | arrays.total_low
    return GapCounter.from_core(multiset, resolution=resolution, total_ps=total_ps, batches=batches)


def step_work(arrays: Any, step_times: StepTimes) -> StepWork:
    """Copy the steps of one engine from a filled `work_arrays`."""
    kinds = _copied(arrays.kinds, arrays.num_kinds, SHAPE_FIELDS + 2).tolist()
    prefills = _copied(arrays.prefills, arrays.num_prefills, SHAPE_FIELDS + 1).tolist()
    return StepWork.from_core(
        step_times,
        [(StepShape(*shape), steps, busy_ps) for *shape, steps, busy_ps in kinds],
        [(StepShape(*shape), duration_ps) for *shape, duration_ps in prefills],
        stride=arrays.stride,
        prefill_steps=arrays.prefill_steps,
        prefill_ps=arrays.prefill_ps,
        held_ps=arrays.held_ps,
    )


def _copied(address: int | None, rows: int, columns: int) -> IntArray:
    """Whole numbers that stand at an address, in rows."""
    return _seen(address, rows, columns).copy()


def _seen(address: int | None, rows: int, columns: int) -> IntArray:
    """The same where they stand, for as long as the core leaves them there."""
    if not rows or address is None:
        return np.zeros((0, columns), dtype=np.int64)
    place = memoryview((ctypes.c_char * (8 * rows * columns)).from_address(address))
    held: IntArray = np.frombuffer(place, dtype=np.int64)
    return held.reshape(rows, columns)
