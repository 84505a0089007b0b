"""Collectives for real: NCCL where there are two GPUs or more, gloo between two processes on a CPU."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capacity_validate.cases import MeasuredCase, make_case
from capacity_validate.timing import summarise_samples

KINDS = ("all_reduce", "all_gather", "send_recv")
REPETITIONS = 20
TIMEOUT_S = 120


def measure_collectives(*, ranks: int, on_cuda: bool, message_bytes: Sequence[int]) -> list[MeasuredCase]:
    """Every kind at every size among `ranks` processes, checked for the right sum before it is timed."""
    import torch.multiprocessing as processes

    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(_worker, args=(ranks, on_cuda, tuple(message_bytes), folder), nprocs=ranks, join=True)
        records = json.loads((Path(folder) / "times.json").read_text())
    backend = "nccl" if on_cuda else "gloo"
    return [
        MeasuredCase(
            case=make_case("collective", backend, variant=kind, ranks=ranks, bytes=size),
            status="ok" if right else "wrong",
            timing=summarise_samples(samples, "wall time") if right else None,
            bytes=float(size),
        )
        for kind, size, right, samples in records
    ]


def _worker(rank: int, ranks: int, on_cuda: bool, sizes: tuple[int, ...], folder: str) -> None:
    import datetime

    import torch
    import torch.distributed as dist

    device = f"cuda:{rank}" if on_cuda else "cpu"
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
    )
    records = [(kind, size, *_time(torch, dist, kind, size, device)) for kind in KINDS for size in sizes]
    if rank == 0:
        (Path(folder) / "times.json").write_text(json.dumps(records))
    dist.barrier()
    dist.destroy_process_group()


def _time(torch: Any, dist: Any, kind: str, size: int, device: str) -> tuple[bool, list[float]]:
    import time

    rank, ranks = dist.get_rank(), dist.get_world_size()
    values = torch.full((max(1, size // 4),), float(rank + 1), device=device)
    parts = [torch.empty_like(values) for _ in range(ranks)]

    def call() -> Any:
        if kind == "all_reduce":
            own = values.clone()
            dist.all_reduce(own)
            return own
        if kind == "all_gather":
            dist.all_gather(parts, values)
            return parts[-1]
        if rank == 0:
            dist.send(values, 1)
            return values + 1
        if rank == 1:
            dist.recv(parts[0], 0)
            return parts[0] + 1
        return values * 0 + 2

    expected = {"all_reduce": ranks * (ranks + 1) / 2, "all_gather": float(ranks), "send_recv": 2.0}[kind]
    right = bool((call() == expected).all())
    samples = []
    for _ in range(REPETITIONS):
        dist.barrier()
        if device != "cpu":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize(device)
        samples.append(time.perf_counter() - start)
    return right, samples
