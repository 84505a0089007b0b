"""Statistics of an engine's steps in bounded memory, sufficient to find the bottleneck of the steps.

Decode steps are counted by batch size and context, each rounded to a few leading bits; the first shape of each kind is
kept. Steps with a prefill rarely repeat, so all are kept at first, then every second, fourth, ... as their number
grows. Total times are exact; only their split into kinds depends on the kept shapes.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from capacity.step import StepShape, StepTimes

MAX_PREFILLS = 512  # shapes kept
SIZE_BITS = 5
CONTEXT_BITS = 4


class StepKind(NamedTuple):
    """Similar steps: a representative shape, the number of steps and their total time (ps; estimated if sampled)."""

    shape: StepShape
    steps: float
    busy_ps: float


class StepWork:
    """Statistics of the steps of one engine; `step_times` are the engine's step times."""

    def __init__(self, step_times: StepTimes) -> None:
        self.step_times = step_times
        self.held_ps = 0  # time in which steps waited for offloaded KV
        self._decodes: dict[tuple[int, int, int, int], tuple[StepShape, list[int]]] = {}
        self._prefills: list[tuple[StepShape, int]] = []
        self._stride = 1
        self._prefill_steps = 0
        self._prefill_ps = 0

    @classmethod
    def from_core(
        cls,
        step_times: StepTimes,
        decodes: Iterable[tuple[StepShape, int, int]],
        prefills: list[tuple[StepShape, int]],
        *,
        stride: int,
        prefill_steps: int,
        prefill_ps: int,
        held_ps: int,
    ) -> "StepWork":
        """Return statistics from the compiled core: `decodes` has (first shape, number of steps, total ps) per kind of
        decode step, `prefills` has (shape, ps) per kept prefill step."""
        work = cls(step_times)
        work.held_ps = held_ps
        for shape, steps, busy_ps in decodes:
            work._decodes[_kind_key(shape[7] + shape[8], shape[9])] = (shape, [steps, busy_ps])
        work._prefills, work._stride = prefills, stride
        work._prefill_steps, work._prefill_ps = prefill_steps, prefill_ps
        return work

    def step(self, shape: StepShape, duration_ps: int) -> None:
        """Add a scheduled step."""
        if not shape[1]:
            key = _kind_key(shape[7] + shape[8], shape[9])
            kind = self._decodes.get(key)
            if kind is None:
                kind = self._decodes[key] = (shape, [0, 0])
            sums = kind[1]
            sums[0] += 1
            sums[1] += duration_ps
            return
        if self._prefill_steps % self._stride == 0:
            self._prefills.append((shape, duration_ps))
            if len(self._prefills) > MAX_PREFILLS:
                del self._prefills[1::2]
                self._stride *= 2
        self._prefill_steps += 1
        self._prefill_ps += duration_ps

    def kinds(self) -> Iterator[StepKind]:
        """Yield the kinds of steps; their numbers of steps and times sum to the totals of the run."""
        for shape, (steps, busy_ps) in self._decodes.values():
            yield StepKind(shape, float(steps), float(busy_ps))
        kept_ps = sum(duration_ps for _, duration_ps in self._prefills)
        for shape, duration_ps in self._prefills:
            share = self._prefill_steps / len(self._prefills)
            yield StepKind(shape, share, self._prefill_ps * duration_ps / kept_ps if kept_ps else 0.0)


def _kind_key(rows: int, contexts: int) -> tuple[int, int, int, int]:
    size = max(rows.bit_length() - SIZE_BITS, 0)
    context = max(contexts.bit_length() - CONTEXT_BITS, 0)
    return rows >> size, size, contexts >> context, context
