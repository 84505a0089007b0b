"""The schedule of one compiled engine, step by step, over requests that share written contents."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from capacity.simulator.core.binding import NEVER_KEY
from capacity.simulator.core.fleet import LEDGER_COLUMNS, Fleet
from capacity.simulator.engines import ENDLESS, stall_reason
from capacity.simulator.ledger import Ledger
from capacity.simulator.setup import EngineSetup
from capacity.step import PS_PER_S
from capacity.workload import Workload
from capacity.workload.columns import IntArray

ROW = 4  # numbers of one row in the log


class LoggedStep(NamedTuple):
    """Requests by number; rows of (request, tokens, computed, drafts). `free_blocks` as the step ends."""

    start_ps: int
    end_ps: int
    free_blocks: int
    rows: list[list[int]]
    preempted: list[int]
    finished: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """`stalled_by` says why nothing could proceed, where requests are left. `columns` are the ledger's."""

    steps: tuple[LoggedStep, ...]
    stalled_by: str | None
    columns: dict[str, memoryview]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRequest:
    """A request with written contents. `keys` name its full blocks, the answer's too."""

    id: Any
    arrival_ps: int
    prompt_tokens: int
    max_known: int  # prompt and output
    priority: int
    keys: Sequence[int]


class WrittenBlocks:
    """Which blocks of each request others have as well: all that are named, one by one."""

    def __init__(self, requests: Sequence[WrittenRequest]) -> None:
        self._keys = [r.keys for r in requests]

    def columns(self) -> tuple[IntArray, IntArray, IntArray]:
        counts = [len(some) for some in self._keys]
        stops = [stop for count in counts for stop in range(1, count + 1)]
        names = [key for some in self._keys for key in some]
        offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        return offsets, np.array(names, dtype=np.int64), np.array(stops, dtype=np.int64)


def logged_run(
    setup: EngineSetup,
    requests: Sequence[WrittenRequest],
    *,
    turns_away: bool = True,
    keep_log: bool = True,
) -> LoggedRun:
    """Run requests, in order of arrival, to the end. Among equals those of the least id come first.

    Without `turns_away` the scheduler itself has to see prompts that are too long; without `keep_log` no step is
    logged, and decodes may be known by their sums. Raises InvalidInput.
    """
    arrival_ps, prompts, ends, priorities = np.array(
        [(r.arrival_ps, r.prompt_tokens, r.max_known, r.priority) for r in requests], dtype=np.int64
    ).T
    workload = Workload(
        arrival_s=arrival_ps / PS_PER_S,
        prompt_tokens=prompts,
        output_tokens=ends - prompts,
        priority=priorities,
    )
    ledger = Ledger(len(workload))
    columns: dict[str, memoryview] = {name: getattr(ledger, name) for name in LEDGER_COLUMNS}
    fleet = Fleet(workload, columns, routed=False, order=_ranks([r.id for r in requests]))
    blocks = WrittenBlocks(requests)
    number = fleet.add(
        setup, 0, chains=lambda _: blocks, answers_private=False, keep_log=keep_log, turns_away=turns_away
    )
    fleet.feed(number, None, arrival_ps)
    fleet.advance(NEVER_KEY)
    state = fleet.state(number)
    stalled_by = None
    if state.unfinished:
        stalled_by = ENDLESS if state.endless else stall_reason(state.num_waiting, setup.num_blocks)
    return LoggedRun(steps=tuple(_steps(fleet.log(number))), stalled_by=stalled_by, columns=columns)


def _ranks(ids: Sequence[Hashable]) -> IntArray:
    """Each id's place among all of them, equal ones together."""
    place = {name: rank for rank, name in enumerate(sorted(set(ids)))}  # type: ignore[type-var]
    return np.array([place[name] for name in ids], dtype=np.int64)


def _steps(log: list[int]) -> Iterator[LoggedStep]:
    """As log_step in ledger.c wrote them: three numbers, then rows, preempted and finished, each after its count."""
    entries = iter(log)

    def take(count: int) -> list[int]:
        return [next(entries) for _ in range(count)]

    for start_ps in entries:
        end_ps, free_blocks = take(2)
        rows = [take(ROW) for _ in range(next(entries))]
        yield LoggedStep(start_ps, end_ps, free_blocks, rows, take(next(entries)), take(next(entries)))
