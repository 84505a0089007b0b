"""Output files of a run: steps and requests as a Chrome trace for Perfetto; records as CSV."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from capacity.base.output_files import replaced_file, write_file
from capacity.simulator.engine import Engine
from capacity.simulator.ledger import Sample
from capacity.simulator.metrics import RequestRecord, RequestTable
from capacity.simulator.result import SimulationResult
from capacity.simulator.schedulers import Step
from capacity.simulator.shapes import sum_rows
from capacity.step import PS_PER_S

PS_PER_US = PS_PER_S // 10**6
ENGINE, REQUESTS = 1, 2  # process numbers in the trace


class Timeline:
    """Observer that keeps every step; pass it as `observer` to `simulate`."""

    def __init__(self) -> None:
        self._events: list[Mapping[str, object]] = []
        self._stopped_us: dict[int, float] = {}  # preempted requests, and since when
        self._pauses_us: dict[int, list[tuple[float, float]]] = {}

    def __call__(self, step: Step, engine: Engine) -> None:
        prefill = sum(row.tokens for row in step.rows if row.computed < row.sequence.prompt_tokens)
        tokens = sum(row.tokens for row in step.rows)
        kind = "decode" if not prefill else "prefill" if prefill == tokens else "mixed"
        used = engine.pool.num_blocks - engine.pool.free_blocks
        start_us, end_us = step.start / PS_PER_US, step.end / PS_PER_US
        arguments: dict[str, object] = {"rows": len(step.rows), "tokens": tokens, "prefill_tokens": prefill}
        arguments |= _step_bounds(step, engine)
        self._events.append(_trace_event(kind, ENGINE, 1, start_us, end_us - start_us, arguments))
        self._events.append(
            {"name": "KV blocks", "ph": "C", "pid": ENGINE, "ts": end_us, "args": {"used": used}}
        )
        if self._stopped_us:
            for row in step.rows:
                since_us = self._stopped_us.pop(row.sequence.index, None)
                if since_us is not None:
                    self._pauses_us.setdefault(row.sequence.index, []).append((since_us, start_us))
        for r in step.preempted:
            self._stopped_us[r.index] = start_us
            self._events.append(
                {"name": "preempted", "ph": "i", "s": "t", "pid": REQUESTS, "tid": r.index, "ts": start_us}
            )

    def chrome_trace(self, records: RequestTable) -> dict[str, Any]:
        """Return the trace for `json.dump`: observed steps, and each request's queueing, prefill, decode,
        preemptions."""
        events: list[Mapping[str, object]] = [
            {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}
            for pid, name in ((ENGINE, "engine steps"), (REQUESTS, "requests"))
        ]
        for r in records:
            marks = [r.arrival_s, r.first_scheduled_s, r.first_token_s, r.finish_s]
            sizes = {
                "prompt_tokens": r.prompt_tokens,
                "output_tokens": r.output_tokens,
                "cached": r.cached_tokens,
            }
            for name, begin, end in zip(("queued", "prefill", "decode"), marks, marks[1:]):
                if begin is None or end is None:
                    continue
                for part, first_us, last_us in self._split_phase(r.index, name, begin * 1e6, end * 1e6):
                    events.append(_trace_event(part, REQUESTS, r.index, first_us, last_us - first_us, sizes))
        return {"traceEvents": events + self._events, "displayTimeUnit": "ms"}

    def _split_phase(
        self, index: int, name: str, begin_us: float, end_us: float
    ) -> Iterator[tuple[str, float, float]]:
        """Yield (name, begin, end) of the parts of a request's phase `name`, and of the preemptions between them."""
        at_us = begin_us
        for first_us, last_us in self._pauses_us.get(index, ()):
            first_us, last_us = max(first_us, at_us), min(last_us, end_us)
            if first_us >= last_us:
                continue
            if first_us > at_us:
                yield name, at_us, first_us
            yield "preempted", first_us, last_us
            at_us = last_us
        if end_us > at_us:
            yield name, at_us, end_us


def _step_bounds(step: Step, engine: Engine) -> dict[str, object]:
    """Return the bottleneck of a step, and the share of each bottleneck in its time; empty if operators are unknown."""
    step_cost = getattr(engine.step_times, "step_cost", None)
    if step_cost is None or not step.rows or step.parts:
        return {}
    cost = step_cost(sum_rows(step.rows, engine.setup.window_tokens))
    parts: dict[str, float] = {}
    for op in cost.operators:
        parts[op.bound] = parts.get(op.bound, 0.0) + op.seconds / cost.seconds
    return {"bound": max(parts, key=lambda bound: parts[bound]), "bounds": parts}


def _trace_event(
    name: str, pid: int, tid: int, ts: float, dur: float, args: Mapping[str, object]
) -> dict[str, object]:
    return {"name": name, "ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def write_records(run: SimulationResult, path: str | Path) -> None:
    """Write a CSV file, one line per request (s, tokens); times that do not exist are empty. Raises InvalidInput."""
    _write_csv(path, RequestRecord, run.records)


def write_series(run: SimulationResult, path: str | Path) -> None:
    """Write a CSV file with one line per sample of the engines' state. Raises InvalidInput."""
    _write_csv(path, Sample, run.series)


def write_timeline(timeline: Timeline, run: SimulationResult, path: str | Path) -> None:
    """Write steps and requests in the Chrome trace format for Perfetto. Raises InvalidInput."""
    write_file(path, json.dumps(timeline.chrome_trace(run.records)))


def _write_csv(path: str | Path, kind: type[Any], records: Iterable[object]) -> None:
    names = [field.name for field in fields(kind)]
    with replaced_file(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([getattr(record, name) for name in names] for record in records)
