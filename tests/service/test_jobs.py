"""Work in the background: bounded, cached by its specification, cancelled for good, its errors whole."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import capacity
from capacity.service.jobs import NICE_WHEN_HEAVY, Job, Runner, Task
from capacity.service.quotas import PROC, Quota

pytestmark = pytest.mark.ci  # many seconds

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


def estimate(number: int) -> Task:
    """What the page of that name asks."""
    traffic = {"input_len": 1000 + number, "output_len": 100, "batch_size": 8}
    return Task(
        function="capacity_app.tasks:estimate_and_bounds",
        arguments={"model": "llama-3.1-8b", "options": {"gpu": "h100", **traffic}, "cost": {}},
    )


def fit(**arguments: Any) -> Task:
    return Task(function="capacity:fit", arguments={"model": "llama-3.1-8b", **arguments})


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    made = Runner(1, kept=3, quota=Quota(session_waiting=2))
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
    assert runner.finished_job(fit(gpu="h100", max_num_seqs=8)) is first
    assert runner.finished_job(fit(gpu="h100", max_num_seqs=9)) is None


def test_a_refusal_comes_back_as_the_error_that_it_was(runner: Runner) -> None:
    with pytest.raises(capacity.InvalidInput, match="no hardware profile 'h1000'") as raised:
        ended(runner.submit(fit(gpu="h1000"))).result()
    assert raised.value.suggestions


def test_a_crash_is_told_from_a_refusal_and_is_tried_again(runner: Runner) -> None:
    broken = Task(function="capacity:nonesuch")
    job = ended(runner.submit(broken))
    assert job.crash is not None
    assert runner.finished_job(broken) is None
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
    with pytest.raises(capacity.InvalidInput, match="2 computations are already waiting"):
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
    assert ended(job).crash == "the worker process ended during the job"
    assert ended(runner.submit(fit(gpu="h100", max_num_seqs=31))).status == "done"


def test_only_the_latest_results_are_kept(runner: Runner) -> None:
    for count in range(41, 46):
        ended(runner.submit(fit(gpu="h100", max_num_seqs=count)))
    assert runner.finished_job(fit(gpu="h100", max_num_seqs=45)) is not None
    assert runner.finished_job(fit(gpu="h100", max_num_seqs=41)) is None


# sessions beside each other


@pytest.fixture
def shared() -> Iterator[Callable[..., Runner]]:
    """Runners with limits of one's own, ended with the test."""
    made: list[Runner] = []

    def runner_of(slots: int = 8, **options: Any) -> Runner:
        made.append(Runner(slots, **options))
        return made[-1]

    yield runner_of
    for each in made:
        each.close()


def endless(seed: int) -> Task:
    """Minutes of work that begin at once."""
    return Task(
        function=LONG.function,
        arguments={**LONG.arguments, "num_prompts": 100_000, "seed": seed, "engine_loop": "events"},
        reports=True,
    )


def seconds(runner: Runner, task: Task, session: str) -> float:
    began_s = time.monotonic()
    assert ended(runner.submit(task, session)).status == "done"
    return time.monotonic() - began_s


@pytest.mark.slow
def test_two_sessions_with_four_heavy_jobs_each_do_not_keep_a_third_waiting(
    shared: Callable[..., Runner],
) -> None:
    runner = shared()
    seconds(runner, estimate(1), "c")  # the process has begun
    alone_s = max(seconds(runner, estimate(number), "c") for number in (2, 3))
    heavy = [runner.submit(endless(seed), "ab"[seed % 2]) for seed in range(8)]
    at_work = [running(job) for job in heavy[:4]]
    until_s = time.monotonic() + WAIT_S
    while not all(slot.low_priority for slot in runner._slots if slot.job) and time.monotonic() < until_s:
        time.sleep(0.1)
    took_s = sorted(seconds(runner, estimate(number), "c") for number in (4, 5, 6))
    print(f"alone {alone_s:.2f} s, beside four {took_s}")
    assert [job.status for job in heavy] == ["running"] * 4 + ["waiting"] * 4
    niceness = {os.getpriority(os.PRIO_PROCESS, slot.group) for slot in runner._slots if slot.job in at_work}
    assert niceness == {NICE_WHEN_HEAVY}
    assert took_s[1] < max(1.0, 4 * alone_s)  # a second, on a machine whose cores are not all others'


def test_who_has_used_least_comes_first(shared: Callable[..., Runner]) -> None:
    runner = shared(1)
    working = running(runner.submit(endless(1), "a"))
    first = [runner.submit(fit(gpu="h100", max_num_seqs=count), "a") for count in (61, 62)]
    second = runner.submit(fit(gpu="h100", max_num_seqs=63), "b")
    order: list[str] = []
    freed = runner._on_slot_free

    def noted(slot: Any, owner: str, cpu_s: float) -> None:
        order.append(owner)
        freed(slot, owner, cpu_s)

    runner._slots[0]._freed = noted  # type: ignore[assignment]
    time.sleep(0.5)  # its CPU time is counted
    runner.cancel(working)
    for job in (*first, second):
        ended(job)
    assert order[:2] == ["a", "b"]


def test_a_session_waits_in_its_own_queue(shared: Callable[..., Runner]) -> None:
    runner = shared(1, quota=Quota(session_waiting=2))
    running(runner.submit(endless(1), "a"))
    for count in (71, 72):
        runner.submit(fit(gpu="h100", max_num_seqs=count), "a")
    with pytest.raises(capacity.InvalidInput, match="computations are already waiting"):
        runner.submit(fit(gpu="h100", max_num_seqs=73), "a")
    assert runner.submit(fit(gpu="h100", max_num_seqs=73), "b").status == "waiting"


@pytest.mark.skipif(not PROC.exists(), reason="no account of processes here")
@pytest.mark.parametrize(
    ("quota", "says"),
    [
        (Quota(job_cpu_s=1.0), r"s of CPU time \(limit 1 s\)"),
        (Quota(job_bytes=64 << 20), r"GiB of memory \(limit 0\.1 GiB\)"),
    ],
)
def test_a_question_that_takes_too_much_is_ended_with_the_reason(
    shared: Callable[..., Runner], quota: Quota, says: str
) -> None:
    runner = shared(2, quota=quota)
    for slot in runner._slots:
        slot._quota = Quota()  # what a process is held to by the system is another test
    job = ended(runner.submit(endless(1), "a"))
    with pytest.raises(capacity.InvalidInput, match=says):
        job.result()
    assert runner.finished_job(job.task) is job  # it is not tried again


def test_a_process_is_held_to_its_memory(shared: Callable[..., Runner]) -> None:
    runner = shared(1, quota=Quota(job_bytes=400 << 20))
    large = Task(function="capacity:simulate", arguments={**LONG.arguments, "num_prompts": 9_000_000})
    job = ended(runner.submit(large, "a"))
    with pytest.raises(capacity.InvalidInput, match="memory"):
        job.result()
    assert ended(runner.submit(fit(gpu="h100", max_num_seqs=81), "a")).status == "done"


@pytest.mark.skipif(not PROC.exists(), reason="no account of processes here")
def test_a_session_that_has_used_its_share_is_refused_and_others_are_not(
    shared: Callable[..., Runner],
) -> None:
    runner = shared(2, quota=Quota(session_cpu_s=0.5))
    job = running(runner.submit(endless(1), "a"))
    time.sleep(1.0)
    runner.cancel(job)
    until_s = time.monotonic() + WAIT_S
    while any(slot.job for slot in runner._slots) and time.monotonic() < until_s:
        time.sleep(0.02)
    with pytest.raises(capacity.InvalidInput, match=r"this session has used \d+ s of CPU time"):
        runner.submit(fit(gpu="h100", max_num_seqs=91), "a")
    assert ended(runner.submit(fit(gpu="h100", max_num_seqs=91), "b")).status == "done"


def test_a_session_that_is_gone_loses_its_jobs_but_not_those_of_others(shared: Callable[..., Runner]) -> None:
    alive = {"a", "b"}
    runner = shared(4, quota=Quota(grace_s=0.1), alive=alive.__contains__)
    own, both = runner.submit(endless(1), "a"), runner.submit(endless(2), "a")
    assert runner.submit(endless(2), "b") is both
    running(own), running(both)
    group = next(slot.group for slot in runner._slots if slot.job is own)
    alive.discard("a")
    assert ended(own).status == "cancelled"
    time.sleep(1.5)
    assert both.status == "running"
    with pytest.raises(ProcessLookupError):
        os.kill(group, 0)
    alive.discard("b")
    assert ended(both).status == "cancelled"


def test_a_job_that_two_follow_ends_with_the_second(shared: Callable[..., Runner]) -> None:
    runner = shared(2)
    job = running(runner.submit(endless(1), "a"))
    runner.submit(endless(1), "b")
    runner.leave(job, "a")
    runner.leave(job, "a")
    assert job.status == "running"
    runner.leave(job, "b")
    assert job.status == "cancelled"


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
