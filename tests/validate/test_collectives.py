"""Collectives: bus bandwidth by nccl-tests' definition, and what one rank would have hidden from the others."""

import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.collective_times import (  # noqa: E402
    CALLS,
    KINDS,
    bus_bytes,
    make_message,
    rank_counts,
    time_on_all_ranks,
)
from fake_cuda import FakeCuda  # noqa: E402

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

    def __init__(self, fake: FakeCuda, *, wrong_there: bool = False, slower_there: float = 1.0) -> None:
        self.fake, self.wrong_there, self.slower_there = fake, wrong_there, slower_there
        self.calls = 0

    def get_rank(self) -> int:
        return 0

    def get_world_size(self) -> int:
        return 2

    def barrier(self) -> None:
        self.fake.now_s += 0.5  # whatever the skew: it must not be in the time

    def all_reduce(self, values: Any, op: str = "sum") -> None:
        if op == "min":
            values.fill_(0.0 if self.wrong_there else float(values))
        elif op == "max":
            values.mul_(self.slower_there)
        else:
            self.calls += 1
            self.fake.now_s += 1e-4
            values.mul_(3.0)

    def all_gather_into_tensor(self, out: Any, own: Any) -> None:
        assert own.data_ptr() == out.data_ptr(), "not in place"
        self.fake.now_s += 1e-4
        out.view(2, -1)[1].copy_(own * 2)

    def P2POp(self, kind: str, values: Any, peer: int) -> tuple[str, Any]:  # noqa: N802
        assert peer == 1
        return kind, values

    def batch_isend_irecv(self, operations: list[tuple[str, Any]]) -> list[Any]:
        (_, sent), (_, received) = operations
        self.fake.now_s += 1e-4
        received.copy_(sent * 2)
        return [SimpleNamespace(wait=lambda: None)]


class Device(SimpleNamespace):
    type = "cuda"


def run(kind: str, others: OtherRanks) -> dict[str, Any]:
    fake_torch = SimpleNamespace(
        cuda=others.fake.torch.cuda,
        tensor=lambda values, device: torch.tensor(values),  # noqa: ARG005
    )
    one = make_message(torch, others, kind, 4096, torch.device("cpu"))
    played = type(one)(
        **{name: getattr(one, name) for name in ("kind", "bytes", "fill", "call", "right")}, device=Device()
    )
    return time_on_all_ranks(fake_torch, others, played)


@pytest.mark.parametrize("kind", KINDS)
def test_the_time_is_of_the_calls_alone(kind: str) -> None:
    """Not of the barrier, of filling buffers, or of launches from the host: 0.1 ms each on the device."""
    record = run(kind, OtherRanks(FakeCuda()))
    assert record["right"]
    assert record["seconds"] == pytest.approx([1e-4] * len(record["seconds"]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_result_on_another_rank_is_not_timed_here(kind: str) -> None:
    record = run(kind, OtherRanks(FakeCuda(), wrong_there=True))
    assert (record["right"], record["seconds"]) == (False, [])


def test_the_slowest_rank_counts() -> None:
    assert run("all_reduce", OtherRanks(FakeCuda(), slower_there=2.0))["seconds"][0] == pytest.approx(2e-4)


def test_many_calls_make_a_sample() -> None:
    others = OtherRanks(FakeCuda())
    run("all_reduce", others)
    assert others.calls >= 5 * CALLS


def test_collectives_between_two_processes() -> None:
    """For real, with gloo; in a process of its own: torch's workers import the main module."""
    code = (
        "from capacity_validate.collective_times import measure_collectives\n"
        "if __name__ == '__main__':\n"
        "    cases = measure_collectives(ranks=2, on_cuda=False, message_bytes=[4096, 65536])\n"
        "    print(len(cases), {c.status for c in cases}, min(c.seconds for c in cases), sum(c.bytes for c in cases))\n"
    )
    path = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=path, check=False
    )
    words = done.stdout.split()
    assert words[:2] == ["6", "{'ok'}"], done.stderr
    assert 0 < float(words[2]) < 1
    assert math.isclose(float(words[3]), 3 * (4096 + 65536))
