"""GPUs under a power cap: clocks of published sweeps, power, refusals, and what prefill and decode lose."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capacity import estimate
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.hardware import load_profile
from capacity.hardware.drawn_power import GpuUse, drawn_watts
from capacity.hardware.power_cap import (
    lowest_cap,
    power_cap_constants,
    power_cap_error,
    power_cap_notes,
    scale_to_power_cap,
    with_power_cap,
)
from capacity.hardware.server_power import server_power
from capacity.model import load_model
from capacity.step.setting import StepSetting

H100 = load_profile("h100")
PREFILL = {"input_len": 4000, "output_len": 20, "batch_size": 32}
DECODE = {"input_len": 500, "output_len": 1000, "batch_size": 64}


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("fit_power_cap")


def estimated(gpu: str, cap: float | str | None, load: dict[str, int]) -> tuple[float, float]:
    """Return output tokens/s and drawn joules per output token of the GPU."""
    answer = estimate("llama-3.1-8b", gpu=gpu, power_cap=cap, **load)
    assert answer.energy.drawn is not None
    return answer.output_tokens_per_s.value, answer.energy.drawn.joules_per_output_token.value


def test_constants_are_those_of_the_fit_and_judged_sweeps_lie_within_the_errors(fit: Any) -> None:
    sweeps, known = fit.read_sweeps(), power_cap_constants()
    assert fit.fit(sweeps) == known
    within = []
    for sweep in sweeps:
        shares = sweep.watts / sweep.limit
        kept = shares >= known.lowest_share
        error = known.prefill_error if sweep.load == "prefill" else known.decode_error
        inside = np.abs(sweep.errors(known)) <= error * (1 - shares) + 1e-9
        if sweep.use == "judged" and kept.any():
            within.append(inside[kept].mean())
        elif kept.any():
            assert np.abs(sweep.errors(known))[kept].max() < (0.02 if sweep.load == "prefill" else 0.1)
    assert len(within) >= 7
    assert np.mean(within) > 0.85  # each sweep counted once


def test_cap_lowers_prefill_more_than_decode() -> None:
    for gpu in ("h100", "a100-80gb", "b200"):
        for cap in ("70%", "60%"):
            prefill, decode = (
                estimated(gpu, cap, load)[0] / estimated(gpu, None, load)[0] for load in (PREFILL, DECODE)
            )
            assert 0.8 < prefill < decode - 0.03
            assert decode > 0.94


def test_energy_per_token_has_a_minimum_at_a_cap() -> None:
    for gpu, lowest in (("h100", "29%"), ("l40s", "40%")):
        joules = [estimated(gpu, cap, PREFILL)[1] for cap in (None, "85%", "70%", "50%", lowest)]
        assert min(joules) < 0.85 * joules[0]
        assert min(joules) < joules[-1]


def test_cap_that_does_not_bind_changes_no_time() -> None:
    idle = {"input_len": 100, "output_len": 100, "batch_size": 1}
    assert estimated("h100", "95%", idle)[0] == pytest.approx(estimated("h100", None, idle)[0], rel=1e-3)
    assert with_power_cap(H100, 700) is with_power_cap(H100, None) is H100


def test_rates_rise_with_the_cap() -> None:
    kernel = StepSetting(model=load_model("llama-3.1-8b"), profile=H100).lookup().kernel("gemm", "bf16")
    scaled = [scale_to_power_cap(kernel, with_power_cap(H100, watts)) for watts in range(200, 701, 50)]
    for name in ("compute_fraction", "bandwidth_fraction"):
        values = [getattr(each, name) for each in scaled]
        assert values == sorted(values)
        assert values[-1] == getattr(kernel, name)
    assert (
        scaled[0].compute_fraction / kernel.compute_fraction
        < scaled[0].bandwidth_fraction / kernel.bandwidth_fraction
    )
    assert scaled[0].fit.basis == "assumed"
    assert "power cap of 200 W" in scaled[0].fit.source


def test_capped_gpu_draws_the_cap_where_it_would_draw_more() -> None:
    capped = with_power_cap(H100, "50%")
    busy = GpuUse(duty=1.0, kernel_fraction=1.0, bytes_per_s=1e12, flops_per_s=5e14)
    assert drawn_watts(H100, busy).value > 600
    watts = drawn_watts(capped, busy)
    assert (watts.value, watts.high) == (350, 350)
    half = GpuUse(duty=0.5, kernel_fraction=1.0, bytes_per_s=1e12, flops_per_s=5e14)
    assert drawn_watts(capped, half).value == pytest.approx((350 + 0.12 * 700) / 2)
    light = GpuUse(duty=0.1, kernel_fraction=0.2, bytes_per_s=1e11, flops_per_s=1e12)
    assert drawn_watts(capped, light).value == drawn_watts(H100, light).value


def test_provisioned_power_falls_by_the_gpu_and_its_cooling() -> None:
    capped = with_power_cap(H100, 500)
    assert H100.system_watts_per_gpu - capped.system_watts_per_gpu == pytest.approx(200 * 1.13 / 0.96 * 1.2)
    assert server_power().facility_watts(200, 0) == pytest.approx(282.5)
    assert capped.tdp_watts == 700


@pytest.mark.parametrize(
    ("gpu", "cap", "words"),
    [
        ("h100", 800, "--power-cap 800 W is above the TDP of h100-sxm-80gb, 700 W"),
        ("h100", 150, "below the lowest cap of h100-sxm-80gb, 200 W .nvidia-smi"),
        ("h100", "20%", "--power-cap 20% is below the lowest cap"),
        ("rtx-5090", 300, "400 W"),
        ("b200", 200, "286 W .assumed"),
    ],
)
def test_cap_outside_the_limits_is_refused_in_one_line(gpu: str, cap: float | str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        with_power_cap(load_profile(gpu), cap)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("cap", ["0%", "120%", "many", "-3", "nan", 0, -1.0, True])
def test_text_that_is_no_cap_is_refused(cap: Any) -> None:
    with pytest.raises(InvalidInput, match="power_cap"):
        estimate("llama-3.1-8b", gpu="h100", power_cap=cap, **DECODE)


def test_caps_are_watts_or_shares() -> None:
    assert (Pool(gpu="h100", power_cap="500 W").power_cap, Pool(gpu="h100", power_cap="70 %").power_cap) == (
        500,
        "70%",
    )
    assert with_power_cap(H100, "50%").power_cap_watts == 350
    assert lowest_cap(load_profile("h100+hbm=x2")).watts == 200


def test_lower_tdp_of_a_change_is_a_power_cap() -> None:
    changed, capped = load_profile("h100+tdp=400"), with_power_cap(H100, 400)
    assert (changed.tdp_watts, changed.power_cap_watts) == (700, 400)
    assert changed.system_watts_per_gpu == capped.system_watts_per_gpu
    assert estimated("h100+tdp=400", None, PREFILL) == pytest.approx(estimated("h100", 400, PREFILL))
    assert load_profile("h100+tdp=900").power_cap_watts is None


def test_intervals_widen_as_the_cap_falls_and_the_answer_states_the_evidence() -> None:
    errors = [power_cap_error(with_power_cap(H100, cap), "prefill") for cap in (None, "80%", "60%", "40%")]
    assert errors[0] == 1.0
    assert errors == sorted(set(errors))
    wide, usual = (estimate("llama-3.1-8b", gpu="h100", power_cap=cap, **PREFILL) for cap in ("60%", None))
    assert wide.ttft_s.high is not None
    assert usual.ttft_s.high is not None
    assert wide.ttft_s.high / wide.ttft_s.value > usual.ttft_s.high / usual.ttft_s.value
    assert any("Power cap of 420 W, 60% of the TDP" in note for note in wide.warnings)
    assert "No fitted sweep goes below 51%" in power_cap_notes(with_power_cap(H100, "40%"))[0]
    assert "this vendor" in power_cap_notes(with_power_cap(load_profile("mi300x"), "60%"))[0]
    assert power_cap_notes(H100) == ()


def test_every_profile_accepts_caps_between_its_limits() -> None:
    from capacity.hardware import profile_names

    for name in profile_names():
        card = load_profile(name)
        least = lowest_cap(card).watts
        assert with_power_cap(card, least).power_cap_watts == least
        assert with_power_cap(card, card.tdp_watts) is card
