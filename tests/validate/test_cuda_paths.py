"""The CUDA stopwatch against a fake torch.cuda: graphs for short kernels, events for long ones, a refusal survived."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from capacity_validate.timing import GRAPH_CALLS, CudaStopwatch, run_clock_for, stopwatch_for


class FakeCuda:
    """Calls take the time that they say, on a clock of their own; capturing records them instead of running them."""

    def __init__(self, *, capture_fails: bool = False, launch_s: float = 5e-6) -> None:
        self.now_s = 0.0
        self.launch_s = launch_s
        self.capturing: list[float] | None = None
        self.capture_fails = capture_fails
        self.captures = 0

    def kernel(self, seconds: float) -> Callable[[], None]:
        def call() -> None:
            if self.capturing is not None:
                self.capturing.append(seconds)
            else:
                self.now_s += seconds + self.launch_s

        return call

    @property
    def torch(self) -> Any:
        fake = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at_s = fake.now_s

            def elapsed_time(self, other: Event) -> float:
                return (other.at_s - self.at_s) * 1e3

        class Graph:
            def __init__(self) -> None:
                self.seconds: list[float] = []

            def replay(self) -> None:
                fake.now_s += sum(self.seconds) + fake.launch_s

        @contextmanager
        def graph(target: Graph) -> Iterator[None]:
            fake.captures += 1
            if fake.capture_fails:
                raise RuntimeError("operation not permitted when stream is capturing")
            fake.capturing = target.seconds
            yield
            fake.capturing = None

        @contextmanager
        def stream(_: Any) -> Iterator[None]:
            yield

        class Stream:
            def __init__(self, _: str) -> None: ...
            def wait_stream(self, _: Any) -> None: ...
            def synchronize(self) -> None: ...

        cuda = SimpleNamespace(
            Event=Event, CUDAGraph=Graph, graph=graph, Stream=Stream, stream=stream,
            current_stream=Stream, synchronize=lambda _: None,
        )  # fmt: skip
        return SimpleNamespace(cuda=cuda)


def sample(fake: FakeCuda, seconds: float, *, sets: int = 4) -> tuple[list[float], str]:
    watch = CudaStopwatch(fake.torch, "cuda:0")
    return watch.sample([fake.kernel(seconds)] * sets, budget_s=0.01, at_least=5, at_most=50)


def test_short_kernels_are_timed_in_a_graph_so_that_launches_stay_out() -> None:
    samples, how = sample(FakeCuda(launch_s=10e-6), 2e-6)
    assert how == "graph"
    assert max(samples) == pytest.approx(2e-6 + 10e-6 / GRAPH_CALLS)


def test_long_kernels_are_timed_by_events() -> None:
    samples, how = sample(FakeCuda(), 1e-3)
    assert how == "events"
    assert samples == pytest.approx([1e-3 + 5e-6] * len(samples))


def test_a_call_that_waits_for_the_device_is_never_captured() -> None:
    fake = FakeCuda()
    watch = CudaStopwatch(fake.torch, "cuda:0")
    calls = [fake.kernel(2e-6)]
    _, how = watch.sample(calls, budget_s=0.01, at_least=5, at_most=50, capturable=False)
    assert (how, fake.captures) == ("events", 0)


def test_what_cannot_be_captured_is_timed_by_events() -> None:
    fake = FakeCuda(capture_fails=True)
    samples, how = sample(fake, 20e-6)
    assert (how, fake.captures) == ("events", 1)
    assert samples[0] == pytest.approx(25e-6)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(1.1e-3, 9), (1.0, 5), (0.9e-3, 5), (1e-6, 50)],  # by events; by events; graphs of 4; graphs of 32
)
def test_repetitions_follow_the_budget_between_their_limits(seconds: float, expected: int) -> None:
    samples, _ = sample(FakeCuda(launch_s=0.0), seconds)
    assert len(samples) == expected


def test_every_input_set_is_in_the_graph() -> None:
    fake = FakeCuda(launch_s=0.0)
    watch = CudaStopwatch(fake.torch, "cuda:0")
    calls = [fake.kernel(s * 1e-6) for s in (1.0, 2.0, 3.0)]
    samples, _ = watch.sample(calls, budget_s=0.001, at_least=3, at_most=5)
    assert samples[0] == pytest.approx(2e-6)


def test_a_gpu_run_is_on_the_walls_clock() -> None:
    assert isinstance(stopwatch_for(FakeCuda().torch, "cuda:0"), CudaStopwatch)
    clock = run_clock_for("cuda:0")
    start = time.perf_counter()
    clock.wait_until(0.02)
    assert time.perf_counter() - start >= 0.015
