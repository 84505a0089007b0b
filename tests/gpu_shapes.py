"""Tensors of a GPU without one: torch's own shape rules run every operator, Triton's launches are taken down.

A CPU build of torch has everything but indexing for them (it wants the GPU's device guard), so indexing is spelt out in
operators here. A CUDA build asks the driver before it chooses FlashAttention: its shapes are told here, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
NO_CARD = (  # what builds of torch say where there is no card: a CPU build, then CUDA builds from 2.6 on
    "not linked with support for cuda",
    "No available kernel",
    "CUDA driver version is insufficient",
    "Found no NVIDIA driver",
)
CONVERSIONS = {
    torch.Tensor.float: torch.float32,
    torch.Tensor.double: torch.float64,
    torch.Tensor.long: torch.int64,
}


class SpeltIndexing(TorchFunctionMode):
    """`x[...]` and `x[...] = y` as slices, selections and gathers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            return indexed(*args)
        if func is torch.Tensor.__setitem__:
            return aten.copy_(indexed(*args[:2]), args[2])
        if func is torch.Tensor.copy_:
            return aten.copy_(*args, **(kwargs or {}))
        if func in CONVERSIONS or (func is torch.Tensor.to and isinstance(args[1], torch.dtype)):
            return aten._to_copy(args[0], dtype=CONVERSIONS.get(func) or args[1])
        if func is torch.Tensor.to and isinstance(args[1], str):
            return aten._to_copy(args[0], device=torch.device(args[1]))
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.unique:  # how many there are is no matter of shapes: as many as can be
            return args[0].flatten()
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError as error:
            if not any(sentence in str(error) for sentence in NO_CARD):
                raise
            if func is functional.scaled_dot_product_attention:
                return attended(*args, **(kwargs or {}))
            name = {"__invert__": "bitwise_not"}.get(func.__name__, func.__name__)
            return getattr(aten, name)(*args, **(kwargs or {}))


def attended(q: Any, k: Any, v: Any, *, enable_gqa: bool = False, **_: Any) -> Any:
    """What FlashAttention gives, in shapes, once it has been offered what it takes: half precision, one width."""
    assert {part.dtype for part in (q, k, v)} <= {torch.bfloat16, torch.float16}
    assert q.shape[-1] == k.shape[-1] == v.shape[-1] <= 256
    assert (q.shape[1] == k.shape[1]) or (enable_gqa and q.shape[1] % k.shape[1] == 0)
    return aten.empty_like(q)


def indexed(x: Any, index: Any) -> Any:
    parts = index if isinstance(index, tuple) else (index,)
    if Ellipsis in [part for part in parts if not isinstance(part, torch.Tensor)]:
        place = next(i for i, part in enumerate(parts) if part is Ellipsis)
        missing = x.dim() - sum(part is not None for part in parts) + 1
        parts = (*parts[:place], *[slice(None)] * missing, *parts[place + 1 :])
    dim = 0
    for part in parts:
        if part is None:
            x = aten.unsqueeze(x, dim)
        elif isinstance(part, int):
            x = aten.select.int(x, dim, part)
            continue
        elif isinstance(part, slice):
            x = aten.slice.Tensor(x, dim, part.start, part.stop, part.step or 1)
        else:
            x = aten.index.Tensor(x, [None] * dim + [part])
        dim += 1
    return x


class Launches:
    """Stands for a module of Triton kernels, or for one: launches are taken down with their grids and constants."""

    def __init__(self) -> None:
        self.taken: list[tuple[tuple[int, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Launches:
        if name.startswith("_"):
            raise AttributeError(name)
        return self

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **constants: Any) -> None:
            assert all(size > 0 for size in grid), grid
            tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
            assert {tensor.device.type for tensor in tensors} == {"cuda"}
            self.taken.append((grid, constants))

        return launch


class NoGenerator:
    """A GPU's generator is no object on a CPU build: shapes need none."""

    def __init__(self, device: Any = None) -> None: ...

    def manual_seed(self, _: int) -> None:
        return None


@contextmanager
def gpu_shapes(monkeypatch: Any, *, capability: tuple[int, int] = (9, 0)) -> Iterator[Launches]:
    """Inside: `device="cuda:0"` makes tensors of shapes alone."""
    from types import SimpleNamespace

    from capacity_validate.kernels import fused, paged

    launches = Launches()
    card = SimpleNamespace(multi_processor_count=132, major=capability[0], minor=capability[1])
    for module in (fused, paged):
        monkeypatch.setattr(module, "load_triton_kernels", lambda: launches)
    monkeypatch.setattr(torch, "Generator", NoGenerator)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _=None: card)
    monkeypatch.setattr(torch.backends.cuda, "can_use_flash_attention", lambda *_: False)  # asks the driver
    paged._split_count.cache_clear()
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode())
        stack.enter_context(SpeltIndexing())
        yield launches
    paged._split_count.cache_clear()
