"""A Dask cluster as a worker_pool: every verb's answer to the bit though workers die, and one line where it is none."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import distributed
import pytest
from distributed import cfexecutor
from long_forms import mostly_slow
from quick_plans import quick
from sweep_files import make

from capacity.answers.data_version import data_version
from capacity.base.errors import InvalidInput
from capacity.planning.load.curve import curve
from capacity.planning.sweeps.sweep import sweep
from capacity.planning.variations.diff import diff
from capacity.planning.workers import dask_workers as dask_crew
from capacity.planning.workers.environment_fingerprint import NO_NAMED_INPUTS, NamedInputs
from capacity.planning.workers.worker_pool import NotDone, open_pool, stop_if_recalled

pytestmark = pytest.mark.ci  # many seconds

Progress = Callable[..., None]
TRAFFIC = {"input_len": 400, "output_len": 40, "request_rate": 15.0, "num_prompts": 60}
MANY = make(vary={"batch_size": tuple(range(1, 251))})
KILLED = ("curve", "sweep")  # Dask's own way to go on is the same for all, and takes the most time here


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two worker processes for all of these tests."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as started:
        yield started


@pytest.fixture
def threads() -> Iterator[Any]:
    """A cluster of one worker, all of it threads of this process, that a test may break."""
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, protocol="tcp://", dashboard_address=":0"
    ) as started:
        yield started


def side(**pool: Any) -> dict[str, Any]:
    return {"model": "llama-3.2-1b", "pools": [{"gpu": "h100", **pool}], "traffic": TRAFFIC}


def a_plan(folder: Path, **where: Any) -> Any:  # noqa: ARG001
    answer = quick(model="llama-3.2-1b", request_rate=60.0, **where).to_dict()
    return {name: value for name, value in answer.items() if name not in ("elapsed_s", "first_answer_s")}


def a_curve(folder: Path, **where: Any) -> Any:  # noqa: ARG001
    lengths = {"input_len": 300, "output_len": 20, "num_prompts": 60}
    return curve("llama-3.2-1b", gpu="h100", slo="ttft:p95:300ms", replications=2, **lengths, **where)


def a_diff(folder: Path, **where: Any) -> Any:  # noqa: ARG001
    return diff(side(), side(max_num_seqs=4), replications=5, **where)


def a_sweep(folder: Path, **where: Any) -> Any:
    store = folder / ("there" if "cluster" in where else "here")
    swept = sweep(MANY, store, **where)
    assert (swept.done, swept.failed) == (250, 0)
    connection = sqlite3.connect(store)
    kept = connection.execute("SELECT * FROM points ORDER BY key").fetchall()
    connection.close()
    return swept, kept


ANSWERS = {"plan": a_plan, "curve": a_curve, "diff": a_diff, "sweep": a_sweep}


@pytest.mark.parametrize("verb", mostly_slow(ANSWERS, ["curve"]))
def test_a_cluster_gives_the_same_answer_though_a_worker_dies(
    verb: str, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[Any, ...]] = []
    handed_out: list[object] = []
    submit = dask_crew._DaskExecutor.submit
    monkeypatch.setattr(
        dask_crew._DaskExecutor, "submit", lambda *given: handed_out.append(given) or submit(*given)
    )

    def progress(*given: Any) -> None:
        told.append(given)
        if verb in KILLED and len(told) == 2:
            os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)

    there = ANSWERS[verb](tmp_path, cluster=cluster.scheduler_address, progress=progress)
    said, told[:] = list(told), []
    assert handed_out
    assert there == ANSWERS[verb](tmp_path, progress=progress if verb not in KILLED else None)
    if verb == "diff":
        assert said == told == [(done, 5) for done in range(1, 6)]
    if verb in KILLED:
        assert len(said) > 2, "it ended before a worker was killed: nothing was tested"


def test_a_worker_that_is_not_alike_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = "the digest of llm-capacity's data"
    own = dask_crew.environment_fingerprint(NO_NAMED_INPUTS)
    monkeypatch.setattr(dask_crew, "environment_fingerprint", lambda _: {**own, data: "0123456789ab"})
    differs = f"{data} is {data_version().digest} on the worker and 0123456789ab here"
    worker = r"worker tcp://127.0.0.1:\d+"
    with pytest.raises(
        InvalidInput, match=f"{worker} differs from this machine: {differs}; install the same versions"
    ):
        diff(side(), side(max_num_seqs=4), replications=2, cluster=cluster.scheduler_address)


def test_a_worker_that_comes_later_is_compared_too(cluster: Any) -> None:
    with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
        other = {**dask_crew.environment_fingerprint(NO_NAMED_INPUTS), "NumPy": "0.1"}
        with dask_crew._DaskExecutor(client, other, NO_NAMED_INPUTS, ()) as workers:
            future = workers.submit(os.getpid)
            with pytest.raises(
                InvalidInput, match=r"NumPy is \S+ on the worker and 0\.1 here; install the same versions"
            ):
                future.result(timeout=60)


# a cluster that goes away


def test_what_a_lost_cluster_has_not_done_is_done_here(threads: Any, tmp_path: Path) -> None:
    said: list[int] = []

    def progress(done: int, total: int) -> None:  # noqa: ARG001
        said.append(done)
        if done == 3:
            threads.close()

    there = a_curve(tmp_path, cluster=threads.scheduler_address, progress=progress)
    here = a_curve(tmp_path)
    assert len(said) > 3
    assert there.points == here.points
    assert there.highest == here.highest
    remark = f"The Dask cluster at {threads.scheduler_address} was lost, so its remaining tasks ran on this machine."
    assert there.warnings == (*here.warnings, remark)


class LostMeanwhile:
    """A task of Dask that has its answer and is lost before Dask looks at its status."""

    status = "lost"

    async def _result(self, *, raiseit: bool) -> object:
        assert not raiseit
        return object()


def test_an_answer_of_a_lost_task_is_no_error_of_the_task() -> None:
    told: Future[Any] = Future()

    async def answer() -> None:
        await cfexecutor._cascade_future(LostMeanwhile(), told)

    with ThreadPoolExecutor(
        1
    ) as thread:  # another test of this process may have left an event loop running here
        thread.submit(asyncio.run, answer()).result()
    error = told.exception()
    assert isinstance(error, TypeError)
    assert dask_crew._is_of_dask(error)
    with pytest.raises(TypeError) as own:
        len(3)  # type: ignore[arg-type]
    assert not dask_crew._is_of_dask(own.value)


def test_a_sweep_whose_cluster_is_lost_says_what_is_kept(threads: Any, tmp_path: Path) -> None:
    def progress(done: int, total: int) -> None:  # noqa: ARG001
        if done == 50:
            threads.close()

    with pytest.raises(InvalidInput, match="no Dask scheduler answers at ") as lost:
        sweep(MANY, tmp_path / "s.db", cluster=threads.scheduler_address, progress=progress)
    kept = re.search(r"; (\d+) of 250 points are stored: run the same command to resume$", str(lost.value))
    assert kept
    assert 0 < int(kept[1]) < 250
    assert sweep(MANY, tmp_path / "s.db").skipped == int(kept[1])


def test_without_a_worker_for_too_long_a_cluster_is_lost(
    threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_crew, "LOOK_S", 0.05)
    with open_pool(1, threads.scheduler_address) as worker_pool:
        threads.scale(0)
        threads.sync(threads._correct_state)
        future = worker_pool.submit(os.getpid)
        assert future is not None
        monkeypatch.setattr(dask_crew, "ALONE_S", 0.1)
        with pytest.raises(NotDone):
            worker_pool.result(future)
        assert worker_pool.is_lost
        assert worker_pool.submit(os.getpid) is None


BEGUN, STOPPED = threading.Event(), threading.Event()


def endless(common: str) -> None:
    assert common == "known to all"
    BEGUN.set()
    try:
        while not STOPPED.wait(0.01):
            stop_if_recalled()
    finally:
        STOPPED.set()


def interrupted_at_work(address: str) -> None:
    with open_pool(1, address, common=("known to all",)) as worker_pool:
        assert worker_pool.workers == 1  # a process does one thing at a time, whatever its threads
        future = worker_pool.submit(endless)
        assert future is not None
        assert BEGUN.wait(30)
        assert not worker_pool.take_back(future)
        raise KeyboardInterrupt


def test_ctrl_c_recalls_what_a_worker_is_at(threads: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_at_work(threads.scheduler_address)
    assert STOPPED.wait(30)


# what is no cluster


@pytest.mark.parametrize(
    "address",
    ["", "not an address", "foo://x:1", "tcp://", "tcp://localhost:notaport", "tcp://h:99999", "ü" * 400],
)
def test_an_address_that_is_none_is_said_in_one_line(address: str) -> None:
    with pytest.raises(InvalidInput, match=r"^--cluster is '.*: must be an address such as tcp://host:port$"):
        open_pool(1, address).__enter__()


def test_where_no_scheduler_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_crew, "CONNECT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(
            InvalidInput, match=rf"^no Dask scheduler answers at {address}: not within 0.3 s$"
        ):
            open_pool(1, address).__enter__()
    with pytest.raises(InvalidInput, match=rf"^no Dask scheduler answers at {address}: Connection refused$"):
        open_pool(1, address).__enter__()


def test_where_something_else_answers() -> None:
    def answer() -> None:
        for _ in range(2):
            there, _ = web.accept()
            there.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n" * 9)
            there.close()

    with socket.create_server(("127.0.0.1", 0)) as web:
        talking = threading.Thread(target=answer)
        talking.start()
        with pytest.raises(InvalidInput, match=r"^no Dask scheduler answers at .*: \S"):
            open_pool(1, f"tcp://127.0.0.1:{web.getsockname()[1]}").__enter__()
        talking.join()


def test_a_worker_is_no_scheduler_and_a_scheduler_needs_workers(threads: Any) -> None:
    worker = next(iter(threads.workers.values())).address
    with pytest.raises(
        InvalidInput,
        match=r"no Dask scheduler answers at .*: the address is that of a Worker, not of a Dask scheduler$",
    ):
        open_pool(1, worker).__enter__()
    threads.scale(0)
    threads.sync(threads._correct_state)
    with pytest.raises(InvalidInput, match=r"has no workers: start some with `dask worker tcp://"):
        open_pool(1, threads.scheduler_address).__enter__()


def test_without_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        socket.create_server(("127.0.0.1", 0)) as there,
        pytest.raises(InvalidInput, match=r"^--cluster needs Dask: pip install 'llm-capacity\[dask\]'$"),
    ):
        open_pool(1, f"tcp://127.0.0.1:{there.getsockname()[1]}").__enter__()


def test_a_cluster_that_would_do_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--cluster has no effect without --replications"):
        diff(side(), side(), cluster="tcp://127.0.0.1:1")


def test_what_a_question_names_is_compared() -> None:
    own = dask_crew.environment_fingerprint(NamedInputs(models=("llama-3.2-1b",)))
    assert dask_crew.difference(own, dask_crew.environment_fingerprint(NO_NAMED_INPUTS)) is not None
