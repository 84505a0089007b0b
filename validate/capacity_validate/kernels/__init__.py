"""Real kernels to measure. Each operator has a builder of the inputs, the timed calls, and a check of the result."""

import importlib
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from capacity.base.errors import InvalidInput
from capacity_validate.capture import GraphCapturer
from capacity_validate.cases import OPERATORS, Case
from capacity_validate.failures import error_line, is_out_of_memory
from capacity_validate.timing import rotations

MODULES = {operator: table["module"] for operator, table in OPERATORS.items() if "module" in table}
TRITON = "triton"  # key in `missing` of all kernels that Triton compiles
CPU_POOL_BYTES = 96 * 2**20  # size of the small model's weights, larger than any private cache


class Unsupported(Exception):
    """Raised if this torch build or device lacks a kernel; the message names what is missing."""


@dataclass(frozen=True)
class KernelContext:
    """The device and settings that a case runs with."""

    torch: Any
    device: str
    cache_bytes: int
    generator: Any
    memory_limit_bytes: float
    missing: Mapping[str, str] = field(default_factory=dict)  # missing formats or TRITON, with the reason

    @property
    def on_cuda(self) -> bool:
        return self.device != "cpu"

    @property
    def capability(self) -> int:
        """Return the compute capability as in vLLM, 90 for 9.0; 0 on a CPU."""
        major, minor = self.torch.cuda.get_device_capability(self.device) if self.on_cuda else (0, 0)
        return int(10 * major + minor)

    def copy_count(self, bytes_per_set: int) -> int:
        """Return how many input sets to allocate, so that calls that rotate over them find no data in the cache."""
        if not self.on_cuda:
            return max(1, min(64, -(-CPU_POOL_BYTES // max(1, bytes_per_set))))
        wanted = rotations(bytes_per_set, self.cache_bytes)
        return max(1, min(wanted, int(self.memory_limit_bytes // max(1, bytes_per_set))))

    def random(self, *shape: int, dtype: Any, scale: float = 1.0) -> Any:
        """Return normally distributed values. (With zeros, kernels would run faster than on real data.)"""
        values = self.torch.empty(*shape, device=self.device, dtype=dtype)
        return values.normal_(0.0, scale, generator=self.generator)

    def rotating_tensors(self, count: int, *shape: int, dtype: Any, part: int = 0) -> list[Any]:
        """Return `count` random tensors to rotate over. On a CPU, fp32 tensors share one pool to save fill time."""
        if self.on_cuda or dtype != self.torch.float32:
            few = count if self.on_cuda else min(count, 6)
            return [self.random(*shape, dtype=dtype) for _ in range(few)]
        pool = self._pool
        size = math.prod(shape)
        span = pool.numel() - size
        if span <= 0:
            return [self.random(*shape, dtype=dtype)]
        step = max(64, span // max(1, count) // 64 * 64)
        starts = [((i * step) + part * step // 2) % span for i in range(count)]
        return [pool[start : start + size].view(*shape) for start in starts]

    @cached_property
    def captures(self) -> GraphCapturer:
        """Return the object that captures CUDA graphs, for cases that time the launch of a graph."""
        return GraphCapturer(self.torch, self.device)

    @property
    def spoiled(self) -> bool:
        """Return whether a failed capture left this process unable to use the device."""
        return "captures" in vars(self) and self.captures.spoiled

    @cached_property
    def _pool(self) -> Any:
        return self.random(CPU_POOL_BYTES // 4, dtype=self.torch.float32)

    def dtype(self, kernel: str) -> Any:
        names = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
        return getattr(self.torch, names.get(kernel, "bfloat16"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCase:
    """A case ready to time. `calls` run the kernel on different inputs in turn; `check` returns the relative error,
    which must not exceed `tolerance`."""

    calls: Sequence[Callable[[], object]]
    check: Callable[[], float] | None = None
    tolerance: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    extra_bytes: Callable[[], float] | None = None
    capturable: bool = True  # a CUDA graph can capture it: no call waits for the device
    sustained_s: float | None = None  # run back to back for this time instead of a few ms
    note: str = ""


def attempt(call: Callable[[], Any]) -> None:
    """Run a kernel once. Raises Unsupported if this build or device rejects it; re-raises an out-of-memory error."""
    try:
        call()
    except (RuntimeError, NotImplementedError, ValueError, AttributeError) as error:
        if is_out_of_memory(error):
            raise
        raise Unsupported(error_line(error)) from error


def import_optional(module: str) -> Any:
    """Import a module of another package. Raises Unsupported if it is not installed or fails to load."""
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        raise Unsupported(f"{module} is not installed here ({error})") from None


def missing_part(case: Case, missing: Mapping[str, str]) -> str | None:
    """Return why this device cannot run a case (`missing`: number formats and Triton, with reasons); None if it can."""
    compiled = case.variant in OPERATORS[case.operator].get(TRITON, ())
    return missing.get(case.kernel) or (missing.get(TRITON) if compiled else None)


def operators_module(case: Case) -> Any:
    """Return the module with the operator of a case: the harness's own, or that of an installed engine."""
    name = f"{case.engine.partition('@')[0]}_operators" if case.engine else MODULES[case.operator]
    return importlib.import_module(f"{__name__}.{name}")


def prepare(case: Case, bench: KernelContext) -> PreparedCase:
    """Return a case with its inputs and calls. Raises Unsupported if this build or device cannot run it."""
    if case.operator not in MODULES:
        raise InvalidInput(f"no kernel for operator {case.operator!r}; known: {', '.join(MODULES)}")
    if (reason := missing_part(case, bench.missing)) is not None:
        raise Unsupported(reason)
    builder: Callable[[Case, KernelContext], PreparedCase] = getattr(operators_module(case), case.operator)
    prepared = builder(case, bench)
    tolerance = OPERATORS[case.operator].get("tolerance")
    return prepared if tolerance is None else replace(prepared, tolerance=case.of_format(tolerance))


def relative_error(torch: Any, out: Any, reference: Any) -> float:
    """Return norm(out - reference) / norm(reference), Frobenius norms in float64; infinity if the result has NaN."""
    out, reference = out.detach().double(), reference.detach().double().to(out.device)
    error = float(
        torch.linalg.vector_norm(out - reference) / torch.linalg.vector_norm(reference).clamp_min(1e-30)
    )
    return math.inf if math.isnan(error) else error


def live_peak_bytes(torch: Any, call: Callable[[], object]) -> float:
    """Return the peak bytes of tensors that a call creates; this distinguishes O(N) from O(N^2) attention memory.

    Tensors are observed at torch's operator dispatch: a storage counts from its first tensor until the last one is
    freed. A kernel's internal scratch memory is excluded.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    tensors: dict[int, int] = {}  # number of live tensors by storage
    inputs: set[int] = set()
    live = peak = 0

    def forget(key: int, size: int) -> None:
        nonlocal live
        tensors[key] -= 1
        if not tensors[key]:
            live -= size

    def count(tensor: Any) -> None:
        nonlocal live, peak
        storage = tensor.untyped_storage()
        key, size = storage.data_ptr(), storage.nbytes()
        if key in inputs:
            return
        if not tensors.get(key):
            live += size
            peak = max(peak, live)
        tensors[key] = tensors.get(key, 0) + 1
        weakref.finalize(tensor, forget, key, size).atexit = False

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            for tensor in filter(torch.is_tensor, tree_iter((args, kwargs))):
                key = tensor.untyped_storage().data_ptr()
                if not tensors.get(key):
                    inputs.add(key)
            out = func(*args, **(kwargs or {}))
            for tensor in filter(torch.is_tensor, tree_iter(out)):
                count(tensor)
            return out

    with Watch():
        call()
    return float(peak)


def peak_bytes(bench: KernelContext, call: Callable[[], object]) -> float:
    """Return the peak bytes of a call in addition to its inputs: allocator peak on a GPU, live tensors on a CPU."""
    if not bench.on_cuda:
        return live_peak_bytes(bench.torch, call)
    cuda = bench.torch.cuda
    cuda.synchronize(bench.device)
    before = cuda.memory_allocated(bench.device)
    cuda.reset_peak_memory_stats(bench.device)
    call()
    cuda.synchronize(bench.device)
    return float(cuda.max_memory_allocated(bench.device) - before)
