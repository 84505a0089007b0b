"""Timings of real collectives, as in nccl-tests: NCCL with two or more GPUs, gloo between CPU processes.

All ranks first check the result of one call. They then run many calls back to back in one CUDA graph between two
events, so that the time excludes launches and barrier skew; the time of the slowest rank is used. Collectives that can
work in place do so. Source: NVIDIA nccl-tests, doc/PERFORMANCE.md. The all-reduce of an installed engine is timed in
the same way, but as the engine calls it: on 16-bit rows of tokens, with a new tensor as its result.
"""

import datetime
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from capacity_validate.capture import GraphCapturer
from capacity_validate.cases import Case, MeasuredCase, make_case
from capacity_validate.failures import error_line
from capacity_validate.kernels import Unsupported, operators_module
from capacity_validate.timing import summarise_samples

KINDS = ("all_reduce", "all_gather", "send_recv")
WARM_UPS = 5
CALLS = 20  # back-to-back calls in one sample
SAMPLES = 5
TIMEOUT_S = 120
GRACE_S = 20.0  # after the deadline, for a message that has begun
VALUES = 1024  # period of the message's pattern
ROW_VALUES = 2048  # of a token in the message of an engine: the smallest hidden size of common models
EXACT_VALUES = (
    8  # period of that message's pattern: sums over 16 ranks stay below 256, so they are exact in bf16
)
ENGINE_START_S = 20.0  # to import an engine and start its communicator; assumed
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_BYTES = 2**30  # NCCL's buffers for a node with 8 GPUs; Docker's default is 64 MiB


def bus_bytes(kind: str, message_bytes: float, ranks: int) -> float:
    """Return the bytes that the busiest link carries; bytes / time is the bus bandwidth as nccl-tests define it.

    `message_bytes` is the message size per rank; in an all-gather, the size of one rank's part. In a send_recv, each
    rank sends to the next rank of a ring.
    """
    factors = {"all_reduce": 2.0 * (ranks - 1) / ranks, "all_gather": float(ranks - 1), "send_recv": 1.0}
    return factors[kind] * message_bytes


def rank_counts(devices: int) -> tuple[int, ...]:
    """Return the numbers of ranks to measure on a node: powers of two up to 16, and all devices."""
    return tuple(sorted({n for n in (2, 4, 8, 16) if n <= devices} | ({devices} if devices > 1 else set())))


def collective_cases(
    counts: Sequence[int], message_bytes: Sequence[int], *, on_cuda: bool, engine: str = ""
) -> list[Case]:
    """Return the cases of every group size, largest group first; then the all-reduces of `engine`, in whole rows."""
    kinds = [("nccl" if on_cuda else "gloo", kind, message_bytes) for kind in KINDS]
    rows = [size for size in message_bytes if size % (2 * ROW_VALUES) == 0]
    return [
        make_case("collective", kernel, variant=variant, ranks=ranks, bytes=size)
        for group in (kinds, [("all_reduce", engine, rows)] if engine else [])
        for ranks in sorted(counts, reverse=True)
        for kernel, variant, sizes in group
        for size in sizes
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCollective:
    """A measured collective, and when it began and ended (`time.monotonic`, which all processes share)."""

    measured: MeasuredCase
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRun:
    """The collectives that were measured before the deadline, and the reason if a process failed."""

    timed: tuple[TimedCollective, ...]
    failure: str = ""


def measure_collectives(
    cases: Sequence[Case], *, devices: Sequence[int] | None, deadline: float
) -> CollectiveRun:
    """Time the cases among one process per device (CUDA indices), or among CPU processes if `devices` is None.

    Processes start once, for the largest group. Each result is checked first. No case begins after `deadline` (a value
    of `time.monotonic`).
    """
    import torch.multiprocessing as processes

    ranks = max(case["ranks"] for case in cases)
    failure = ""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (tuple(cases), None if devices is None else tuple(devices), deadline, folder)
        group = processes.spawn(_worker, args=arguments, nprocs=ranks, join=False)
        try:
            while not group.join(timeout=1.0):
                if time.monotonic() > deadline + GRACE_S:
                    failure = f"the processes did not end within {GRACE_S:.0f} s of the deadline"
                    break
        except Exception as error:  # of a worker; its last line is the cause
            lines = str(error).strip().splitlines()
            failure = (lines[-1] if lines else error_line(error)) + shared_memory_hint()
        finally:
            for process in group.processes:
                process.kill()
        results = Path(folder) / "times.jsonl"
        records = results.read_text().splitlines() if results.exists() else []
        timed = tuple(_timed_collective(cases, json.loads(record)) for record in records)
    return CollectiveRun(timed=timed, failure=failure)


def shared_memory_hint() -> str:
    """Return a hint if the shared memory is too small for NCCL, as in containers with default settings."""
    if not SHARED_MEMORY.is_dir():
        return ""
    total = shutil.disk_usage(SHARED_MEMORY).total
    if total >= SHARED_MEMORY_BYTES:
        return ""
    return f"; {SHARED_MEMORY} has {total / 2**20:.0f} MiB, and NCCL needs more: docker run --shm-size=1g"


def _timed_collective(cases: Sequence[Case], record: dict[str, Any]) -> TimedCollective:
    case = cases[record["case"]]
    measured = MeasuredCase(case=case, status=record["status"], note=record.get("note", ""))
    if measured.status == "ok":
        measured = MeasuredCase(
            case=case,
            status="ok",
            timing=summarise_samples(record["seconds"], record["how"], calls=CALLS),
            bytes=bus_bytes(case.kernel if case.engine else case.variant, case["bytes"], case["ranks"]),
        )
    return TimedCollective(measured=measured, began_s=record["began_s"], ended_s=record["ended_s"])


def _worker(
    rank: int, cases: tuple[Case, ...], devices: tuple[int, ...] | None, deadline: float, folder: str
) -> None:
    import torch
    import torch.distributed as dist

    world = max(case["ranks"] for case in cases)
    device = torch.device("cpu") if devices is None else torch.device("cuda", devices[rank])
    if devices is not None:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=TIMEOUT_S)
    store = dist.FileStore(f"{folder}/rendezvous", world)
    dist.init_process_group(
        "gloo" if devices is None else "nccl",
        store=store,
        rank=rank,
        world_size=world,
        timeout=timeout,
        # with it, each new gloo group splits NCCL's communicator on all other ranks, and hangs (torch 2.13)
        device_id=None if devices is None or any(case.engine for case in cases) else device,
    )
    for record in _time_cases(torch, dist, cases, device, deadline):
        if rank == 0:
            with (Path(folder) / "times.jsonl").open("a") as file:
                file.write(json.dumps(record) + "\n")
    if rank == 0:
        store.set("done", "1")
    store.wait(["done"], datetime.timedelta(seconds=TIMEOUT_S + max(0.0, deadline - time.monotonic())))
    dist.destroy_process_group()


def _time_cases(
    torch: Any, dist: Any, cases: Sequence[Case], device: Any, deadline: float
) -> Iterator[dict[str, Any]]:
    """Yield the record of each case in which this rank takes part and that begins before the deadline."""
    rank, world = dist.get_rank(), dist.get_world_size()
    counts = sorted({case["ranks"] for case in cases}, reverse=True)
    groups = {n: None if n == world else dist.new_group(list(range(n))) for n in counts}
    engine = any(case.engine for case in cases)
    hosts = {n: dist.new_group(list(range(n)), backend="gloo") if engine else None for n in counts}
    communicators: dict[int, Any] = {}  # of an engine, by number of ranks; at most one
    for number, case in enumerate(cases):
        ranks, began_s = case["ranks"], time.monotonic()
        for other in [n for n in communicators if n != ranks]:
            communicators.pop(other).destroy()  # by all of its ranks, because NCCL waits for them
        if rank >= ranks:
            continue
        starts, group = bool(case.engine) and ranks not in communicators, groups[ranks]
        ready_s = began_s + (ENGINE_START_S if starts else 0.0)
        in_time = torch.tensor([1.0 if ready_s < deadline else 0.0], device=device)
        dist.all_reduce(in_time, op=dist.ReduceOp.MIN, group=group)
        if not in_time.item():
            continue
        try:
            if starts:
                communicators[ranks] = operators_module(case).communicator(hosts[ranks], device, group)
            make = partial(make_engine_message, communicators[ranks]) if case.engine else make_message
            one = make(torch, dist, case.variant, case["bytes"], device, group=group)
            record = time_on_all_ranks(torch, dist, one)
        except Unsupported as error:
            record = {"status": "unsupported", "note": str(error)}
        yield record | {"case": number, "began_s": began_s, "ended_s": time.monotonic()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One collective of one size on one rank, with functions that fill its buffers, run it, and check its result."""

    device: Any
    fill: Callable[[], None]
    call: Callable[[], object]
    right: Callable[[], bool]
    group: Any = None  # the ranks that take part; None: all
    capturing: Callable[[], AbstractContextManager[object]] = nullcontext  # around a graph's capture


def make_message(torch: Any, dist: Any, kind: str, size: int, device: Any, *, group: Any = None) -> Message:
    """Build a message with float32 buffers of integers that differ by rank and position, so that sums are exact."""
    rank, ranks = dist.get_rank(), dist.get_world_size(group)
    count = max(1, size // 4)
    pattern = torch.arange(count, device=device, dtype=torch.float32) % VALUES

    def pattern_of(owner: int) -> Any:
        return pattern * (owner + 1)

    fill: Callable[[], None]
    if kind == "all_reduce":
        own = torch.empty(count, device=device)
        fill = lambda: own.copy_(pattern_of(rank))  # noqa: E731
        call = lambda: dist.all_reduce(own, group=group)  # noqa: E731
        right = lambda: bool((own == pattern * (ranks * (ranks + 1) / 2)).all())  # noqa: E731
    elif kind == "all_gather":
        parts = torch.empty(ranks, count, device=device)
        fill = lambda: (parts.zero_(), parts[rank].copy_(pattern_of(rank)))[0]  # noqa: E731
        call = lambda: dist.all_gather_into_tensor(parts.view(-1), parts[rank], group=group)  # noqa: E731  # in place
        right = lambda: all(bool((parts[i] == pattern_of(i)).all()) for i in range(ranks))  # noqa: E731
    else:
        sent, received = torch.empty(count, device=device), torch.empty(count, device=device)
        before, after = (rank - 1) % ranks, (rank + 1) % ranks
        fill = lambda: (received.zero_(), sent.copy_(pattern_of(rank)))[0]  # noqa: E731
        call = lambda: _send_receive(dist, sent, after, received, before, group)  # noqa: E731
        right = lambda: bool((received == pattern_of(before)).all())  # noqa: E731
    return Message(device=device, fill=fill, call=call, right=right, group=group)


def make_engine_message(
    communicator: Any, torch: Any, dist: Any, _: str, size: int, device: Any, *, group: Any = None
) -> Message:
    """Build an all-reduce of rows of bf16 integers by an engine's communicator, as `make_message` does for torch."""
    rank, ranks = dist.get_rank(), dist.get_world_size(group)
    pattern = (torch.arange(size // 2, device=device) % EXACT_VALUES).to(torch.bfloat16).view(-1, ROW_VALUES)
    own = torch.empty_like(pattern)
    results: list[Any] = []

    def call() -> None:
        results[:] = [communicator.all_reduce(own)]

    return Message(
        device=device,
        group=group,
        fill=lambda: own.copy_(pattern + rank),
        call=call,
        right=lambda: bool((results[0] == pattern * ranks + ranks * (ranks - 1) / 2).all()),
        # the custom all-reduce exchanges the addresses of captured buffers afterwards
        capturing=getattr(communicator.ca_comm, "capture", nullcontext),
    )


def _send_receive(dist: Any, sent: Any, after: int, received: Any, before: int, group: Any) -> None:
    operations = [dist.P2POp(dist.isend, sent, after, group), dist.P2POp(dist.irecv, received, before, group)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def time_on_all_ranks(torch: Any, dist: Any, one: Message) -> dict[str, Any]:
    """Check the collective's result, then time it: a sample is the mean of repeated calls on the slowest rank.

    On GPUs the calls of a sample are one CUDA graph, as in an engine's decode step, if all ranks can capture it.
    Without a graph, the times of messages below about 1 MB are those of the kernel launches on the CPU.
    """
    one.fill()
    one.call()
    if not _holds_on_all_ranks(torch, dist, one, one.right()):
        note = "a rank received wrong data, so the collective was not timed"
        return {"status": "wrong", "seconds": [], "note": note}
    for _ in range(WARM_UPS):
        one.call()

    def make_calls() -> None:
        for _ in range(CALLS):
            one.call()

    many: Callable[[], object] = make_calls
    how = "wall time"
    if one.device.type != "cpu":
        how = "events"
        replay = _capture(torch, one, many)
        if _holds_on_all_ranks(torch, dist, one, replay is not None) and replay is not None:
            many, how = replay, "graph"
            many()
    own = [_back_to_back_s(torch, dist, one, many) for _ in range(SAMPLES)]
    slowest = torch.tensor(own, device=one.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=one.group)
    return {"status": "ok", "seconds": slowest.tolist(), "how": how}


def _holds_on_all_ranks(torch: Any, dist: Any, one: Message, here: bool) -> bool:
    everywhere = torch.tensor([1.0 if here else 0.0], device=one.device)
    dist.all_reduce(everywhere, op=dist.ReduceOp.MIN, group=one.group)
    return bool(everywhere.item())


def _capture(torch: Any, one: Message, many: Callable[[], object]) -> Callable[[], object] | None:
    """Return the replay of a CUDA graph of `many`; None if this torch or NCCL rejects the capture."""
    try:
        with one.capturing():
            graph, _ = GraphCapturer(torch, str(one.device)).capture(many)
    except RuntimeError:
        return None
    replay: Callable[[], object] = graph.replay
    return replay


def _back_to_back_s(torch: Any, dist: Any, one: Message, many: Callable[[], object]) -> float:
    """Return the mean seconds of the `CALLS` calls that `many` makes. Buffers are refilled first because repeated sums
    overflow floats."""
    one.fill()
    dist.barrier(group=one.group)
    if one.device.type == "cpu":
        start = time.perf_counter()
        many()
        return (time.perf_counter() - start) / CALLS
    torch.cuda.synchronize(one.device)
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    many()
    ended.record()
    torch.cuda.synchronize(one.device)
    return float(begun.elapsed_time(ended)) * 1e-3 / CALLS
