"""Copies between host and device, from pinned memory: what swapping KV costs."""

from __future__ import annotations

from capacity_validate.cases import Case
from capacity_validate.kernels.prepared import Bench, Prepared, Unsupported


def transfer(case: Case, bench: Bench) -> Prepared:
    """`to device` or `to host`, `bytes` at a time."""
    if not bench.on_cuda:
        raise Unsupported("a CPU has no second memory to copy to")
    torch, count = bench.torch, case["bytes"]
    host = torch.randint(0, 256, (count,), dtype=torch.uint8).pin_memory()
    device = host.to(bench.device)
    if case.variant == "to device":
        target, source = device, host
    else:
        target = host  # and the bench's generator: a refused capture may leave the default one unusable
        source = torch.randint(
            0, 256, (count,), generator=bench.generator, dtype=torch.uint8, device=bench.device
        )

    def call() -> object:
        return target.copy_(source, non_blocking=True)

    def check() -> float:
        call()
        torch.cuda.synchronize(bench.device)
        return 0.0 if bool((target.cpu() == source.cpu()).all()) else float("inf")

    return Prepared(calls=[call], check=check, tolerance=0.0, flops=0.0, bytes=float(count))
