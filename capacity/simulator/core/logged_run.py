"""Step-by-step schedule of one compiled engine, for requests with given tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from capacity.simulator.core.binding import NEVER_KEY
from capacity.simulator.core.fleet import LEDGER_COLUMNS, Fleet
from capacity.simulator.engines import ENDLESS_PREEMPTION, stall_reason
from capacity.simulator.ledger import Ledger
from capacity.simulator.setup import EngineSetup
from capacity.step import PS_PER_S
from capacity.workload import Workload
from capacity.workload.columns import IntArray

ROW_LENGTH = 4  # numbers per row in the log


class LoggedStep(NamedTuple):
    """One logged step: start and end (ps), free blocks at the end, rows of (request, tokens, computed tokens, drafts),
    and the numbers of the preempted and the finished requests."""

    start_ps: int
    end_ps: int
    free_blocks: int
    rows: list[list[int]]
    preempted: list[int]
    finished: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """Result of a logged run. `stalled_by`: reason if requests did not finish. `columns`: ledger columns by name."""

    steps: tuple[LoggedStep, ...]
    stalled_by: str | None
    columns: dict[str, memoryview]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentRequest:
    """A request whose tokens are given. `keys` has one key per full KV block of its prompt and answer."""

    id: Any
    arrival_ps: int
    prompt_tokens: int
    max_known: int  # prompt and output
    priority: int
    keys: Sequence[int]


class RequestBlocks:
    """KV blocks of requests in the format of `SharedRuns`: each full block is a run with a single block."""

    def __init__(self, requests: Sequence[ContentRequest]) -> None:
        self._keys = [r.keys for r in requests]

    def columns(self) -> tuple[IntArray, IntArray, IntArray]:
        counts = [len(some) for some in self._keys]
        stops = [stop for count in counts for stop in range(1, count + 1)]
        names = [key for some in self._keys for key in some]
        offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        return offsets, np.array(names, dtype=np.int64), np.array(stops, dtype=np.int64)


def run_with_log(
    setup: EngineSetup,
    requests: Sequence[ContentRequest],
    *,
    turns_away: bool = True,
    keep_log: bool = True,
) -> LoggedRun:
    """Simulate requests to the end in order of arrival, simultaneous arrivals in order of id. Raises InvalidInput.

    If `turns_away` is false, the front end admits prompts that are too long, and the scheduler has to reject them. If
    `keep_log` is false, no step is logged, and the engine may store sums over its decoding requests instead of each
    request.
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
    _, ranks = np.unique(np.array([r.id for r in requests], dtype=object), return_inverse=True)
    ledger = Ledger(len(workload))
    columns: dict[str, memoryview] = {name: getattr(ledger, name) for name in LEDGER_COLUMNS}
    fleet = Fleet(workload, columns, routed=False, order=ranks)
    blocks = RequestBlocks(requests)
    number = fleet.add(
        setup, 0, chains=lambda _: blocks, answers_private=False, keep_log=keep_log, turns_away=turns_away
    )
    fleet.feed(number, None, arrival_ps)
    fleet.advance(NEVER_KEY)
    state = fleet.state(number)
    stalled_by = None
    if state.unfinished:
        stalled_by = (
            ENDLESS_PREEMPTION if state.endless else stall_reason(state.num_waiting, setup.num_blocks)
        )
    return LoggedRun(steps=tuple(_parse_log(fleet.log(number))), stalled_by=stalled_by, columns=columns)


def _parse_log(log: list[int]) -> Iterator[LoggedStep]:
    """Yield the steps of a log in the format of log_step in ledger.c.

    A step is start, end, free blocks, and three lists after their lengths: rows, preempted and finished requests.
    """
    entries = iter(log)

    def take(count: int) -> list[int]:
        return [next(entries) for _ in range(count)]

    for start_ps in entries:
        end_ps, free_blocks = take(2)
        rows = [take(ROW_LENGTH) for _ in range(next(entries))]
        yield LoggedStep(start_ps, end_ps, free_blocks, rows, take(next(entries)), take(next(entries)))
