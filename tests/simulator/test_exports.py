"""What a run leaves as files: a line a request and a line a sample, as the records say."""

from __future__ import annotations

import csv
from dataclasses import fields
from pathlib import Path

import pytest

from capacity.base.errors import InvalidInput
from capacity.simulator import EngineSetup, Sample, simulate
from capacity.simulator.metrics import RequestRecord
from capacity.simulator.timeline import Timeline, write_records, write_series, write_timeline
from capacity.step import AffineStepTimes
from capacity.workload import random_requests


def test_files_hold_every_request_and_sample(tmp_path: Path) -> None:
    workload = random_requests(num_requests=12, input_len=40, output_len=9, request_rate_per_s=20.0)
    setup = EngineSetup(step_times=AffineStepTimes(0.01, 1e-4), num_blocks=30)
    run = simulate(workload, setup, sample_interval_s=0.1)
    write_records(run, tmp_path / "records.csv")
    write_series(run, tmp_path / "series.csv")
    with (tmp_path / "records.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == [field.name for field in fields(RequestRecord)]
    assert [float(line["finish_s"]) for line in lines] == [record.finish_s for record in run.records]
    with (tmp_path / "series.csv").open(newline="") as file:
        samples = list(csv.DictReader(file))
    assert list(samples[0]) == [field.name for field in fields(Sample)]
    assert len(samples) == len(run.series)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    workload = random_requests(num_requests=2, input_len=4, output_len=2, request_rate_per_s=20.0)
    run = simulate(workload, EngineSetup(step_times=AffineStepTimes(0.01, 1e-4), num_blocks=30))
    for write in (write_records, write_series):
        with pytest.raises(InvalidInput, match="cannot write"):
            write(run, tmp_path / "missing" / "file.csv")
    with pytest.raises(InvalidInput, match="cannot write"):
        write_timeline(Timeline(), run, tmp_path / "missing" / "file.json")
