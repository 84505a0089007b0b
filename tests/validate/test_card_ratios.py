"""What kernels measured on a GPU change in the predictions for engines on it.

The measurements are of cards whose kernels all take a known factor of the profile's times. The true step times are
those of a profile whose constants are multiplied by that factor.
"""

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from capacity_validate import calibrate
from capacity_validate.campaigns import load_campaign, order_cases
from capacity_validate.cases import MeasuredCase
from capacity_validate.predictions import calibration_target, case_constants, formula, is_calibration_case
from invented_kernels import measured_case, write_log

import capacity
from capacity.base.errors import InvalidInput
from capacity.hardware import HardwareProfile, load_profile, write_profile
from capacity.step.setting import short_run_lookup

SLOW = {"gemm": 1.1, "decode_attention": 1.3, "prefill_attention": 1.3, "moe": 1.4, "elementwise": 1.2}
LOADS: Mapping[str, dict[str, Any]] = {
    "experts": {"model": "qwen3-30b-a3b", "max_model_len": 16384, "input_len": 1000, "output_len": 200}
    | {"concurrency": 16},
    "fp8": {"model": "llama-3.1-8b", "quantization": "fp8", "max_model_len": 8192, "input_len": 1000}
    | {"output_len": 200, "concurrency": 8},
    "bf16": {"model": "llama-3.1-8b", "max_model_len": 8192, "input_len": 4096, "output_len": 200}
    | {"batch_size": 1},
}


def measurements(
    profile: HardwareProfile, factors: Mapping[str, float], *, noise: float = 0.01
) -> list[MeasuredCase]:
    """A standard campaign in which each kernel takes its factor of the time that vLLM's constants give."""
    rng, lookup, found = np.random.default_rng(0), short_run_lookup(profile, "vllm"), []
    for case in order_cases(load_campaign("standard").cuda):
        function = formula(case, profile)
        if function is None or not is_calibration_case(case, profile):
            continue
        target = calibration_target(case)
        assert target is not None
        seconds = function(case_constants(case, lookup)) * factors.get(target.operator, 1.0)
        found.append(measured_case(case, seconds * math.exp(noise * rng.normal()), flops=1.0, bytes=1.0))
    return found


def calibrated(folder: Path, gpu: str, factors: Mapping[str, float], *, noise: float = 0.01) -> str:
    """The name of a variant calibrated on these measurements; its file is in the folder."""
    profile = load_profile(gpu)
    environment = {"device": gpu, "torch": "2.13.0", "kind": "cuda"}
    cases = measurements(profile, factors, noise=noise)
    log = write_log(folder / f"{gpu}.jsonl", cases, environment=environment, profile=profile.name)
    return calibrate([log], name="measured", out=folder).profile


@cache
def slow_profile(gpu: str, folder: Path) -> str:
    """The name of a profile whose engine constants themselves are slower."""
    profile = load_profile(gpu)
    assert profile.step_time is not None
    tables = profile.step_time.model_dump(exclude_none=True)
    places = [table for family in tables["families"].values() for table in family.items()]
    places += [("elementwise", tables["elementwise"])] if "elementwise" in tables else []
    for operator, constants in places:
        kernels = [constants] if operator in ("elementwise", "all_reduce") else constants.values()
        for kernel in kernels:
            for name, value in kernel.items():
                power = name.endswith("_s") - name.endswith("_fraction")
                if power and isinstance(value, float):
                    kernel[name] = value * SLOW.get(operator, 1.0) ** power
    tables["gpu"] = f"{profile.name}@slow"
    step_time = type(profile.step_time).model_validate(tables)
    write_profile(
        profile.model_copy(update={"name": tables["gpu"], "aliases": (), "step_time": step_time}), folder
    )
    return str(tables["gpu"])


def width(quantity: Any) -> float:
    return math.log(quantity.high / quantity.low)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="module")
def slow(folder: Path) -> str:
    return calibrated(folder, "h100-sxm-80gb", SLOW)


@pytest.mark.parametrize("load", LOADS)
def test_a_slow_card_moves_the_engines_tpot_to_its_true_value_and_narrows_it(
    load: str, slow: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPACITY_PROFILES", str(folder))
    true_gpu = slow_profile("h100-sxm-80gb", folder)
    before, after, true = (
        capacity.estimate(gpu=gpu, **LOADS[load]).tpot_s for gpu in ("h100-sxm-80gb", slow, true_gpu)
    )
    assert true.value > 1.05 * before.value
    assert after.value == pytest.approx(true.value, rel=0.03)
    if (
        "concurrency" in LOADS[load]
    ):  # a batch in closed form has other intervals before its GPU is calibrated
        narrower = 0.95 if load == "experts" else 0.98  # dense models' kernels are well known before
        assert width(after) < narrower * width(before)


@pytest.mark.parametrize("gpu", ["h100-sxm-80gb", "b200-sxm-180gb", "a100-pcie-40gb", "rtx-4090"])
def test_measurements_equal_to_the_profile_change_nothing(
    gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = calibrated(tmp_path, gpu, {}, noise=0.0)
    monkeypatch.setenv("CAPACITY_PROFILES", str(tmp_path))
    for name in ("fp8", "bf16") if gpu != "a100-pcie-40gb" else ("bf16",):
        before, after = (capacity.estimate(gpu=each, **LOADS[name]) for each in (gpu, same))
        assert after.tpot_s.value == pytest.approx(before.tpot_s.value, rel=0.005), name
        assert after.ttft_s.value == pytest.approx(before.ttft_s.value, rel=0.005), name


def test_a_slow_sustained_product_makes_prefill_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock falls by a fifth under sustained work; the profile expects 8 %."""
    from capacity_validate.cases import make_case

    profile = load_profile("h100-sxm-80gb")
    cases = measurements(profile, {}, noise=0.0)
    product = make_case("gemm", "bf16", variant="sustained", m=8192, n=8192, k=8192)
    slower = measured_case(product, 2.0 * 1.25, "events", flops=1.0, bytes=1.0, burst_s=2.0)
    log = write_log(
        tmp_path / "m.jsonl",
        [*cases, slower],
        environment={"device": "x", "kind": "cuda"},
        profile=profile.name,
    )
    name = calibrate([log], name="hot", out=tmp_path).profile
    monkeypatch.setenv("CAPACITY_PROFILES", str(tmp_path))
    before, after = (capacity.estimate(gpu=gpu, **LOADS["bf16"]).ttft_s.value for gpu in (profile.name, name))
    assert 1.05 < after / before < 1.20
    assert capacity.estimate(gpu=name, **LOADS["bf16"]).tpot_s.value == pytest.approx(
        capacity.estimate(gpu=profile.name, **LOADS["bf16"]).tpot_s.value, rel=0.02
    )


def test_runs_calibrated_first_are_not_measured_twice(slow: str, folder: Path) -> None:
    from capacity_validate.card_ratios import kernel_adjustment

    profile = load_profile(slow, (str(folder),))
    assert profile.adjustment is not None
    narrow = tuple(map(tuple, (0.5 * profile.adjustment.covariance_matrix).tolist()))
    runs = profile.with_adjustment(profile.adjustment.model_copy(update={"covariance": narrow, "rows": 4}))
    with pytest.raises(InvalidInput, match="already calibrated on 4 values of runs"):
        kernel_adjustment((), runs, source="test")
