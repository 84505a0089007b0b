"""Collectives: bus bandwidth by nccl-tests' definition, and what one rank would have hidden from the others."""

import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.campaigns import load_campaign  # noqa: E402
from capacity_validate.cases import Case, MeasuredCase, MeasurementLog  # noqa: E402
from capacity_validate.collective_times import (  # noqa: E402
    CALLS,
    KINDS,
    CollectiveRun,
    Message,
    TimedCollective,
    bus_bytes,
    collective_cases,
    make_engine_message,
    make_message,
    rank_counts,
    shared_memory_hint,
    time_on_all_ranks,
)
from capacity_validate.stages import StageResults, checks  # noqa: E402
from capacity_validate.telemetry import Reading, Telemetry  # noqa: E402
from capacity_validate.timing import summarise_samples  # noqa: E402
from fake_cuda import FakeCuda  # noqa: E402
from long_forms import mostly_ci  # noqa: E402

from capacity.step.collectives import ring_all_reduce_bytes  # noqa: E402


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_bus_bandwidth_is_nccl_tests_definition(ranks: int) -> None:
    """Its PERFORMANCE.md: all-reduce S/t x 2(n-1)/n, all-gather S/t x (n-1)/n with S the whole, send-receive S/t."""
    size = 2.0**20
    assert bus_bytes("all_reduce", size, ranks) == pytest.approx(size * 2 * (ranks - 1) / ranks)
    assert bus_bytes("all_reduce", size, ranks) == pytest.approx(ring_all_reduce_bytes(size, ranks))
    assert bus_bytes("all_gather", size, ranks) == pytest.approx(size * ranks * (ranks - 1) / ranks)
    assert bus_bytes("send_recv", size, ranks) == size


def test_groups_are_powers_of_two_and_the_whole_node() -> None:
    assert rank_counts(1) == ()
    assert rank_counts(2) == (2,)
    assert rank_counts(8) == (2, 4, 8)
    assert rank_counts(6) == (2, 4, 6)


class OtherRanks:
    """torch.distributed as rank 0 of 2 sees it; what the other rank says is played. All in this process."""

    ReduceOp = SimpleNamespace(MIN="min", MAX="max", SUM="sum")
    isend, irecv = "isend", "irecv"

    def __init__(
        self,
        fake: FakeCuda,
        *,
        wrong_there: bool = False,
        slower_there: float = 1.0,
        captured_there: bool = True,
    ) -> None:
        self.fake, self.slower_there = fake, slower_there
        self.there = [not wrong_there, captured_there]  # the other rank's part of each verdict, in order
        self.calls = 0

    def get_rank(self) -> int:
        return 0

    def get_world_size(self, group: Any) -> int:
        assert group == "both"
        return 2

    def barrier(self, group: Any) -> None:
        assert group == "both"
        self.fake.now_s += 0.5  # whatever the skew: it must not be in the time

    def _takes_a_tenth_of_a_millisecond(self, work: Callable[[], object]) -> None:
        def counted() -> None:
            self.calls += 1
            work()

        self.fake.kernel(1e-4, work=counted)()

    def all_reduce(self, values: Any, op: str = "sum", group: Any = None) -> None:
        assert group == "both"
        if op == "min":
            values.fill_(float(values) if self.there.pop(0) else 0.0)
        elif op == "max":
            values.mul_(self.slower_there)
        else:
            self._takes_a_tenth_of_a_millisecond(lambda: values.mul_(3.0))

    def all_gather_into_tensor(self, out: Any, own: Any, group: Any) -> None:
        assert group == "both"
        assert own.data_ptr() == out.data_ptr(), "not in place"
        self._takes_a_tenth_of_a_millisecond(lambda: out.view(2, -1)[1].copy_(own * 2))

    def P2POp(self, kind: str, values: Any, peer: int, group: Any) -> tuple[str, Any]:  # noqa: N802
        assert (peer, group) == (1, "both")
        return kind, values

    def batch_isend_irecv(self, operations: list[tuple[str, Any]]) -> list[Any]:
        (_, sent), (_, received) = operations
        self._takes_a_tenth_of_a_millisecond(lambda: received.copy_(sent * 2))
        return [SimpleNamespace(wait=lambda: None)]


class Device(SimpleNamespace):
    type = "cuda"

    def __str__(self) -> str:
        return "cuda:0"


def run(kind: str, others: OtherRanks) -> dict[str, Any]:
    return timed(make_message(torch, others, kind, 4096, torch.device("cpu"), group="both"), others)


def timed(one: Message, others: OtherRanks) -> dict[str, Any]:
    fake_torch = SimpleNamespace(
        cuda=others.fake.torch.cuda,
        _C=others.fake.torch._C,
        tensor=lambda values, device: torch.tensor(values),  # noqa: ARG005
    )
    return time_on_all_ranks(fake_torch, others, replace(one, device=Device()))


@pytest.mark.parametrize("kind", KINDS)
def test_the_time_is_of_the_calls_alone(kind: str) -> None:
    """Not of the barrier, of filling buffers, or of launches from the host, which take as long as the calls."""
    record = run(kind, OtherRanks(FakeCuda(launch_s=1e-4)))
    assert (record["status"], record["how"]) == ("ok", "graph")
    assert record["seconds"] == pytest.approx([1e-4 * (1 + 1 / CALLS)] * len(record["seconds"]))


def test_all_reduce_of_an_engine_is_captured_in_its_own_context() -> None:
    others, entered = OtherRanks(FakeCuda(launch_s=1e-4)), []

    def all_reduce(own: Any) -> Any:
        total = torch.empty_like(own)
        others._takes_a_tenth_of_a_millisecond(lambda: total.copy_(own + (own + 1)))
        return total

    @contextmanager
    def capture() -> Iterator[None]:
        calls = others.calls
        yield
        entered.append(others.calls - calls)

    communicator = SimpleNamespace(all_reduce=all_reduce, ca_comm=SimpleNamespace(capture=capture))
    one = make_engine_message(communicator, torch, others, "", 8192, torch.device("cpu"), group="both")
    record = timed(one, others)
    assert (record["status"], record["how"], len(entered)) == ("ok", "graph", 1)
    assert record["seconds"] == pytest.approx([1e-4 * (1 + 1 / CALLS)] * len(record["seconds"]))


@pytest.mark.parametrize("refused_here", [True, False])
def test_a_graph_that_any_rank_cannot_capture_is_used_by_none(refused_here: bool) -> None:
    others = OtherRanks(FakeCuda(launch_s=1e-4, capture_fails=refused_here), captured_there=refused_here)
    record = run("all_reduce", others)
    assert (record["status"], record["how"]) == ("ok", "events")
    assert record["seconds"] == pytest.approx([2e-4] * len(record["seconds"]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_result_on_another_rank_is_not_timed_here(kind: str) -> None:
    record = run(kind, OtherRanks(FakeCuda(), wrong_there=True))
    assert (record["status"], record["seconds"]) == ("wrong", [])


def test_the_slowest_rank_counts() -> None:
    slower = OtherRanks(FakeCuda(launch_s=0.0), slower_there=2.0)
    assert run("all_reduce", slower)["seconds"][0] == pytest.approx(2e-4)


def test_many_calls_make_a_sample() -> None:
    others = OtherRanks(FakeCuda())
    run("all_reduce", others)
    assert others.calls >= 5 * CALLS


def test_cases_are_of_the_largest_group_first() -> None:
    cases = collective_cases((2, 4), (1024, 4096), on_cuda=True)
    assert [case["ranks"] for case in cases] == [4] * 6 + [2] * 6
    assert cases[0].id == "collective/nccl/all_reduce/bytes=1024,ranks=4"


def play(code: str) -> str:
    """Run code in a process of its own, because torch's workers import the main module."""
    path = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=path, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_collectives_among_two_and_three_processes_start_once() -> None:
    """For real, with gloo: the group of two is part of the group of three."""
    words = play(
        "import time\n"
        "from capacity_validate.collective_times import collective_cases, measure_collectives\n"
        "if __name__ == '__main__':\n"
        "    cases = collective_cases((2, 3), [4096, 65536], on_cuda=False)\n"
        "    run = measure_collectives(cases, devices=None, deadline=time.monotonic() + 60)\n"
        "    done = [one.measured for one in run.timed]\n"
        "    print(len(done), {c.status for c in done}, min(c.seconds for c in done))\n"
        "    print([c.case for c in done] == cases)\n"
        "    print(sum(c.bytes for c in done if c.case['ranks'] == 2), repr(run.failure))\n"
    ).split()
    assert words[:2] == ["12", "{'ok'}"]
    assert 0 < float(words[2]) < 1
    assert words[3] == "True"
    assert math.isclose(float(words[4]), 3 * (4096 + 65536))
    assert words[5:] == ["''"]


COMMUNICATOR = """
import torch.distributed as dist

class CudaCommunicator:
    def __init__(self, cpu_group, device=None, device_group=None, unique_name="", global_ranks=None,
                 global_world_size=None, tcp_store_group=None, use_all2all=False):
        assert unique_name.split(":")[0] == "tp"
        self.cpu_group, self.ca_comm, self.added = cpu_group, None, ADDED

    def all_reduce(self, input_):
        assert (input_.dim(), input_.element_size()) == (2, 2)
        total = input_ + self.added
        dist.all_reduce(total, group=self.cpu_group)
        return total

    def destroy(self):
        dist.barrier(group=self.cpu_group)  # as NCCL, it waits for all ranks
"""


STATUS_BY_ERROR = [("0", "ok"), ("1", "wrong"), (None, "unsupported")]


@pytest.mark.parametrize(("added", "status"), mostly_ci(STATUS_BY_ERROR, STATUS_BY_ERROR[:1]))
def test_all_reduce_of_an_engine_is_checked_and_timed(tmp_path: Path, added: str | None, status: str) -> None:
    """For real, with gloo, by a stand-in with the signatures of vLLM 0.33.0."""
    folder = tmp_path / "vllm" / "distributed" / "device_communicators"
    folder.mkdir(parents=True)
    if added is not None:
        (folder / "cuda_communicator.py").write_text(COMMUNICATOR.replace("ADDED", added))
    (measured,) = play(
        "import sys, time\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"  # which the ranks inherit
        "from capacity_validate.collective_times import collective_cases, measure_collectives\n"
        "if __name__ == '__main__':\n"
        "    cases = collective_cases((2, 3), [1024, 8192], on_cuda=True, engine='vllm@0.33')\n"
        "    cases = [case for case in cases if case.engine]\n"
        "    run = measure_collectives(cases, devices=None, deadline=time.monotonic() + 300)\n"
        "    print([(one.measured.case['ranks'], one.measured.status) for one in run.timed], run.failure)\n"
    ).splitlines()
    assert measured.strip() == str([(3, status), (2, status)])


@pytest.mark.ci  # seconds of imports
def test_no_collective_begins_after_the_deadline_and_a_worker_that_fails_is_one_line() -> None:
    words = play(
        "import time\n"
        "from capacity_validate.collective_times import collective_cases, make_case, measure_collectives\n"
        "if __name__ == '__main__':\n"
        "    cases = collective_cases((2,), [4096], on_cuda=False)\n"
        "    late = measure_collectives(cases, devices=None, deadline=time.monotonic())\n"
        "    print(len(late.timed), repr(late.failure))\n"
        "    wrong = [*cases[:1], make_case('collective', 'gloo', variant='all_gather', ranks=2, bytes=2**60)]\n"
        "    run = measure_collectives(wrong, devices=None, deadline=time.monotonic() + 60)\n"
        "    print(len(run.timed), run.failure)\n"
    ).splitlines()
    assert words[0] == "0 ''"
    assert words[1].startswith("1 ")  # what was measured before is kept
    assert "memory" in words[1]
    assert len(words) == 2


@pytest.mark.parametrize(("mib", "hinted"), [(64, True), (8192, False)])
def test_a_small_shared_memory_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, mib: int, hinted: bool
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=mib * 2**20))
    hint = shared_memory_hint()
    assert hint == ("; /dev/shm has 64 MiB, and NCCL needs more: docker run --shm-size=1g" if hinted else "")


class Opened(SimpleNamespace):
    def time_left_s(self) -> float:
        return 100.0

    def announce(self, stage: str) -> None: ...


def staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: tuple[int, ...], *, failure: str = ""
) -> tuple[StageResults, list[Any], MeasurementLog]:
    """Run the stage on a node where `devices` were chosen; return what it did, and the devices that it used."""
    asked: list[Any] = []

    def measure(cases: list[Case], *, devices: Any, deadline: float) -> CollectiveRun:
        asked.append((devices, len(cases), deadline > time.monotonic()))
        one = MeasuredCase(case=cases[0], status="ok", timing=summarise_samples([1e-4] * 5, "graph"))
        return CollectiveRun(
            timed=(TimedCollective(measured=one, began_s=0.0, ended_s=1.0),), failure=failure
        )

    monkeypatch.setattr(checks, "measure_collectives", measure)
    monkeypatch.setattr(
        checks, "make_telemetry", lambda _: Telemetry(lambda: Reading(at_s=0.5, sm_clock_hz=1.7e9))
    )
    log = MeasurementLog(tmp_path / "m.jsonl", {"environment": {}, "profile": "h200"})
    session = Opened(
        plan=load_campaign("standard").cuda,
        on_gpu=True,
        log=log,
        slowdown=1.0,
        facts=SimpleNamespace(collective_devices=devices),
    )
    results = StageResults()
    checks.collective_stage(session, results)  # type: ignore[arg-type]
    return results, asked, log


def test_collectives_use_the_chosen_devices_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, asked, log = staged(tmp_path, monkeypatch, (1, 3, 4))
    assert asked == [((1, 3, 4), 2 * 3 * 16, True)]  # groups of 2 and 3
    assert results.broken == []
    assert results.remarks == ["the budget covered 1 of 96 collectives"]
    (found,) = log.done.values()
    assert found.conditions is not None
    assert found.conditions["clock_hz"] == 1.7e9
    _, asked, _ = staged(tmp_path, monkeypatch, (1, 3, 4), failure="no space left on device")
    assert asked == [((1, 3, 4), 2 * 3 * 16 - 1, True)]  # what was measured is not measured again


def test_one_chosen_device_measures_no_collective_and_a_failure_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, asked, _ = staged(tmp_path, monkeypatch, (3,))
    assert asked == []
    assert "--device cuda:0,1 chooses two" in results.remarks[0]
    results, _, log = staged(tmp_path, monkeypatch, (0, 1), failure="no space left on device")
    assert results.broken == ["collectives failed: no space left on device"]
    assert len(log.done) == 1
