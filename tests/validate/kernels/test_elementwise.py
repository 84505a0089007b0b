"""Launches and reductions as cases: a graph is never captured again, a reference never doubles the memory."""

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.cases import make_case  # noqa: E402
from capacity_validate.kernels import (  # noqa: E402
    KernelContext,
    elementwise,
    live_peak_bytes,
    prepare,
)
from capacity_validate.timing import CudaStopwatch  # noqa: E402
from fake_cuda import FakeCuda  # noqa: E402
from kernel_checks import error_of, prepared  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_launch_of_a_graph_is_timed_by_events_and_spoils_nothing() -> None:
    fake = FakeCuda()
    bench = KernelContext(fake.torch, "cuda:0", 2**20, None, 1e9)
    prepared = prepare(make_case("launch", "fp32", variant="graph"), bench)
    assert prepared.capturable is False
    watch = CudaStopwatch(fake.torch, "cuda:0")
    samples = watch.sample(
        prepared.calls, budget_s=0.001, at_least=5, at_most=20, capturable=prepared.capturable
    )
    assert samples.how == "events"
    assert fake.underway == []
    assert not bench.spoiled
    assert fake.captures == 1  # the chain itself


def test_a_reduction_is_checked_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "SUM_PART_VALUES", 2**14)
    built = prepared(make_case("bandwidth", "fp32", variant="read", bytes=2**22))
    assert error_of(built) <= built.tolerance
    assert live_peak_bytes(torch, built.check) < 2**20
