# ruff: noqa: ARG002, ARG005
"""A stand-in for torch with CUDA, on a clock of its own: streams, events, graphs, memory, sticky errors, two devices.

It follows what torch 2.11 does where that hurts: `torch.cuda.graph` leaves its stream only where `capture_end`
succeeds; a refused capture stays "underway" so that `empty_cache` asserts (mended in 2.12); work of a broken context
raises the same error for good. Source: pytorch, CUDAGraph.cpp, CUDACachingAllocator.cpp and torch/cuda/graphs.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

GIB = 2**30
REFUSED = "CUDA error: operation not permitted when stream is capturing"
ILLEGAL = "CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA"
UNDERWAY = "captures_underway.empty() INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp"

PoolId = tuple[int, int]


class OutOfMemoryError(RuntimeError):
    """As torch.OutOfMemoryError."""


@dataclass(kw_only=True)
class FakeDevice:
    """One card. `used_bytes` counts everybody's memory, the allocator's cache included."""

    name: str = "NVIDIA H200"
    major: int = 9
    minor: int = 0
    sms: int = 132
    total_bytes: int = 140 * GIB
    used_bytes: int = GIB // 2
    cached_bytes: int = 0
    uuid: str = "6d1f7a4e-0000-0000-0000-000000000001"


@dataclass
class Stream:
    """A stream by number; 0 is the default stream."""

    fake: FakeCuda
    number: int
    capture: Graph | None = None

    def wait_stream(self, other: Stream) -> None:
        self.fake.touch()

    def synchronize(self) -> None:
        self.fake.synchronize()


@dataclass
class Graph:
    """What a capture recorded. A refused one has no seconds to replay."""

    fake: FakeCuda
    seconds: list[float] = field(default_factory=list)
    work: list[Callable[[], object]] = field(default_factory=list)
    stream: Stream | None = None
    pool_id: PoolId = (0, 0)
    device: int = 0
    invalid: bool = False
    ended: bool = False

    def capture_begin(self, pool: PoolId | None = None, capture_error_mode: str = "global") -> None:
        assert capture_error_mode in ("global", "thread_local", "relaxed")
        self.fake.touch()
        stream = self.fake.stream
        if stream.number == 0:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        self.fake.captures += 1
        self.pool_id = pool or self.fake.new_pool()
        self.device = self.fake.index
        self.fake.underway.append((self.device, self.pool_id))
        self.fake.pools[self.pool_id] = self.fake.pools.get(self.pool_id, 0) + 1
        if stream.capture is not None:
            raise RuntimeError(REFUSED)
        stream.capture = self
        self.stream = stream
        if self.fake.capture_fails:
            self.invalid = True

    def capture_end(self) -> None:
        if self.stream is None or self.fake.stream is not self.stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        self.stream.capture = None
        if self.invalid and self.fake.version < (2, 12):
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self.fake.end_allocation(self.device, self.pool_id)
        if self.invalid:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self.ended = True

    def replay(self) -> None:
        self.fake.touch()
        if not self.ended:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        if (capturing := self.fake.stream.capture) is not None:
            capturing.invalid = True
            raise RuntimeError(REFUSED)
        for call in self.work:
            call()
        self.fake.now_s += sum(self.seconds) + self.fake.launch_s

    def pool(self) -> PoolId:
        assert self.ended
        return self.pool_id

    def reset(self) -> None:
        if self.ended:
            self.fake.release_pool(self.device, self.pool_id)
            self.ended = False


class FakeCuda:
    """Kernels take the time that they say; capturing records them instead of running them. `torch` is the module."""

    def __init__(
        self,
        *,
        devices: tuple[FakeDevice, ...] = (),
        version: tuple[int, int] = (2, 11),
        launch_s: float = 5e-6,
        capture_fails: bool = False,
        private_ends: bool = True,
    ) -> None:
        self.devices = devices or (FakeDevice(),)
        self.version = version
        self.launch_s = launch_s
        self.capture_fails = capture_fails
        self.now_s = 0.0
        self.captures = 0
        self.streams_made = 0
        self.cache_emptied = 0
        self.broken: str | None = None
        self.underway: list[tuple[int, PoolId]] = []  # by device
        self.pools: dict[PoolId, int] = {}
        self._numbers = itertools.count(1)
        self._default = Stream(self, 0)
        self.stream = self._default
        self.index = 0
        self.torch = self._module(private_ends=private_ends)

    # what a test plays

    def kernel(
        self,
        seconds: float = 1e-5,
        *,
        waits: bool = False,
        breaks: str | None = None,
        fails: str | None = None,
        bytes: int = 0,
        work: Callable[[], object] | None = None,
    ) -> Callable[[], object]:
        """A call: `waits` for the device as `.item()` does, `breaks` the context, `fails` alone, takes `bytes`."""

        def call() -> object:
            self.touch()
            if bytes:
                self.allocate(bytes)
            if waits:
                self.synchronize()
            if fails is not None:
                raise RuntimeError(fails)
            if breaks is not None:
                self.broken = breaks
                raise RuntimeError(breaks)
            if (capture := self.stream.capture) is not None:
                capture.seconds.append(seconds)
                if work is not None:
                    capture.work.append(work)
                return None
            self.now_s += seconds + self.launch_s
            return None if work is None else work()

        return call

    def allocate(self, bytes: int) -> None:
        """Memory for good. Raises OutOfMemoryError; before that the cache is given back, as torch does."""
        device = self.devices[self.index]
        if device.used_bytes + bytes > device.total_bytes:
            self.empty_cache()
        if device.used_bytes + bytes > device.total_bytes:
            raise OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {bytes / GIB:.2f} GiB.\nGPU 0 has a total capacity of"
            )
        device.used_bytes += bytes

    # what torch does

    def touch(self) -> None:
        """Every call of the runtime reports an error that is sticky."""
        if self.broken is not None:
            raise RuntimeError(self.broken)

    def synchronize(self, device: Any = None) -> None:
        self.touch()
        if (capture := self.stream.capture) is not None:
            capture.invalid = True
            raise RuntimeError(REFUSED)

    def empty_cache(self) -> None:
        self.touch()
        if self.underway:
            raise RuntimeError(UNDERWAY)
        self.cache_emptied += 1
        device = self.devices[self.index]
        device.used_bytes -= device.cached_bytes
        device.cached_bytes = 0

    def new_pool(self) -> PoolId:
        return (0, next(self._numbers))

    def end_allocation(self, device: int, pool: PoolId) -> None:
        if (device, pool) not in self.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove((device, pool))

    def release_pool(self, device: int, pool: PoolId) -> None:
        self.pools[pool] -= 1
        assert self.pools[pool] >= 0, "a pool was released twice"

    def _new_stream(self, device: Any = None) -> Stream:
        self.touch()
        self.streams_made += 1
        return Stream(self, next(self._numbers))

    @contextmanager
    def _on_stream(self, stream: Stream) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def _graph_context(self) -> type:
        fake = self

        class CaptureContext:
            """`torch.cuda.graph`: after a refusal the stream context is not left."""

            def __init__(
                self, graph: Graph, pool: PoolId | None = None, stream: Stream | None = None
            ) -> None:
                self.graph, self.pool, self.target = graph, pool, stream or fake._new_stream()

            def __enter__(self) -> None:
                fake.synchronize()
                fake.empty_cache()
                self.before, fake.stream = fake.stream, self.target
                self.graph.capture_begin(pool=self.pool)

            def __exit__(self, *_: object) -> None:
                self.graph.capture_end()
                fake.stream = self.before

        return CaptureContext

    def _module(self, *, private_ends: bool) -> Any:
        fake = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self, stream: Any = None) -> None:
                fake.touch()
                self.at_s = fake.now_s

            def synchronize(self) -> None:
                fake.touch()

            def elapsed_time(self, other: Event) -> float:
                fake.touch()
                return (other.at_s - self.at_s) * 1e3

        class Tensor:
            """Enough of one for a canary."""

            def __init__(self, *_: Any, device: Any = None, **__: Any) -> None:
                fake.touch()
                self.value = 0.0

            def add_(self, value: float) -> Tensor:
                fake.kernel(1e-6, work=lambda: setattr(self, "value", self.value + value))()
                return self

            def item(self) -> float:
                fake.synchronize()
                return self.value

            def __float__(self) -> float:
                return self.item()

        def properties(index: Any = None) -> Any:
            device = fake.devices[_number(index)]
            return SimpleNamespace(
                name=device.name, multi_processor_count=device.sms, major=device.major, minor=device.minor,
                L2_cache_size=60 * 2**20, total_memory=device.total_bytes, uuid=device.uuid,
            )  # fmt: skip

        def memory(index: Any = None) -> tuple[int, int]:
            fake.touch()
            device = fake.devices[_number(index)]
            return device.total_bytes - device.used_bytes, device.total_bytes

        cuda = SimpleNamespace(
            Event=Event,
            CUDAGraph=lambda keep_graph=False: Graph(fake),
            graph=self._graph_context(),
            graph_pool_handle=self.new_pool,
            Stream=self._new_stream,
            stream=self._on_stream,
            current_stream=lambda device=None: fake.stream,
            default_stream=lambda device=None: fake._default,
            is_current_stream_capturing=lambda: fake.stream.capture is not None,
            synchronize=self.synchronize,
            empty_cache=self.empty_cache,
            is_available=lambda: True,
            device_count=lambda: len(fake.devices),
            set_device=lambda index: setattr(fake, "index", _number(index)),
            current_device=lambda: fake.index,
            get_device_properties=properties,
            get_device_capability=lambda index=None: (properties(index).major, properties(index).minor),
            is_bf16_supported=lambda including_emulation=True: (
                properties(fake.index).major >= 8 or including_emulation
            ),
            mem_get_info=memory,
        )
        ends = {
            "_cuda_endAllocateToPool": self.end_allocation,
            "_cuda_releasePool": self.release_pool,
        }
        return SimpleNamespace(
            cuda=cuda,
            zeros=Tensor,
            ones=Tensor,
            OutOfMemoryError=OutOfMemoryError,
            _C=SimpleNamespace(**(ends if private_ends else {})),
            __version__=f"{self.version[0]}.{self.version[1]}.0+cu130",
            version=SimpleNamespace(cuda="13.0", hip=None),
        )


def _number(index: Any) -> int:
    """Of a device: 1, "cuda:1" or None."""
    if index is None:
        return 0
    return index if isinstance(index, int) else int(str(index).partition(":")[2] or 0)
