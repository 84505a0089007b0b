"""Kernels and timing on a CPU: results are checked before they are timed, and what fails is kept and said."""

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.campaigns import load_campaign, order_cases  # noqa: E402
from capacity_validate.cases import Case, make_case  # noqa: E402
from capacity_validate.kernels import (  # noqa: E402
    KernelContext,
    Unsupported,
    prepare,
    relative_error,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def bench() -> KernelContext:
    return KernelContext(torch, "cpu", 2**20, torch.Generator().manual_seed(0), 1e9)


QUICK = order_cases(load_campaign("quick").cpu)
SMALLEST = list({case.family: case for case in reversed(QUICK)}.values())


@pytest.mark.parametrize("case", SMALLEST, ids=lambda case: case.family)
def test_every_cpu_kernel_is_right_or_says_that_it_is_missing(case: Case, bench: KernelContext) -> None:
    try:
        prepared = prepare(case, bench)
    except Unsupported as reason:
        pytest.skip(str(reason))
    if prepared.check is not None:
        assert prepared.check() <= prepared.tolerance
    assert prepared.calls


@pytest.mark.parametrize("kernel", ["fp8", "fp8_rowwise", "int8", "w4a16", "bf16", "fp16"])
def test_low_precision_products_are_far_from_wrong_inputs(kernel: str, bench: KernelContext) -> None:
    """The check would notice: an unrelated result is off by more than ten times the tolerance."""
    case = make_case("gemm", kernel, m=32, n=128, k=256)
    try:
        prepared = prepare(case, bench)
    except Unsupported as reason:
        pytest.skip(str(reason))
    out = prepared.calls[0]()
    assert isinstance(out, torch.Tensor)
    assert relative_error(torch, out.flip(0), out) > 10 * max(prepared.tolerance, 0.01)


def test_no_kernel_is_timed_on_zeros(bench: KernelContext) -> None:
    for values in (
        bench.random(64, 64, dtype=torch.float32),
        *bench.rotating_tensors(3, 64, 64, dtype=torch.float32),
    ):
        assert 0.5 < float(values.std()) < 2.0


def test_rotated_sets_are_different_memory(bench: KernelContext) -> None:
    sets = bench.rotating_tensors(4, 512, 512, dtype=torch.float32)
    assert len({t.data_ptr() for t in sets}) == 4
