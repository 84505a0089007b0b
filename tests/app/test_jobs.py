"""Work in the background: bounded, cached by its specification, cancelled for good, its errors whole."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from capacity_app.jobs import Job, Runner, Task

import capacity

WAIT_S = 120.0
LONG = Task(
    function="capacity:simulate",
    arguments={
        "model": "llama-3.1-8b",
        "gpu": "h100",
        "input_len": 1000,
        "output_len": 100,
        "request_rate": 10.0,
        "num_prompts": 2_000_000,
    },
    reports=True,
)


def fit(**arguments: Any) -> Task:
    return Task(function="capacity:fit", arguments={"model": "llama-3.1-8b", **arguments})


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    made = Runner(1, kept=3, queued=2)
    yield made
    made.close()


def ended(job: Job) -> Job:
    assert job.ended.wait(WAIT_S)
    return job


def running(job: Job) -> Job:
    until_s = time.monotonic() + WAIT_S
    while job.progress is None and not job.finished and time.monotonic() < until_s:
        time.sleep(0.02)
    assert job.status == "running"
    return job


def test_a_job_gives_the_librarys_answer(runner: Runner) -> None:
    assert ended(runner.submit(fit(gpu="h100"))).result() == capacity.fit("llama-3.1-8b", gpu="h100")


def test_equal_tasks_are_one_job_and_others_are_not(runner: Runner) -> None:
    first = ended(runner.submit(fit(gpu="h100", max_num_seqs=8)))
    assert runner.submit(fit(max_num_seqs=8, gpu="h100")) is first
    assert runner.known(fit(gpu="h100", max_num_seqs=8)) is first
    assert runner.known(fit(gpu="h100", max_num_seqs=9)) is None


def test_a_refusal_comes_back_as_the_error_that_it_was(runner: Runner) -> None:
    with pytest.raises(capacity.InvalidInput, match="no hardware profile 'h1000'") as raised:
        ended(runner.submit(fit(gpu="h1000"))).result()
    assert raised.value.suggestions


def test_a_crash_is_told_from_a_refusal_and_is_tried_again(runner: Runner) -> None:
    broken = Task(function="capacity:nonesuch")
    job = ended(runner.submit(broken))
    assert job.crash is not None
    assert runner.known(broken) is None
    assert runner.submit(broken) is not job
    with pytest.raises(RuntimeError):
        job.result()


def test_only_this_projects_functions_are_called(runner: Runner) -> None:
    job = ended(runner.submit(Task(function="os:getcwd")))
    assert job.status == "failed"
    assert job.value is None


def test_a_cancelled_job_loses_its_process_and_the_next_one_runs(runner: Runner) -> None:
    job = running(runner.submit(LONG))
    process = runner._slots[0]._process
    assert process is not None
    waiting = runner.submit(fit(gpu="a100-sxm-80gb"))
    runner.cancel(job)
    assert job.status == "cancelled"
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    assert ended(waiting).status == "done"


def test_the_answer_of_a_cancelled_job_is_no_other_jobs(runner: Runner) -> None:
    """A job that is cancelled between its question and its answer: the answer is in the pipe, and nobody's."""
    ended(runner.submit(fit(gpu="h100", max_num_seqs=51)))
    slot = runner._slots[0]
    assert slot._pipe is not None
    first = Task(function="capacity:models")

    class Hasty:
        """The slot's pipe, whose first question is called off as soon as it is asked."""

        recv = slot._pipe.recv

        def send(self, question: Any) -> None:
            pipe.send(question)
            if question[0] == first.function:
                runner._jobs[first.key].end("cancelled")

    pipe, slot._pipe = slot._pipe, Hasty()  # type: ignore[assignment]
    assert ended(runner.submit(first)).status == "cancelled"
    second = ended(runner.submit(fit(gpu="h100", max_num_seqs=52)))
    assert second.result() == capacity.fit("llama-3.1-8b", gpu="h100", max_num_seqs=52)


def test_a_full_queue_refuses_and_a_cancelled_wait_frees_its_place(runner: Runner) -> None:
    job = running(runner.submit(LONG))
    waits = [runner.submit(fit(gpu="h100", max_num_seqs=count)) for count in (21, 22)]
    with pytest.raises(capacity.InvalidInput, match="2 computations wait already"):
        runner.submit(fit(gpu="h100", max_num_seqs=23))
    runner.cancel(waits[0])
    last = runner.submit(fit(gpu="h100", max_num_seqs=23))
    runner.cancel(job)
    assert ended(last).status == "done"
    assert [wait.status for wait in waits] == ["cancelled", "done"]


def test_a_killed_process_is_a_failed_job_and_not_the_end(runner: Runner) -> None:
    job = running(
        runner.submit(Task(function=LONG.function, arguments={**LONG.arguments, "seed": 1}, reports=True))
    )
    process = runner._slots[0]._process
    assert process is not None
    process.kill()
    assert ended(job).crash == "its process ended"
    assert ended(runner.submit(fit(gpu="h100", max_num_seqs=31))).status == "done"


def test_only_the_latest_results_are_kept(runner: Runner) -> None:
    for count in range(41, 46):
        ended(runner.submit(fit(gpu="h100", max_num_seqs=count)))
    assert runner.known(fit(gpu="h100", max_num_seqs=45)) is not None
    assert runner.known(fit(gpu="h100", max_num_seqs=41)) is None


def test_keys_do_not_depend_on_identity_or_order() -> None:
    numbers = np.arange(10_000)
    text = "".join(["llama", "-3.1-8b"])
    one = Task(function="f", arguments={"model": text, "a": (numbers,), "b": {"x": 1, "y": 2.0}})
    two = Task(
        function="f", arguments={"b": {"y": 2.0, "x": 1}, "a": [numbers.copy()], "model": "llama-3.1-8b"}
    )
    other = Task(
        function="f", arguments={"b": {"y": 2.0, "x": 1}, "a": [numbers + (numbers == 5000)], "model": text}
    )
    assert one.key == two.key
    assert one.key != other.key
