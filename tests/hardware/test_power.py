"""Clocks under a power limit."""

from __future__ import annotations

import pytest

from capacity.hardware import load_profile
from capacity.hardware.coefficients import ElementwiseCoefficients, Fit, GemmCoefficients
from capacity.hardware.power import (
    POWER,
    same_chip,
    scale_to_halved_tensor_cores,
    scale_to_power_limit,
    sustained_constants,
    sustained_share,
)
from capacity.model import load_model
from capacity.step.operators import gemm_seconds
from capacity.step.setting import StepSetting

A100, A100_PCIE = load_profile("a100-sxm-80gb"), load_profile("a100-pcie-80gb")
H100, H100_PCIE = load_profile("h100-sxm-80gb"), load_profile("h100-pcie-80gb")
FIT = Fit(basis="fitted", source="aiconfigurator-core 0.12.0, gemm: a table", date="2026-11-21")


def gemm(compute_fraction: float) -> GemmCoefficients:
    return GemmCoefficients(
        compute_fraction=compute_fraction, bandwidth_fraction=0.8, sharpness=2.0, fixed_s=5e-6, fit=FIT
    )


def test_busy_tensor_cores_of_a_pcie_card_run_as_measured() -> None:
    # Llama-3.1-8B, 2048 tokens in and 128 out, TensorRT-LLM 0.14: 612 output tokens/s where the SXM card has 795, of
    # which 15 % of the time is decode at 95 % of its bandwidth: 0.75 in prefill.
    assert sustained_share(A100_PCIE, A100, POWER.saturated) == pytest.approx(0.75, abs=0.05)
    # GPT-J offline in FP8, MLPerf Inference v4.1: 1,640 tokens/s a card where the SXM card has 2,480
    rates = H100_PCIE.dense_flops_per_s["fp8"] / H100.dense_flops_per_s["fp8"]
    assert rates * sustained_share(H100_PCIE, H100, 0.58) == pytest.approx(1640 / 2480, abs=0.06)


def test_less_power_means_a_lower_clock_and_idle_units_take_none() -> None:
    shares = [
        sustained_share(A100_PCIE.model_copy(update={"tdp_watts": watts}), A100, 0.8)
        for watts in (150, 200, 250, 300, 350, 400, 500)
    ]
    assert shares == sorted(shares)
    assert shares[0] < 0.5
    assert shares[-2:] == [1.0, 1.0]
    by_use = [sustained_share(A100_PCIE, A100, use) for use in (0.1, 0.3, 0.5, 0.7, 0.8)]
    assert by_use == sorted(by_use, reverse=True)
    assert by_use[0] == 1.0
    assert sustained_share(A100_PCIE, A100, 0.8) == sustained_share(A100_PCIE, A100, 0.95)


def test_a_card_of_the_same_limit_and_another_chip_are_left_alone() -> None:
    assert sustained_share(A100, A100, 0.8) == 1.0
    assert sustained_share(load_profile("h200-sxm-141gb"), H100, 0.8) == 1.0
    assert not same_chip(load_profile("a10-24gb"), A100)
    assert sustained_share(load_profile("a10-24gb"), A100, 0.8) == 1.0
    assert not same_chip(A100.model_copy(update={"compute_capability": None}), A100)


def test_scaled_constants_say_so() -> None:
    scaled = scale_to_power_limit(gemm(0.8), A100_PCIE, A100)
    assert isinstance(scaled, GemmCoefficients)
    assert scaled.compute_fraction == pytest.approx(0.8 * sustained_share(A100_PCIE, A100, 0.8))
    assert (scaled.bandwidth_fraction, scaled.fixed_s) == (0.8, 5e-6)
    assert scaled.fit.basis == "assumed"
    assert "300 W (a100-sxm-80gb: 400 W" in scaled.fit.source
    assert scale_to_power_limit(gemm(0.2), A100_PCIE, A100) == gemm(0.2)
    norms = ElementwiseCoefficients(bandwidth_fraction=0.8, fixed_s=2e-6, fit=FIT)
    assert scale_to_power_limit(norms, A100_PCIE, A100) is norms


def test_steps_keep_less_of_the_compute_rate_than_short_runs_where_the_clock_falls() -> None:
    assert sustained_constants(gemm(0.8), A100) == gemm(0.8)
    hopper, blackwell = (
        sustained_constants(gemm(0.8), card) for card in (H100, load_profile("b200-sxm-180gb"))
    )
    assert blackwell.compute_fraction < hopper.compute_fraction < 0.8
    assert blackwell.compute_fraction / 0.8 == pytest.approx(1237 / 1450, abs=0.01)  # flashinfer PR 2899
    assert (hopper.bandwidth_fraction, hopper.fixed_s) == (0.8, 5e-6)
    kernels = ElementwiseCoefficients(bandwidth_fraction=0.7, fixed_s=2e-6, fit=FIT)
    assert sustained_constants(kernels, H100) == kernels


def test_nvfp4_products_keep_the_rate_of_the_table() -> None:
    """On a B200, in the loop where bf16 keeps 0.63 of its peak, they keep 0.60 to 0.61 (pytorch/ao PR 2427)."""
    b200 = load_profile("b200-sxm-180gb")
    assert sustained_constants(gemm(0.8), b200, ("gemm", "nvfp4")) == gemm(0.8)
    assert sustained_constants(gemm(0.8), b200, ("gemm", "bf16")).compute_fraction == pytest.approx(
        0.8 * 0.85
    )
    lookup = StepSetting(model=load_model("llama-3.1-70b"), profile=b200, kernel_family="vllm").lookup()
    four, sixteen = (lookup.kernel("gemm", key).compute_fraction for key in ("nvfp4", "bf16"))
    assert four == pytest.approx(0.60, abs=0.03)
    assert sixteen == pytest.approx(0.63, abs=0.03)


def test_products_of_weights_that_nobody_set_slow_down_to_those_of_a_model() -> None:
    """A table of vLLM's: 16-bit products of whatever the memory held; others draw their weights."""
    own = A100.step_time
    assert own is not None
    tables = {name: own.families[name].gemm["bf16"] for name in ("vllm", "trtllm", "sglang")}
    rates = {name: sustained_constants(table, A100).compute_fraction for name, table in tables.items()}
    assert rates["vllm"] == pytest.approx(tables["vllm"].compute_fraction * 257 / 295, rel=0.01)
    assert (rates["trtllm"], rates["sglang"]) == tuple(
        tables[name].compute_fraction for name in ("trtllm", "sglang")
    )
    # an A100 SXM multiplies 4,096 rows of 70B's matrices at 228 to 241 TFLOP/s (vidur, 7d47513)
    kernel = StepSetting(model=load_model("llama-2-70b"), profile=A100).lookup().kernel("gemm", "bf16")
    rows, columns, depth = 4096, 57344, 8192
    seconds = gemm_seconds(
        rows, columns, depth, weight_bytes=2.0 * columns * depth, activation_bits=16, constants=kernel,
        flops_per_s=A100.dense_flops_per_s["bf16"], hbm_bytes_per_s=A100.hbm_bytes_per_s,
    )  # fmt: skip
    assert 228e12 < 2.0 * rows * columns * depth / seconds < 241e12


def test_what_a_card_measured_of_itself_is_taken_as_it_is() -> None:
    measured = gemm(0.8).model_copy(
        update={"fit": FIT.model_copy(update={"source": "capacity validate, 2 h"})}
    )
    assert sustained_constants(measured, H100) is measured
    assert sustained_constants(gemm(0.8), H100).compute_fraction < 0.8


def test_a_profile_of_the_harness_keeps_its_rates_in_steps() -> None:
    """The way of a step: its lookup, by the engine's family or by the harness's."""
    own = H100.step_time
    assert own is not None
    shipped = StepSetting(model=load_model("llama-3.1-8b"), profile=H100).lookup().kernel("gemm", "bf16")
    table = own.families["vllm"].gemm["bf16"]
    assert shipped.compute_fraction < table.compute_fraction
    fit = table.fit.model_copy(update={"source": "capacity validate on this card"})
    measured = table.model_copy(update={"fit": fit})
    families = {"vllm": own.families["vllm"].model_copy(update={"gemm": {"bf16": measured}})}
    card = H100.model_copy(update={"step_time": own.model_copy(update={"families": families})})
    found = StepSetting(model=load_model("llama-3.1-8b"), profile=card).lookup().kernel("gemm", "bf16")
    assert found.compute_fraction == table.compute_fraction


def test_geforce_cards_keep_nearly_all_of_their_halved_tensor_cores() -> None:
    l40s, rtx_4090, rtx_5090 = (
        load_profile(name) for name in ("l40s-48gb", "rtx-4090-24gb", "rtx-5090-32gb")
    )
    on_l40s = gemm(0.57)  # 206 TFLOP/s of 362
    for card, measured in ((rtx_4090, 165e12), (rtx_5090, 254e12)):
        scaled = scale_to_halved_tensor_cores(on_l40s, card, l40s)
        rate = scaled.compute_fraction * card.dense_flops_per_s["bf16"]
        assert scaled.compute_fraction == POWER.halved_keep
        assert rate <= measured * 1.02
        assert rate > 0.7 * measured
        assert (scaled.fit.basis, scaled.bandwidth_fraction) == ("assumed", 0.8)
    slow = scale_to_halved_tensor_cores(
        gemm(0.1), rtx_4090, l40s
    )  # what keeps no tensor core busy is as fast as there
    rates = [0.1 * l40s.dense_flops_per_s["bf16"] / l40s.sm_count]
    rates.append(slow.compute_fraction * rtx_4090.dense_flops_per_s["bf16"] / rtx_4090.sm_count)
    assert rates[1] == pytest.approx(rates[0])
    assert scale_to_halved_tensor_cores(gemm(0.5), load_profile("rtx-6000-ada-48gb"), l40s) == gemm(0.5)
    assert scale_to_halved_tensor_cores(gemm(0.5), A100_PCIE, A100) == gemm(0.5)
