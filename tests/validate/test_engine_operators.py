"""Measured operators of an installed vLLM change the predictions for this engine, and for no other engine.

The measured times are those of vLLM's constants multiplied by a known factor for each operator.
"""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from capacity_validate import calibrate
from capacity_validate.campaigns import load_campaign, order_cases
from capacity_validate.cases import MeasuredCase, make_case
from capacity_validate.collective_times import collective_cases
from capacity_validate.engine_cases import add_engine_cases, installed_engine
from capacity_validate.predictions import calibration_target, case_constants, formula
from invented_kernels import measured_case, write_log

import capacity
from capacity.hardware import HardwareProfile, load_profile, parse_profile, write_profile
from capacity.hardware.coefficients import StepCoefficients, universal
from capacity.hardware.kernel_lookup import measured_release
from capacity.step.setting import short_run_lookup

GPU = "h100-sxm-80gb"
SLOW = {"gemm": 1.4, "decode_attention": 1.3, "prefill_attention": 1.3, "moe": 1.4, "elementwise": 1.2}
SLOW |= {"all_reduce": 1.4}
LOADS: dict[str, dict[str, Any]] = {
    "experts": {"model": "qwen3-30b-a3b", "max_model_len": 16384, "input_len": 1000, "output_len": 200}
    | {"concurrency": 16},
    "fp8": {"model": "llama-3.1-8b", "quantization": "fp8", "max_model_len": 8192, "input_len": 1000}
    | {"output_len": 200, "concurrency": 8},
    "tensor parallel": {"model": "llama-3.1-8b", "tensor_parallel_size": 8, "max_model_len": 8192}
    | {"input_len": 1000, "output_len": 200, "concurrency": 8},
    "fp8 experts": {"model": "qwen3-30b-a3b", "quantization": "fp8_block", "max_model_len": 16384}
    | {"input_len": 1000, "output_len": 200, "concurrency": 16},
}


def engine_measurements(profile: HardwareProfile, engine: str, *, noise: float = 0.01) -> list[MeasuredCase]:
    """A standard campaign's operators of vLLM, each with its factor of the time that vLLM's constants give."""
    rng, lookup, found = np.random.default_rng(0), short_run_lookup(profile, "vllm"), []
    plan = load_campaign("standard").cuda
    assert plan.collectives is not None
    collectives = collective_cases((2, 4, 8), plan.collectives.message_bytes, on_cuda=True, engine=engine)
    for case in [*add_engine_cases(order_cases(plan), engine, profile), *collectives]:
        function, target = formula(case, profile), calibration_target(case)
        if not case.engine or function is None or target is None:
            continue
        seconds = function(case_constants(case, lookup)) * SLOW[target.operator]
        found.append(measured_case(case, seconds * math.exp(noise * rng.normal()), flops=1.0, bytes=1.0))
    return found


def slower_profile(profile: HardwareProfile, folder: Path) -> str:
    """The name of a profile whose vLLM constants are slower by the factors, except those of unquantized GEMMs."""
    assert profile.step_time is not None
    tables = profile.step_time.model_dump(exclude_none=True)
    family = tables["families"]["vllm"]
    elementwise = universal().elementwise
    assert elementwise is not None
    family["elementwise"] = elementwise.model_dump(exclude_none=True)
    for operator, factor in SLOW.items():
        kernels = family[operator]
        places = (
            [kernels]
            if operator in ("elementwise", "all_reduce")
            else [v for k, v in kernels.items() if k != "bf16" or operator == "moe"]
        )
        for constants in places:
            for name, value in constants.items():
                power = name.endswith("_s") - name.endswith("_fraction")
                if power and isinstance(value, float):
                    constants[name] = value * factor**power
    name = f"{profile.name}@true"
    step_time = StepCoefficients.model_validate({**tables, "gpu": name})
    write_profile(profile.model_copy(update={"name": name, "aliases": (), "step_time": step_time}), folder)
    return name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="module")
def measured(folder: Path) -> str:
    """The name of the variant that `calibrate` writes from vLLM 0.33's operators."""
    profile = load_profile(GPU)
    log = write_log(
        folder / "m.jsonl",
        engine_measurements(profile, "vllm@0.33"),
        environment={"device": GPU, "torch": "2.13.0", "kind": "cuda"},
        profile=profile.name,
    )
    return calibrate([log], name="measured", out=folder).profile


def test_written_profile_names_engine_and_release(measured: str, folder: Path) -> None:
    text = (folder / f"{measured}.toml").read_text()
    assert '[step_time.families."vllm@0.33".gemm.fp8]' in text
    step_time = parse_profile(text, origin="x").step_time
    assert step_time is not None
    family = step_time.families["vllm@0.33"]
    assert set(family.gemm) == {"fp8", "fp8_block", "w4a16"}
    assert set(family.moe) == {"bf16", "fp8", "fp8_block", "w4a16"}
    assert family.all_reduce is not None
    assert family.all_reduce.fit.rows == 3 * 15
    assert set(family.decode_attention) == set(family.prefill_attention) == {"16bit"}
    assert family.elementwise is not None
    assert "torch" not in step_time.families  # the harness's own kernels were not measured


@pytest.mark.parametrize("load", LOADS)
def test_slow_operators_move_the_engines_tpot_to_its_true_value(
    load: str, measured: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPACITY_PROFILES", str(folder))
    true_gpu = slower_profile(load_profile(GPU), folder)
    before, after, true = (
        capacity.estimate(gpu=gpu, engine="vllm@0.33", **LOADS[load]).tpot_s
        for gpu in (GPU, measured, true_gpu)
    )
    assert true.value > 1.1 * before.value
    assert after.value == pytest.approx(true.value, rel=0.03)


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "tgi"])
def test_operators_of_another_engine_change_nothing(
    engine: str, measured: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPACITY_PROFILES", str(folder))
    before, after = (capacity.estimate(gpu=gpu, engine=engine, **LOADS["fp8"]) for gpu in (GPU, measured))
    assert after.tpot_s.value == before.tpot_s.value
    assert "measured kernels of" not in str(after)


@pytest.mark.parametrize(("engine", "same"), [("vllm@0.33", True), ("vllm@0.30", False)])
def test_answer_names_the_measured_release(
    engine: str, same: bool, measured: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPACITY_PROFILES", str(folder))
    answer = capacity.estimate(gpu=measured, engine=engine, **LOADS["fp8"])
    note = next(note for note in answer.warnings if "measured kernels of vllm@0.33 on this GPU" in note)
    assert ("may differ" in note) is not same


def test_nearest_measured_release_is_the_newest_older_one() -> None:
    coefficients = StepCoefficients.model_validate(
        {"families": {name: {} for name in ("vllm", "vllm@0.9", "vllm@0.17", "vllm@0.33", "sglang@0.20")}}
    )
    releases = {"vllm@0.17": "vllm@0.17", "vllm@0.30": "vllm@0.17", "vllm@0.8": "vllm@0.9", "tgi@3.0": None}
    assert {engine: measured_release(coefficients, engine) for engine in releases} == releases
    assert measured_release(None, "vllm@0.33") is None


@pytest.mark.parametrize(
    ("version", "engine"),
    [("0.33.0", "vllm@0.33"), ("0.33.1", "vllm@0.33.1"), ("0.34.0rc1+cu130", "vllm@0.34"), (None, "")],
)
def test_installed_engine_is_named_with_its_release(
    version: str | None, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capacity_validate.engine_cases.package_version", lambda name: version)  # noqa: ARG005
    assert installed_engine() == engine


def test_step_stage_times_an_installed_engine_only_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from capacity_validate.stages import steps

    monkeypatch.setattr(steps, "installed_engine", lambda: "vllm@0.33")
    session: Any = SimpleNamespace(
        plan=load_campaign("standard").cuda, profile=load_profile(GPU), on_gpu=True
    )
    timed = steps.kernel_cases(session)
    own = make_case("gemm", "fp8", m=32, n=8192, k=8192)
    places = [place for place, case in enumerate(timed) if replace(case, variant="") == own]
    assert [timed[place].variant for place in places] == ["", "vllm@0.33"]
    session.on_gpu = False
    assert not any(case.engine for case in steps.kernel_cases(session))
