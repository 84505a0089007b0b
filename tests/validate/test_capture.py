"""Captures that are refused leave the stream, the pool and the allocator as they were."""

import pytest
from capacity_validate.capture import GraphCapturer
from fake_cuda import GIB, FakeCuda, FakeDevice, OutOfMemoryError


def test_a_capture_gives_a_graph_and_what_the_body_returned() -> None:
    fake = FakeCuda(launch_s=0.0)
    captures = GraphCapturer(fake.torch, "cuda:0")
    graph, result = captures.capture(lambda: (fake.kernel(1e-3)(), "chosen")[1])
    assert (result, fake.now_s) == ("chosen", 0.0)
    graph.replay()
    assert fake.now_s == pytest.approx(1e-3)
    graph.reset()
    assert set(fake.pools.values()) == {0}


@pytest.mark.parametrize("version", [(2, 6), (2, 11), (2, 12)])
def test_a_python_error_in_a_capture_costs_its_graph(version: tuple[int, int]) -> None:
    """The capture itself is sound then: it is ended, and its pool released once."""
    fake = FakeCuda(version=version)
    captures = GraphCapturer(fake.torch, "cuda:0")

    def body() -> None:
        raise ValueError("a shape that does not fit")

    with pytest.raises(ValueError, match="a shape"):
        captures.capture(body)
    assert (fake.stream.number, fake.underway, set(fake.pools.values())) == (0, [], {0})
    assert not captures.spoiled
    captures.capture(fake.kernel())


def test_graphs_of_a_shared_pool_outlive_a_refusal_in_it() -> None:
    fake = FakeCuda(launch_s=0.0)
    captures = GraphCapturer(fake.torch, "cuda:0")
    graph, _ = captures.capture(fake.kernel(2e-3), pool=captures.shared_pool)
    with pytest.raises(RuntimeError, match="capturing"):
        captures.capture(fake.kernel(waits=True), pool=captures.shared_pool)
    assert fake.pools[captures.shared_pool] == 1
    before = fake.now_s
    graph.replay()
    assert fake.now_s - before == pytest.approx(2e-3)


def test_memory_can_still_be_given_back_after_a_refusal() -> None:
    """An allocation that needs the cache emptied: it would assert, had the refused capture stayed underway."""
    fake = FakeCuda(devices=(FakeDevice(total_bytes=8 * GIB, used_bytes=7 * GIB, cached_bytes=6 * GIB),))
    captures = GraphCapturer(fake.torch, "cuda:0")
    with pytest.raises(RuntimeError):
        captures.capture(fake.kernel(waits=True))
    fake.devices[0].cached_bytes, fake.devices[0].used_bytes = 6 * GIB, 7 * GIB
    fake.kernel(bytes=4 * GIB)()
    with pytest.raises(OutOfMemoryError):
        fake.kernel(bytes=4 * GIB)()


def test_a_refusal_on_the_second_of_two_cards_is_cleared_there() -> None:
    fake = FakeCuda(devices=(FakeDevice(), FakeDevice(name="NVIDIA L4")))
    fake.torch.cuda.set_device("cuda:1")
    captures = GraphCapturer(fake.torch, "cuda:1")
    with pytest.raises(RuntimeError):
        captures.capture(fake.kernel(waits=True))
    assert fake.underway == []
    assert not captures.spoiled
