"""Products that are checked against a corner, and made without filling the card."""

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.cases import make_case  # noqa: E402
from capacity_validate.kernels import Unsupported, attempt, gemm, live_peak_bytes  # noqa: E402
from capacity_validate.kernels.gemm import ROWS_AT_A_TIME  # noqa: E402
from kernel_checks import cpu_bench, error_of, prepared  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("row_wise", [False, True])
def test_fp8_weights_are_made_piece_by_piece(row_wise: bool) -> None:
    """At once in fp32 they would take four times their size and more; a 24 GB card has no room for that."""
    rows, columns = 8 * ROWS_AT_A_TIME, 32
    peak = live_peak_bytes(
        torch, lambda: gemm.quantize_fp8(cpu_bench(), rows, columns, 1, columns if row_wise else None)
    )
    weights = rows * columns
    assert peak < weights + 3 * 4 * ROWS_AT_A_TIME * columns + 8 * rows
    assert peak < 3 * weights


@pytest.mark.parametrize("row_wise", [False, True])
def test_fp8_values_use_their_range_and_scale_back(row_wise: bool) -> None:
    values, scales, _ = gemm.quantize_fp8(cpu_bench(), ROWS_AT_A_TIME + 100, 64, 1, 64 if row_wise else None)
    back = values.float() * scales
    assert back.std() == pytest.approx(1.0, abs=0.02)
    assert float(values.float().abs().max()) > 200
    assert tuple(scales.shape) == ((ROWS_AT_A_TIME + 100, 1) if row_wise else ())


@pytest.mark.parametrize("kernel", ["fp8", "fp8_rowwise", "w4a16", "int8"])
def test_what_a_check_keeps_is_a_corner(kernel: str) -> None:
    """Not an fp32 copy of every weight for each input set: bytes held by the check's own tensors."""
    case = make_case("gemm", kernel, m=128, n=512, k=512)
    try:
        built = prepared(case)
    except Unsupported as reason:
        pytest.skip(str(reason))
    assert error_of(built) <= built.tolerance


def test_no_memory_is_not_taken_for_a_missing_kernel() -> None:
    def full() -> None:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")

    def missing() -> None:
        raise ValueError("scaled_mm needs sm_89\nor higher")

    with pytest.raises(RuntimeError, match="ALLOC_FAILED"):
        attempt(full)
    with pytest.raises(Unsupported, match=r"sm_89$"):
        attempt(missing)


def test_a_sustained_product_runs_for_seconds_and_outside_a_graph() -> None:
    case = make_case("gemm", "fp32", variant="sustained", m=8, n=64, k=64)
    built = prepared(case)
    assert (built.sustained_s, built.capturable) == (5.0, False)
    assert prepared(make_case("gemm", "fp32", m=8, n=64, k=64)).sustained_s is None
