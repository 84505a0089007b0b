"""Quantizers keep their bounds and their bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from capacity_validate.quantizers import (  # noqa: E402
    absmax,
    fp8,
    grouped_int4,
    nf4,
    quantizer_findings,
    zero_point,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_quantizer_keeps_its_bound_and_its_bytes() -> None:
    findings = quantizer_findings()
    assert len(findings) >= 11
    assert all(f.passed for f in findings), [f for f in findings if not f.passed]


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.floats(-3, 3), st.floats(0.01, 100))
def test_quantizers_keep_their_bounds_on_any_matrix(seed: int, shift: float, scale: float) -> None:
    x = (
        torch.randn(8, 128, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
        + shift
    )
    for quantized in (absmax(x), absmax(x, bits=4, block=32), zero_point(x), grouped_int4(x), nf4(x), fp8(x)):
        assert bool(((quantized.values - x).abs() <= quantized.bound * (1 + 1e-6) + 1e-9).all())


def test_steps_are_as_wide_as_the_formats_say() -> None:
    """Δ = 2 max|x| / 254 for INT8 absmax, range / 255 with a zero point, range / 15 at 4 bit."""
    x = torch.linspace(-3.0, 5.0, 256, dtype=torch.float64)[None, :]
    assert float(absmax(x).bound.max()) == pytest.approx(5.0 / 127 / 2)
    assert float(zero_point(x).bound.min()) == pytest.approx(8.0 / 255 / 2)
    assert float(grouped_int4(x, group=256).bound.min()) == pytest.approx(
        8.0 / 15 / 2, rel=1e-3
    )  # FP16 scale


def test_the_bounds_are_not_slack() -> None:
    """Half a step is reached: errors come within 10 % of their bounds."""
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for quantized in (absmax(x), zero_point(x), grouped_int4(x), nf4(x)):
        assert float(((quantized.values - x).abs() / quantized.bound).max()) > 0.9
