"""Sweeps: every point once, kept as it ends, the same rows whatever runs them and however often they are killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from slowness import cpu_limit
from sweep_files import HEAD, make
from sweep_workers import DEADLY, arm

from capacity import estimate
from capacity.base.errors import InvalidInput
from capacity.planning.sweeps.store import Row, open_store
from capacity.planning.sweeps.sweep import answer_point, answer_points, run_sweep, sweep
from capacity.planning.sweeps.sweep_spec import Point, points, read_sweep
from capacity.planning.workers.worker_pool import WorkerPool


def rows_of(spec: Path, store: Path) -> list[Row]:
    with open_store(store) as opened:
        return list(opened.rows(points(read_sweep(spec))))


def test_a_point_equals_the_question_asked_alone(spec: Path, tmp_path: Path) -> None:
    swept = sweep(spec, tmp_path / "s.db")
    assert (swept.done, swept.does_not_fit, swept.failed, swept.skipped) == (6, 6, 6, 0)
    assert swept.points == 18
    first = rows_of(spec, tmp_path / "s.db")[0]
    alone = estimate("llama-3.1-8b", gpu="h100", input_len=256, output_len=16, batch_size=1, price="2.5")
    assert first.answer["ttft_s"]["value"] == alone.ttft_s.value
    assert first.answer["cost"]["usd_per_hour"] == 2.5


def test_a_failing_point_is_recorded_and_the_rest_go_on(spec: Path, tmp_path: Path) -> None:
    swept = sweep(spec, tmp_path / "s.db")
    rows = rows_of(spec, tmp_path / "s.db")
    failed = [row for row in rows if row.status == "failed"]
    assert swept.failed == len(failed) > 0
    assert swept.first_failure in [row.reason for row in failed]
    assert all(row.reason and row.reason.startswith(("InvalidInput", "DoesNotFit")) for row in failed)
    assert all(row.options["output_len"] == 200000 or row.options["gpu"] == "l4" for row in failed)


def test_what_is_done_is_not_done_again(spec: Path, tmp_path: Path) -> None:
    sweep(spec, tmp_path / "s.db")
    again = sweep(spec, tmp_path / "s.db")
    assert (again.done, again.failed, again.skipped) == (0, 0, 18)
    retried = sweep(spec, tmp_path / "s.db", retry_failed=True)
    assert retried.done == 0
    assert retried.failed > 0


@pytest.mark.ci
def test_two_processes_give_the_same_bytes(spec: Path, tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        sweep(spec, tmp_path / f"{name}.db", workers=workers, export_to=tmp_path / f"{name}.csv")
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert _dump(tmp_path / "one.db") == _dump(tmp_path / "two.db")


def _dump(path: Path) -> list[Any]:
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT * FROM points ORDER BY key").fetchall()
    connection.close()
    return found


KILLED = """
import sys
from capacity.planning.sweeps.sweep import sweep
from capacity.planning.sweeps import sweep_spec as spec
spec.package_version = lambda: "one"  # somebody may be editing the package while this runs
if __name__ == "__main__":
    sweep(sys.argv[1], sys.argv[2])
"""


@pytest.mark.slow
def test_kill_9_loses_only_what_is_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capacity.planning.sweeps.sweep_spec.package_version", lambda: "one")
    path = tmp_path / "sweep.toml"
    batches = ", ".join(str(size) for size in range(1, 701))
    path.write_text(
        HEAD + f'question = "estimate"\n[fixed]\nmodel = "llama-3.1-8b"\ngpu = "h100"\ninput_len = 64\n'
        f"output_len = 8\nmax_num_seqs = 2048\n[vary]\nbatch_size = [{batches}]\n"
    )
    store = tmp_path / "killed.db"
    script = tmp_path / "run.py"
    script.write_text(KILLED)
    process = subprocess.Popen([sys.executable, str(script), str(path), str(store)])
    try:
        before = _wait_for_rows(store, 20)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    kept = len(_dump(store))
    assert kept >= before
    assert kept < 700, "it ended before it was killed: nothing was tested"
    resumed = sweep(path, store)
    assert resumed.skipped == kept
    assert resumed.points == 700
    sweep(path, tmp_path / "whole.db")
    assert _dump(store) == _dump(tmp_path / "whole.db")


def _wait_for_rows(store: Path, count: int) -> int:
    for _ in range(1500):
        time.sleep(0.02)
        if store.exists():
            try:
                found = len(_dump(store))
            except sqlite3.Error:
                continue
            if found >= count:
                return found
    raise AssertionError("the sweep wrote nothing")


def test_common_random_numbers_across_points() -> None:
    simulated = make(
        question="simulate",
        fixed={
            "model": "llama-3.1-8b",
            "input_len": 200,
            "output_len": 20,
            "request_rate": 5.0,
            "num_prompts": 30,
        },
        vary={"gpu": ("h100", "h200")},
    )

    answers = [json.loads(answer_point(point).answer or "{}") for point in points(simulated)]
    assert answers[0]["total_output_tokens"] == answers[1]["total_output_tokens"]
    assert answers[0]["median_ttft_ms"] != answers[1]["median_ttft_ms"]


@contextmanager
def armed(workers: int = 1) -> Iterator[WorkerPool]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=arm) as executor:
        yield WorkerPool(executor=executor, workers=workers)


@pytest.mark.ci
def test_a_point_that_kills_its_worker_is_recorded_and_takes_no_other_with_it(tmp_path: Path) -> None:
    many = make(
        axes="zip",
        fixed={"model": "llama-3.1-8b", "input_len": 100, "output_len": 10},
        vary={
            "gpu": tuple(DEADLY if i in (60, 330) else "h100" for i in range(360)),
            "batch_size": tuple(i % 120 + 1 for i in range(360)),
            "max_num_seqs": tuple(200 + i // 120 for i in range(360)),
        },
    )
    with open_store(tmp_path / "s.db") as store:
        swept = run_sweep(many, store, open_workers=armed)
        rows = list(store.rows(points(many)))
    assert (swept.points, swept.done, swept.failed) == (360, 358, 2)
    failed = [row for row in rows if row.status == "failed"]
    assert [row.options["gpu"] for row in failed] == [DEADLY] * 2
    assert {row.reason for row in failed} == {"the worker process died at every attempt"}


def test_ten_thousand_analytic_points_are_a_matter_of_seconds() -> None:
    """60 s on two cores are 12 ms of CPU a point; it takes 2 to 5, of which deployments are looked up once."""
    many = points(
        make(
            fixed={"model": "llama-3.1-8b", "price_tier": "on-demand"},
            vary={
                "gpu": ("h100", "h200"),
                "tensor_parallel_size": (1, 2),
                "input_len": tuple(range(100, 1100, 100)),
                "output_len": (16, 64, 256),
                "batch_size": (1, 8, 64),
            },
        )
    )
    assert len(many) == 360
    with cpu_limit(12e-3 * len(many)):
        assert_answered(many)


def test_a_thousand_loads_are_a_matter_of_seconds() -> None:
    """Each is a run of 1,000 requests, and another with lengths that differ: 25 to 55 ms of CPU together."""
    loads = points(
        make(
            fixed={"model": "llama-3.1-8b", "gpu": "h100", "output_len": 64},
            vary={"input_len": (100, 500, 900), "concurrency": (1, 8, 64)},
        )
    )
    assert_answered(loads[:1])  # loads what every point needs
    with cpu_limit(0.2 * len(loads)):
        assert_answered(loads)


def assert_answered(asked: Sequence[Point]) -> None:
    assert all(answer.reason is None for answer in answer_points(asked))


def test_what_points_share_is_not_mistaken_for_what_they_do_not() -> None:
    """Answers in one process, where deployments are remembered, are those of each question asked alone."""
    varied = points(
        make(
            fixed={"model": "llama-3.1-8b", "input_len": 100, "output_len": 10, "batch_size": 2},
            vary={
                "gpu": ("h100", "h200"),
                "enforce_eager": (False, True),
                "kv_cache_dtype": ("auto", "fp8"),
                "price": ("1", "2"),
            },
        )
    )
    for point, answer in zip(varied, answer_points(varied), strict=True):
        options = {name: value for name, value in point.options.items() if name != "model"}
        assert json.loads(answer.answer or "") == json.loads(
            json.dumps(estimate("llama-3.1-8b", **options).to_dict())
        )


def test_what_stands_before_the_engines_may_vary() -> None:
    load = {"input_len": 400, "output_len": 40, "request_rate": 80.0, "num_prompts": 60, "replicas": 2}
    routed = make(
        question="simulate",
        fixed={"model": "llama-3.1-8b", "gpu": "h100", "random_range_ratio": 0.9, **load},
        vary={"router": ("round-robin", "least-outstanding")},
    )
    answers = [json.loads(answer.answer or "{}") for answer in answer_points(points(routed))]
    assert [answer["completed"] for answer in answers] == [60, 60]
    assert answers[0]["mean_ttft_ms"] != answers[1]["mean_ttft_ms"]


def test_a_question_refuses_what_it_does_not_ask() -> None:
    (fit_point,) = points(make(question="fit", vary={"batch_size": (1,)}))
    assert "unknown option" in (answer_point(fit_point).reason or "")
    (estimate_point,) = points(make(vary={"turns": (2,)}))
    assert "simulate" in (answer_point(estimate_point).reason or "")


class Vanishing(Executor):
    """Answers so many tasks; those after are cancelled, as by a cluster that is gone."""

    def __init__(self, tasks: int) -> None:
        self._left = tasks

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._left -= 1
        if self._left < 0:
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def test_a_cluster_that_goes_away_ends_the_sweep_and_fails_no_point(tmp_path: Path) -> None:
    many = make(vary={"batch_size": tuple(range(1, 251))})
    opened: list[int] = []

    @contextmanager
    def vanishing() -> Iterator[WorkerPool]:
        if opened:
            raise InvalidInput("no Dask scheduler answers")
        opened.append(1)
        yield WorkerPool(executor=Vanishing(2), workers=2)

    with open_store(tmp_path / "s.db") as store:
        with pytest.raises(
            InvalidInput, match="no Dask scheduler answers; 100 of 250 points are stored: run the same"
        ):
            run_sweep(many, store, open_workers=vanishing)
        assert len(store.done_keys()) == len(store.done_keys(failed=False)) == 100
        assert run_sweep(many, store).skipped == 100
