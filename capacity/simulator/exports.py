"""What a run leaves as files: its requests and its time series as CSV, its steps as a Chrome trace."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from capacity.base.errors import InvalidInput
from capacity.simulator.ledger import Sample
from capacity.simulator.metrics import RequestRecord
from capacity.simulator.result import SimulationResult
from capacity.simulator.timeline import Timeline


def write_records(run: SimulationResult, path: str | Path) -> None:
    """A line a request, in seconds and tokens; empty where an instant never came. Raises InvalidInput."""
    names = [field.name for field in fields(RequestRecord)]
    _write_csv(path, names, ([getattr(record, name) for name in names] for record in run.records))


def write_series(run: SimulationResult, path: str | Path) -> None:
    """A line a sample of the engine's state. Raises InvalidInput."""
    names = [field.name for field in fields(Sample)]
    _write_csv(path, names, ([getattr(sample, name) for name in names] for sample in run.series))


def write_timeline(timeline: Timeline, run: SimulationResult, path: str | Path) -> None:
    """Steps and requests in the Chrome trace format, which Perfetto opens. Raises InvalidInput."""
    try:
        Path(path).write_text(json.dumps(timeline.chrome_trace(run.records)), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from None


def _write_csv(path: str | Path, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    try:
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(names)
            writer.writerows(rows)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from None
