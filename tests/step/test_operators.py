"""Closed forms and physics of the operators' times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.hardware.coefficients import AttentionCoefficients, Fit, GemmCoefficients
from capacity.step.operators import attention_seconds, gemm_seconds, p_norm, quantize_bytes

FIT = Fit(basis="assumed", source="a test", date="2026-11-21")
P, BW = 1e15, 3e12
GEMM = GemmCoefficients(compute_fraction=0.8, bandwidth_fraction=0.9, sharpness=3.0, fixed_s=4e-6, fit=FIT)
sizes = st.floats(1, 1e5)
positive = st.floats(1e-9, 1e3)


def gemm(
    m: float,
    n: float = 8192,
    k: float = 8192,
    *,
    bits: float = 16,
    constants=GEMM,
    p: float = P,
    bw: float = BW,
):
    return gemm_seconds(
        m,
        n,
        k,
        weight_bytes=n * k * bits / 8,
        activation_bits=16,
        flops_per_s=p,
        hbm_bytes_per_s=bw,
        constants=constants,
    )


@given(positive, positive, st.floats(1, 16))
def test_norm_lies_between_the_larger_and_the_sum(a: float, b: float, sharpness: float) -> None:
    value = p_norm(a, b, sharpness)
    assert max(a, b) <= value * (1 + 1e-12)
    assert value <= (a + b) * (1 + 1e-12)
    assert value == p_norm(b, a, sharpness)


def test_norm_of_nothing() -> None:
    assert p_norm(0.0, 0.0, 3.0) == 0.0
    assert p_norm(2.0, 0.0, 3.0) == 2.0


@given(sizes, st.floats(512, 65536), st.floats(512, 65536))
def test_a_product_is_never_faster_than_either_roof(m: float, n: float, k: float) -> None:
    seconds = gemm(m, n, k)
    assert seconds >= 2 * m * n * k / P
    assert seconds >= (n * k + m * k + m * n) * 2 / BW


def test_a_large_product_runs_at_the_compute_roof_times_its_fraction() -> None:
    m = 1e7
    assert gemm(m) == pytest.approx(2 * m * 8192**2 / (0.8 * P), rel=1e-2)


def test_a_small_product_runs_at_the_bandwidth_roof_times_its_fraction() -> None:
    n = k = 65536
    expected = n * k * 2 / (0.9 * BW) + 4e-6
    assert gemm(1, n, k) == pytest.approx(expected, rel=1e-3)


def test_no_rows_no_kernel() -> None:
    assert gemm(0) == 0.0


@given(sizes, st.floats(1.0, 4.0))
def test_more_rows_bandwidth_or_flops_never_hurt(m: float, factor: float) -> None:
    assert gemm(m * factor) >= gemm(m)
    assert gemm(m, p=P * factor) <= gemm(m) * (1 + 1e-12)
    assert gemm(m, bw=BW * factor) <= gemm(m) * (1 + 1e-12)
    assert gemm(m, bits=16 / factor) <= gemm(m) * (1 + 1e-12)


@given(st.floats(1, 1e4))
def test_a_product_is_continuous_in_its_rows(m: float) -> None:
    assert gemm(m * (1 + 1e-7)) == pytest.approx(gemm(m), rel=1e-6)


def test_quantizing_activations_moves_them_once_more() -> None:
    constants = GEMM.model_copy(update={"quantize_fraction": 0.5})
    extra = gemm(4096, constants=constants) - gemm(4096)
    assert extra == pytest.approx(quantize_bytes(4096, 8192, 16) / (0.5 * BW))


def test_the_serial_walk_over_k_is_a_latency() -> None:
    constants = GEMM.model_copy(update={"per_k_s": 1e-9})
    assert gemm(1, constants=constants) - gemm(1) == pytest.approx(8192e-9)


# attention


def attention(flops: float, moved: float, rows: float = 0.0, context: float = 0.0, **changes: float) -> float:
    constants = AttentionCoefficients(
        **{
            "compute_fraction": 0.5,
            "bandwidth_fraction": 0.8,
            "sharpness": 2.0,
            "fixed_s": 1e-5,
            "fit": FIT,
            **changes,
        }
    )
    return attention_seconds(
        flops,
        moved,
        kv_head_rows=rows,
        mean_context=context,
        sm_count=132,
        flops_per_s=P,
        hbm_bytes_per_s=BW,
        constants=constants,
    )


def test_attention_over_much_kv_is_its_bytes() -> None:
    assert attention(0.0, 8e9) == pytest.approx(8e9 / (0.8 * BW) + 1e-5)


def test_a_context_that_is_not_split_takes_one_block_its_length() -> None:
    """Four sequences of 65,536 tokens on L40S (FP8 KV, TensorRT-LLM 1.3): 1,127 us by one KV head, 1,058 by four."""
    walked = [
        attention(0.0, moved, context=65536.0, per_token_s=1.7e-8) for moved in (1e6, 4e6)
    ]  # far below what HBM would need for them
    assert walked == pytest.approx([65536 * 1.7e-8] * 2, rel=0.02)
    many = attention(0.0, 1e10, context=64.0, per_token_s=1.7e-8)
    assert many == pytest.approx(attention(0.0, 1e10, context=64.0), rel=1e-3)


def test_each_doubling_of_the_context_adds_a_level_of_reduction() -> None:
    shallow, deep = (attention(0.0, 1e6, context=c, per_doubling_s=1e-6) for c in (64.0, 192.0))
    assert deep - shallow == pytest.approx(1e-6)


@given(st.floats(0, 1e15), st.floats(1, 1e11), st.floats(0, 1e5), st.floats(1.0, 3.0))
def test_attention_is_monotone_and_above_its_roofs(
    flops: float, moved: float, rows: float, factor: float
) -> None:
    seconds = attention(flops, moved, rows, occupancy_s=2e-6)
    assert seconds >= flops / P
    assert seconds >= moved / BW
    assert attention(flops * factor, moved, rows, occupancy_s=2e-6) >= seconds
    assert attention(flops, moved * factor, rows, occupancy_s=2e-6) >= seconds
    assert attention(flops, moved, rows * factor, occupancy_s=2e-6) >= seconds


# experts
