"""Memory-bound kernels: copies and reductions by size, norms, rope with cache write, gated activation, launches."""

from collections.abc import Callable
from functools import partial
from typing import Any

from capacity_validate.cases import Case
from capacity_validate.kernels import KernelContext, PreparedCase, Unsupported, relative_error

CHECK_ROWS = 64  # rows checked against a reference
SUM_PART_VALUES = 2**24  # values per part of a reference sum
CHAIN = 64  # tiny kernels in a row, to time a launch


def bandwidth(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare `copy` (reads and writes `bytes` bytes; both count as traffic) or `read` (sums `bytes` bytes)."""
    torch, count = bench.torch, case["bytes"] // 4
    copies = bench.copy_count(count * 4 * (2 if case.variant == "copy" else 1))
    sources = [bench.random(count, dtype=torch.float32) for _ in range(copies)]
    if case.variant == "copy":
        targets = [torch.empty_like(source) for source in sources]
        calls: list[Callable[[], Any]] = [
            partial(target.copy_, source) for source, target in zip(sources, targets, strict=True)
        ]
        return PreparedCase(
            calls=calls,
            check=lambda: 0.0 if bool((calls[0]() == sources[0]).all()) else float("inf"),
            bytes=8.0 * count,
        )
    calls = [source.sum for source in sources]

    def check() -> float:
        parts = sources[0].split(SUM_PART_VALUES)  # because the whole in float64 takes twice its size
        scale = sum(float(part.double().abs().sum()) for part in parts)
        return abs(float(calls[0]()) - sum(float(part.double().sum()) for part in parts)) / scale

    return PreparedCase(calls=calls, check=check, tolerance=1e-5, flops=float(count), bytes=4.0 * count)


def elementwise(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare one kernel (`norm`, `rope`, `activation`) or all of one layer (`layer`), with inputs in cache."""
    builders = {"norm": _norm, "rope": _rope, "activation": _activation, "layer": _layer}
    if case.variant not in builders:
        raise Unsupported(f"no elementwise kernel {case.variant!r}")
    return builders[case.variant](case, bench)


def _norm(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare a residual sum with an RMS norm, which reads two tensors and writes two."""
    from capacity_validate.kernels.fused import add_norm

    torch, rows, hidden, dtype = bench.torch, case["rows"], case["hidden"], bench.dtype(case.kernel)
    moved = 4 * rows * hidden * dtype.itemsize
    weight = bench.random(hidden, dtype=dtype)
    sets = [[bench.random(rows, hidden, dtype=dtype) for _ in range(2)] for _ in range(2)]
    calls = [partial(add_norm, x, residual, weight, 1e-6) for x, residual in sets]

    def check() -> float:
        x = sets[0][0][:CHECK_ROWS].double() + sets[0][1][:CHECK_ROWS].double()
        reference = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.double()
        return relative_error(torch, calls[0]()[0][:CHECK_ROWS], reference)

    return PreparedCase(calls=calls, check=check, flops=6.0 * rows * hidden, bytes=float(moved))


def _rope(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare rotary embedding of queries and keys, with the write of keys and values to the paged cache."""
    from capacity_validate.kernels.fused import rope_and_cache, rope_tables

    torch, rows, dtype = bench.torch, case["rows"], bench.dtype(case.kernel)
    heads, kv_heads, d, block = case["heads"], case["kv_heads"], case["head_dim"], 16
    slots = -(-rows // block) * block
    tables = rope_tables(d, 4096, base=10_000.0, device=bench.device, dtype=dtype)
    positions = torch.arange(rows, device=bench.device) % 4096
    slot = torch.randperm(slots, generator=bench.generator, device=bench.device)[:rows]
    moved = dtype.itemsize * rows * d * (2 * heads + 2 * kv_heads + 2 * kv_heads)

    def inputs() -> tuple[Any, ...]:
        q = bench.random(rows, heads, d, dtype=dtype)
        k, v = (bench.random(rows, kv_heads, d, dtype=dtype) for _ in range(2))
        caches = [
            torch.zeros(slots // block, block, kv_heads, d, dtype=dtype, device=bench.device)
            for _ in range(2)
        ]
        return q, k, v, *caches

    sets = [inputs() for _ in range(2)]

    def run(q: Any, k: Any, v: Any, keys: Any, values: Any) -> Any:
        return rope_and_cache(
            q, k, v, positions=positions, tables=tables, keys=keys, values=values, slots=slot
        )

    calls = [partial(run, *one) for one in sets]

    def check() -> float:
        q, k, _, keys, _ = sets[0]
        out = calls[0]()[:CHECK_ROWS]
        q, k = q[:CHECK_ROWS], k[:CHECK_ROWS]
        stored = keys.flatten(0, 1)[slot[:CHECK_ROWS]]
        rotated_q, rotated_k = (_reference_rope(torch, x, positions[:CHECK_ROWS]) for x in (q, k))
        return max(relative_error(torch, out, rotated_q), relative_error(torch, stored, rotated_k))

    return PreparedCase(
        calls=calls, check=check, flops=6.0 * rows * (heads + kv_heads) * d, bytes=float(moved)
    )


def _reference_rope(torch: Any, x: Any, positions: Any) -> Any:
    """Return the rotary embedding of x [tokens, heads, d] in float64, with base 10,000."""
    d = x.shape[-1]
    exponents = -torch.arange(0, d, 2, device=x.device, dtype=torch.float64) / d
    angle = positions.double()[:, None] * 10_000.0**exponents
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.double().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def _activation(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare SiLU(gate) · up, which reads two tensors and writes one."""
    from capacity_validate.kernels.fused import silu_and_mul

    torch, rows, width, dtype = bench.torch, case["rows"], case["intermediate"], bench.dtype(case.kernel)
    moved = 3 * rows * width * dtype.itemsize
    sets = [bench.random(rows, 2 * width, dtype=dtype) for _ in range(2)]
    calls = [partial(silu_and_mul, one) for one in sets]
    return PreparedCase(
        calls=calls,
        check=lambda: relative_error(
            torch, calls[0]()[:CHECK_ROWS], silu_and_mul(sets[0][:CHECK_ROWS].double().cpu())
        ),
        flops=4.0 * rows * width,
        bytes=float(moved),
    )


def _layer(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare the kernels between one layer's matrix multiplications: two norms, rope with cache write, activation."""
    norm, rope, activation = _norm(case, bench), _rope(case, bench), _activation(case, bench)

    def call() -> Any:
        norm.calls[0]()
        rope.calls[0]()
        norm.calls[1]()
        return activation.calls[0]()

    checks = [part.check for part in (norm, rope, activation) if part.check is not None]
    return PreparedCase(
        calls=[call],
        check=lambda: max(check() for check in checks),
        flops=2 * norm.flops + rope.flops + activation.flops,
        bytes=2 * norm.bytes + rope.bytes + activation.bytes,
    )


def launch(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare a chain of tiny kernels, timed as a whole: `eager` launches each, `graph` is one CUDA graph."""
    torch = bench.torch
    x = torch.zeros(case.get("values", 32), device=bench.device)

    def chain() -> Any:
        for _ in range(CHAIN):
            x.add_(1.0)
        return x

    if case.variant == "graph":
        if not bench.on_cuda:
            raise Unsupported("a CPU has no CUDA graphs")
        chain()
        graph, _ = bench.captures.capture(chain)
        # CUDA does not document capture of a graph launch, so never capture this
        return PreparedCase(calls=[graph.replay], capturable=False)

    return PreparedCase(calls=[chain], capturable=False)


def transfer(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare a copy of `bytes` bytes between host and GPU; the variant is `to device` or `to host`."""
    if not bench.on_cuda:
        raise Unsupported("a CPU has no separate device memory for transfers")
    torch, count = bench.torch, case["bytes"]
    host = torch.randint(0, 256, (count,), dtype=torch.uint8).pin_memory()
    device = host.to(bench.device)
    if case.variant == "to device":
        target, source = device, host
    else:
        target = host  # use the bench's generator, because a failed capture may break the default one
        source = torch.randint(
            0, 256, (count,), generator=bench.generator, dtype=torch.uint8, device=bench.device
        )

    def call() -> object:
        return target.copy_(source, non_blocking=True)

    def check() -> float:
        call()
        torch.cuda.synchronize(bench.device)
        return 0.0 if bool((target.cpu() == source.cpu()).all()) else float("inf")

    return PreparedCase(calls=[call], check=check, bytes=float(count))
