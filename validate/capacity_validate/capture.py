"""CUDA graph capture in which a failed capture affects only that graph.

If ending a capture fails, `torch.cuda.graph` does not restore the stream. Torch below 2.12 then considers the capture
active forever, so every later `empty_cache` and every retry of a failed allocation asserts. This module therefore
implements capture itself: it always restores the stream and always closes the memory pool. Source: pytorch,
CUDAGraph.cpp and pull request 180395.
"""

from collections.abc import Callable
from typing import Any

Pool = Any  # returned by torch.cuda.graph_pool_handle()


class GraphCapturer:
    """Captures CUDA graphs on one side stream. `spoiled`: whether a failed capture left torch's allocator unusable."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._device = torch, device
        self._stream: Any = None
        self._shared: Pool = None
        self.spoiled = False

    @property
    def stream(self) -> Any:
        """Return the side stream. All captures share one because each stream has its own cached memory."""
        if self._stream is None:
            self._stream = self._torch.cuda.Stream(self._device)
        return self._stream

    @property
    def shared_pool(self) -> Pool:
        """Return the memory pool that graphs share if they never run concurrently, as in engines."""
        if self._shared is None:
            self._shared = self._torch.cuda.graph_pool_handle()
        return self._shared

    def run_on_side_stream(self, body: Callable[[], object]) -> object:
        """Run `body` on the side stream, after all queued work and before later work."""
        cuda = self._torch.cuda
        self.stream.wait_stream(cuda.current_stream(self._device))
        with cuda.stream(self.stream):
            result = body()
        cuda.current_stream(self._device).wait_stream(self.stream)
        return result

    def capture(self, body: Callable[[], object], *, pool: Pool = None) -> tuple[Any, Any]:
        """Capture `body`; return the graph and the value of `body`. Raises RuntimeError if CUDA rejects it."""
        cuda = self._torch.cuda
        cuda.synchronize(self._device)
        graph = cuda.CUDAGraph()
        pool = pool or cuda.graph_pool_handle()
        with cuda.stream(self.stream):
            try:
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                result = body()
                graph.capture_end()
            except BaseException:
                self._abandon(graph, pool)
                raise
        return graph, result

    def _abandon(self, graph: Any, pool: Pool) -> None:
        """End a failed capture, close its memory pool if torch left it open, and check that the allocator works."""
        if not _succeeds(graph.capture_end) and self._close(pool):
            self._release(pool)
        _succeeds(graph.reset)
        self.spoiled = self.spoiled or not _succeeds(self._torch.cuda.empty_cache)

    def _close(self, pool: Pool) -> bool:
        """Stop allocating to `pool`. Return False if torch already stopped, or lacks the function for it."""
        private = self._torch._C
        # torch 2.8 and later; earlier versions
        names = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")
        end = next((getattr(private, name) for name in names if hasattr(private, name)), None)
        return end is not None and _succeeds(lambda: end(self._index, pool))

    def _release(self, pool: Pool) -> None:
        if (release := getattr(self._torch._C, "_cuda_releasePool", None)) is not None:
            _succeeds(lambda: release(self._index, pool))

    @property
    def _index(self) -> int:
        return int(self._device.partition(":")[2] or 0)


def _succeeds(step: Callable[[], object]) -> bool:
    try:
        step()
    except RuntimeError:
        return False
    return True
