"""Timings of real collectives, as in nccl-tests: NCCL with two or more GPUs, gloo between CPU processes.

All ranks first check the result of one call. They then run many calls back to back between two events, so that the
time excludes launches and barrier skew; the time of the slowest rank is used. Collectives that can work in place do
so. Source: NVIDIA nccl-tests, doc/PERFORMANCE.md.
"""

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capacity_validate.cases import MeasuredCase, make_case
from capacity_validate.timing import How, summarise_samples

KINDS = ("all_reduce", "all_gather", "send_recv")
WARM_UPS = 5
CALLS = 20  # back-to-back calls in one sample
SAMPLES = 5
TIMEOUT_S = 120
VALUES = 1024  # period of the message's pattern


def bus_bytes(kind: str, message_bytes: float, ranks: int) -> float:
    """Return the bytes that the busiest link carries; bytes / time is the bus bandwidth as nccl-tests define it.

    `message_bytes` is the message size per rank; in an all-gather, the size of one rank's part. In a send_recv, each
    rank sends to the next rank of a ring.
    """
    factors = {"all_reduce": 2.0 * (ranks - 1) / ranks, "all_gather": float(ranks - 1), "send_recv": 1.0}
    return factors[kind] * message_bytes


def rank_counts(devices: int) -> tuple[int, ...]:
    """Return the group sizes to measure on a node: powers of two up to 16, and all devices."""
    return tuple(sorted({n for n in (2, 4, 8, 16) if n <= devices} | ({devices} if devices > 1 else set())))


def measure_collectives(*, ranks: int, on_cuda: bool, message_bytes: Sequence[int]) -> list[MeasuredCase]:
    """Return the times of every collective at every size among `ranks` processes; each result is checked first."""
    import torch.multiprocessing as processes

    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(_worker, args=(ranks, on_cuda, tuple(message_bytes), folder), nprocs=ranks, join=True)
        records = json.loads((Path(folder) / "times.json").read_text())
    backend, how = ("nccl", "events") if on_cuda else ("gloo", "wall time")
    return [_measured_case(backend, how, ranks, record) for record in records]  # type: ignore[arg-type]


def _measured_case(backend: str, how: How, ranks: int, record: dict[str, Any]) -> MeasuredCase:
    case = make_case("collective", backend, variant=record["kind"], ranks=ranks, bytes=record["bytes"])
    if not record["right"]:
        return MeasuredCase(case=case, status="wrong", note="a rank received wrong data, so it was not timed")
    return MeasuredCase(
        case=case,
        status="ok",
        timing=summarise_samples(record["seconds"], how, calls=CALLS),
        bytes=bus_bytes(record["kind"], record["bytes"], ranks),
    )


def _worker(rank: int, ranks: int, on_cuda: bool, sizes: tuple[int, ...], folder: str) -> None:
    import datetime

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if on_cuda else "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
        device_id=device if on_cuda else None,
    )
    records = [
        time_on_all_ranks(torch, dist, make_message(torch, dist, kind, size, device))
        for kind in KINDS
        for size in sizes
    ]
    if rank == 0:
        (Path(folder) / "times.json").write_text(json.dumps(records))
    dist.barrier()
    dist.destroy_process_group()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One collective of one size on one rank, with functions that fill its buffers, run it, and check its result."""

    kind: str
    bytes: int
    device: Any
    fill: Callable[[], None]
    call: Callable[[], object]
    right: Callable[[], bool]


def make_message(torch: Any, dist: Any, kind: str, size: int, device: Any) -> Message:
    """Build a message with float32 buffers of integers that differ by rank and position, so that sums are exact."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = max(1, size // 4)
    pattern = torch.arange(count, device=device, dtype=torch.float32) % VALUES

    def pattern_of(owner: int) -> Any:
        return pattern * (owner + 1)

    fill: Callable[[], None]
    if kind == "all_reduce":
        own = torch.empty(count, device=device)
        fill = lambda: own.copy_(pattern_of(rank))  # noqa: E731
        call = lambda: dist.all_reduce(own)  # noqa: E731
        right = lambda: bool((own == pattern * (ranks * (ranks + 1) / 2)).all())  # noqa: E731
    elif kind == "all_gather":
        parts = torch.empty(ranks, count, device=device)
        fill = lambda: (parts.zero_(), parts[rank].copy_(pattern_of(rank)))[0]  # noqa: E731
        call = lambda: dist.all_gather_into_tensor(parts.view(-1), parts[rank])  # noqa: E731  # in place
        right = lambda: all(bool((parts[i] == pattern_of(i)).all()) for i in range(ranks))  # noqa: E731
    else:
        sent, received = torch.empty(count, device=device), torch.empty(count, device=device)
        before, after = (rank - 1) % ranks, (rank + 1) % ranks
        fill = lambda: (received.zero_(), sent.copy_(pattern_of(rank)))[0]  # noqa: E731
        call = lambda: _send_receive(dist, sent, after, received, before)  # noqa: E731
        right = lambda: bool((received == pattern_of(before)).all())  # noqa: E731
    return Message(kind=kind, bytes=size, device=device, fill=fill, call=call, right=right)


def _send_receive(dist: Any, sent: Any, after: int, received: Any, before: int) -> None:
    operations = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, received, before)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def time_on_all_ranks(torch: Any, dist: Any, one: Message) -> dict[str, Any]:
    """Check the collective's result, then time it: a sample is the mean of repeated calls on the slowest rank."""
    one.fill()
    one.call()
    verdict = torch.tensor([1.0 if one.right() else 0.0], device=one.device)
    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
    record = {"kind": one.kind, "bytes": one.bytes, "right": bool(verdict.item()), "seconds": []}
    if not record["right"]:
        return record
    for _ in range(WARM_UPS):
        one.call()
    own = [_back_to_back_s(torch, dist, one) for _ in range(SAMPLES)]
    slowest = torch.tensor(own, device=one.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return {**record, "seconds": slowest.tolist()}


def _back_to_back_s(torch: Any, dist: Any, one: Message) -> float:
    """Return the mean seconds of `CALLS` calls. Buffers are refilled first because repeated sums overflow floats."""
    one.fill()
    dist.barrier()
    if one.device.type == "cpu":
        start = time.perf_counter()
        for _ in range(CALLS):
            one.call()
        return (time.perf_counter() - start) / CALLS
    torch.cuda.synchronize(one.device)
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    for _ in range(CALLS):
        one.call()
    ended.record()
    torch.cuda.synchronize(one.device)
    return float(begun.elapsed_time(ended)) * 1e-3 / CALLS
