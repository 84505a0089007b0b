"""The CUDA stopwatch against a fake torch.cuda: graphs for short kernels, events for long ones, a refusal survived."""

import time

import pytest
from capacity_validate.timing import GRAPH_CALLS, CudaStopwatch, Samples, make_run_clock, make_stopwatch
from fake_cuda import FakeCuda


def sample(fake: FakeCuda, seconds: float, *, sets: int = 4) -> Samples:
    watch = CudaStopwatch(fake.torch, "cuda:0")
    return watch.sample([fake.kernel(seconds)] * sets, budget_s=0.01, at_least=5, at_most=50)


def test_short_kernels_are_timed_in_a_graph_so_that_launches_stay_out() -> None:
    samples = sample(FakeCuda(launch_s=10e-6), 2e-6)
    assert (samples.how, samples.calls) == ("graph", GRAPH_CALLS)
    assert max(samples.seconds) == pytest.approx(2e-6 + 10e-6 / GRAPH_CALLS)


def test_long_kernels_are_timed_by_events() -> None:
    samples = sample(FakeCuda(), 1e-3)
    assert (samples.how, samples.calls) == ("events", 1)
    assert samples.seconds == pytest.approx([1e-3 + 5e-6] * len(samples.seconds))


def test_a_call_that_waits_for_the_device_is_never_captured() -> None:
    fake = FakeCuda()
    watch = CudaStopwatch(fake.torch, "cuda:0")
    calls = [fake.kernel(2e-6, waits=True)]
    samples = watch.sample(calls, budget_s=0.01, at_least=5, at_most=50, capturable=False)
    assert (samples.how, fake.captures) == ("events", 0)


@pytest.mark.parametrize("version", [(2, 6), (2, 11), (2, 13)])
def test_what_cannot_be_captured_is_timed_by_events_and_spoils_nothing(version: tuple[int, int]) -> None:
    """A call that waits inside a capture: the next short kernel is timed in a graph again, and memory is given back."""
    fake = FakeCuda(version=version)
    watch = CudaStopwatch(fake.torch, "cuda:0")
    refused = watch.sample([fake.kernel(20e-6, waits=True)], budget_s=0.01, at_least=5, at_most=50)
    assert refused.how == "events"
    assert refused.seconds[0] == pytest.approx(25e-6)
    assert fake.stream.number == 0
    assert fake.underway == []
    assert not watch.spoiled
    later = watch.sample([fake.kernel(2e-6)], budget_s=0.01, at_least=5, at_most=50)
    assert later.how == "graph"
    if version < (2, 12):  # later torch closes a refused capture's pool itself, and keeps it
        assert set(fake.pools.values()) == {0}
    fake.empty_cache()


def test_a_capture_that_torch_cannot_close_is_said_and_none_follows() -> None:
    """No private call to close the pool: the allocator stays broken, which only a fresh process mends."""
    fake = FakeCuda(private_ends=False)
    watch = CudaStopwatch(fake.torch, "cuda:0")
    watch.sample([fake.kernel(20e-6, waits=True)], budget_s=0.01, at_least=5, at_most=50)
    assert watch.spoiled
    captures = fake.captures
    later = watch.sample([fake.kernel(2e-6)], budget_s=0.01, at_least=5, at_most=50)
    assert (later.how, fake.captures) == ("events", captures)


def test_torchs_own_context_would_have_spoiled_them() -> None:
    """What the fake is true to: `torch.cuda.graph` stays on its stream, and every later capture asserts."""
    fake = FakeCuda()
    with pytest.raises(RuntimeError), fake.torch.cuda.graph(fake.torch.cuda.CUDAGraph()):
        fake.kernel(waits=True)()
    assert fake.stream.number != 0
    with pytest.raises(RuntimeError, match="captures_underway"):
        fake.torch.cuda.graph(fake.torch.cuda.CUDAGraph()).__enter__()


def test_one_side_stream_serves_all_cases() -> None:
    fake = FakeCuda()
    watch = CudaStopwatch(fake.torch, "cuda:0")
    for seconds in (2e-6, 1e-3, 5e-6):
        watch.sample([fake.kernel(seconds)], budget_s=0.001, at_least=5, at_most=50)
    assert fake.streams_made == 1


def test_warm_up_goes_on_until_two_medians_agree() -> None:
    """A card whose clocks rise for 60 ms of work: samples are taken when they have risen."""
    fake = FakeCuda(launch_s=0.0)
    done: list[None] = []

    def call() -> None:
        time.sleep(1e-3)
        done.append(None)
        fake.now_s += 4e-3 - 5e-5 * min(len(done), 60)

    watch = CudaStopwatch(fake.torch, "cuda:0")
    samples = watch.sample([call], budget_s=0.01, at_least=5, at_most=50, capturable=False)
    assert samples.seconds == pytest.approx([1e-3] * len(samples.seconds), rel=0.05)


def test_samples_are_taken_on_the_stream_that_was_warmed_up() -> None:
    """Each stream caches memory of its own: elsewhere the first calls would wait for the driver to allocate."""
    fake = FakeCuda()
    streams: list[int] = []

    def call() -> None:
        streams.append(fake.stream.number)
        fake.now_s += 2e-3

    CudaStopwatch(fake.torch, "cuda:0").sample([call], budget_s=0.01, at_least=5, at_most=50)
    assert len(set(streams)) == 1
    assert fake.stream.number == 0


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (1.1e-3, 9),
        (1.0, 5),
        (0.9e-3, 5),
        (1e-6, 32),
    ],  # by events; by events; graphs of 4; graphs of 32, until samples agree
)
def test_repetitions_follow_the_budget_between_their_limits(seconds: float, expected: int) -> None:
    assert len(sample(FakeCuda(launch_s=0.0), seconds).seconds) == expected


def test_every_input_set_is_in_the_graph() -> None:
    fake = FakeCuda(launch_s=0.0)
    watch = CudaStopwatch(fake.torch, "cuda:0")
    calls = [fake.kernel(s * 1e-6) for s in (1.0, 2.0, 3.0)]
    samples = watch.sample(calls, budget_s=0.001, at_least=3, at_most=5)
    assert samples.seconds[0] == pytest.approx(2e-6)


def test_a_gpu_run_is_on_the_walls_clock() -> None:
    assert isinstance(make_stopwatch(FakeCuda().torch, "cuda:0"), CudaStopwatch)
    clock = make_run_clock("cuda:0")
    start = time.perf_counter()
    clock.wait_until(0.02)
    assert time.perf_counter() - start >= 0.015
