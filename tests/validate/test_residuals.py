"""The error band of a calibrated profile: it covers what it says, and never claims more than was seen."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from capacity_validate import calibrate
from capacity_validate.calibrating import fit_profile
from capacity_validate.cases import Case, MeasuredCase, make_case
from capacity_validate.constant_fits import calibrated_profile, split_cases
from capacity_validate.predictions import FAMILY, Predictor, case_constants, formula, profile_lookup
from capacity_validate.residuals import full_depth_steps, prediction_band, step_evidence
from invented_kernels import H200, measured_case, write_log

import capacity
from capacity.cli.main import main
from capacity.hardware import HardwareProfile, load_profile, write_profile
from capacity.model import load_model
from capacity.step.setting import HostTime, short_run_lookup

L4 = load_profile("l4")
MODEL = load_model("llama-3.1-8b")


def measured(case: Case, seconds: float) -> MeasuredCase:
    return measured_case(case, seconds, "events", flops=float(sum(dict(case.sizes).values())))


def gemms(profile: HardwareProfile, *, kernel: str = "bf16", slower: float = 1.25) -> list[MeasuredCase]:
    """Products that take `slower` times what the profile says."""
    found = []
    for m in (1, 8, 64, 256, 1024, 8192):
        for n, k in ((4096, 4096), (28672, 4096), (4096, 14336)):
            case = make_case("gemm", kernel, m=m, n=n, k=k)
            function = formula(case, profile)
            assert function is not None
            constants = case_constants(case, profile_lookup(profile))
            found.append(measured(case, slower * function(constants)))
    return found


def steps(
    profile: HardwareProfile, *, noise: float, host_s: float = 2e-3, seed: int = 0
) -> list[MeasuredCase]:
    """Steps of a whole model with `host_s` of host time and log-normal noise."""
    rng = np.random.default_rng(seed)
    true = Predictor(profile, model=MODEL, host=HostTime(step_s=host_s, overlapped=False))
    cases = [make_case("model prefill", "bf16", tokens=n, layers=32) for n in range(256, 4096, 256)]
    cases += [
        make_case("model decode", "bf16", batch=b, context=c, layers=32)
        for b in (1, 4, 16, 64)
        for c in (512, 1024, 2048, 4096)
    ]
    return [measured(c, (true.seconds(c) or 0.0) * math.exp(noise * rng.normal())) for c in cases]


@pytest.mark.parametrize("count", [3, 4, 8, 20])
def test_the_band_covers_nine_of_ten_next_steps_however_few_there_were(count: int) -> None:
    """4000 draws: the binomial's standard error is 0.5 %, three of them are allowed."""
    rng = np.random.default_rng(count)
    inside = 0
    for _ in range(4000):
        *seen, following = np.exp(0.05 + 0.1 * rng.normal(size=count + 1))
        low, high = prediction_band([(1.0, m) for m in seen])
        inside += low <= following - 1 <= high
    # bounds never leave 0 outside, so that a biased band covers a little more
    assert 0.885 <= inside / 4000 <= 0.93


def test_held_out_steps_see_neither_kernel_fit_nor_host_fit() -> None:
    evidence = steps(H200, noise=0.0)
    held_out = {m.case.id for m in split_cases(full_depth_steps(evidence))[1]}
    spoiled = [measured(m.case, 3 * m.seconds) if m.case.id in held_out else m for m in evidence]
    clean = step_evidence(evidence, MODEL, H200)
    assert clean is not None
    assert clean.host.step_s == pytest.approx(2e-3, rel=1e-3)
    again = step_evidence(spoiled, MODEL, H200)
    assert again is not None
    assert again.host == clean.host
    for phase, pairs in again.held_out.items():
        assert pairs, phase
        for predicted, seconds in pairs:
            assert seconds / predicted == pytest.approx(3.0, rel=1e-3)


def test_bands_of_the_harness_s_own_loop_leave_an_engine_s_alone() -> None:
    cases = [*gemms(H200), *steps(H200, noise=0.04)]
    options: dict[str, Any] = {"name": "x@mine", "source": "test", "model": MODEL}
    assert H200.step_time is not None
    for base in (H200, H200.model_copy(update={"step_time": None})):
        found = fit_profile(cases, base, **options)
        assert set(found.residuals) == {"prefill", "decode"}
        assert all(band.fit.rows > 3 for band in found.residuals.values())
        assert found.profile.step_time is not None
        own = {} if base.step_time is None else base.step_time.residuals
        assert found.profile.step_time.residuals == own


def test_too_few_steps_or_no_model_leave_the_bands_and_say_so() -> None:
    options: dict[str, Any] = {"name": "x@mine", "source": "test"}
    few = fit_profile([*gemms(H200), *steps(H200, noise=0.0)[:4]], H200, model=MODEL, **options)
    assert few.residuals == {}
    assert "0 held-out steps are too few" in few.refused["error band of decode"]
    unnamed = fit_profile(gemms(H200), H200, model=None, **options)
    assert "no steps of a whole model" in unnamed.refused["error bands"]


@pytest.mark.parametrize("load", [{"batch_size": 1}, {"concurrency": 4}], ids=["batch", "load"])
def test_an_estimate_follows_slow_products_and_its_interval_is_that_of_engines(
    load: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the files, as a user does it. The loop's steps scatter by 1 %: an engine's interval stays wider."""
    environment = {"device": "NVIDIA L4", "torch": "2.13.0", "kind": "cuda"}
    header = {"environment": environment, "profile": L4.name, "model": MODEL.name}
    for slower in (1.0, 1.5):
        cases = [*gemms(L4, slower=slower), *(steps(L4, noise=0.01) if slower == 1.0 else [])]
        log = write_log(tmp_path / f"{slower}.jsonl", cases, **header)
        answer = calibrate([log], name=f"by{slower * 10:.0f}", out=tmp_path)
        if slower == 1.0:
            loop_low, loop_high = answer.bands["decode"]
    monkeypatch.setenv("CAPACITY_PROFILES", str(tmp_path))
    same, slow = (
        capacity.estimate("llama-3.2-1b", gpu=f"l4@{name}", input_len=100, output_len=10, **load).tpot_s
        for name in ("by10", "by15")
    )
    assert same.high / same.low > 1.1 * (1 + loop_high) / (1 + loop_low)
    assert slow.value > 1.2 * same.value  # products were measured 1.5 times slower, and vLLM's are those


@pytest.mark.parametrize(
    "verb",
    [
        "fit llama-3.2-1b --gpu h200@mine",
        "simulate llama-3.2-1b --gpu h200@mine --input-len 100 --output-len 10 --request-rate 5 --num-prompts 20",
        "cost llama-3.2-1b --gpu h200@mine --input-len 100 --output-len 10 --request-rate 5 --num-prompts 20 --price 3",
        "scale llama-3.2-1b --gpu h200@mine",
        "gpus",
    ],
)
def test_the_variant_works_wherever_a_gpu_is_named(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"name": "h200-sxm-141gb@mine", "source": "test", "model": None}
    write_profile(fit_profile(gemms(H200), H200, **options).profile, tmp_path)
    monkeypatch.setenv("CAPACITY_PROFILES", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["capacity", *verb.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "h200-sxm-141gb@mine" in capsys.readouterr().out


@pytest.mark.parametrize("profile", [H200, L4], ids=["own constants", "constants of another card"])
def test_an_engine_keeps_its_constants_and_takes_the_measured_factor(profile: HardwareProfile) -> None:
    options: dict[str, Any] = {
        "name": f"{profile.name}@mine",
        "source": "test",
        "model": None,
    }
    cases = [*gemms(profile, slower=1.25), *gemms(profile, kernel="fp8", slower=1.5)]
    found = fit_profile(cases, profile, **options).profile
    assert found.adjustment is not None
    for key, slower in (("bf16", 1.25), ("fp8", 1.5)):
        own, after = (short_run_lookup(each, "vllm").kernel("gemm", key) for each in (profile, found))
        assert after == own
        assert found.adjustment.kernels[f"gemm {key}"]["memory"] == pytest.approx(math.log(slower), abs=0.03)


def test_the_kernels_between_products_stay_the_harness_s_own() -> None:
    """Ours are not fused: an engine must not be charged for them."""
    sizes = {"hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "intermediate": 14336}
    rows = [make_case("elementwise", "bf16", variant="layer", rows=2**i, **sizes) for i in range(16)]
    cases = [measured(case, 60e-6 + 1e-7 * case["rows"]) for case in rows]
    options: dict[str, Any] = {"name": "h200-sxm-141gb@mine", "source": "test", "model": None}
    profile = fit_profile(cases, H200, **options).profile
    own = profile.step_time
    assert own is not None
    assert own.elementwise == (H200.step_time or own).elementwise
    assert own.families[FAMILY].elementwise is not None
    assert profile_lookup(profile).elementwise() == own.families[FAMILY].elementwise
    assert profile.adjustment is None


def test_collectives_are_fitted_from_a_dozen_sizes() -> None:
    true = (
        profile_lookup(H200)
        .nccl("all_reduce")
        .model_copy(update={"fixed_s": 3e-5, "bandwidth_fraction": 0.4, "sharpness": 1.0})
    )
    cases = []
    for exponent in range(12, 30):
        case = make_case("collective", "nccl", variant="all_reduce", ranks=4, bytes=2**exponent)
        function = formula(case, H200)
        assert function is not None
        cases.append(measured(case, function(true)))
    found = fit_profile(cases, H200, name="h200-sxm-141gb@mine", source="test", model=None)
    fitted = profile_lookup(found.profile).nccl("all_reduce")
    assert fitted.bandwidth_fraction == pytest.approx(0.4, rel=0.05)
    assert fitted.fixed_s + 3 * fitted.per_rank_s == pytest.approx(3e-5 + 3 * true.per_rank_s, rel=0.1)
    assert calibrated_profile(H200, found.fits, family=FAMILY).step_time.nccl["all_reduce"] == fitted  # type: ignore[union-attr]


MOE = load_model("qwen3-30b-a3b")


def unseen_steps(*, slower: float) -> list[MeasuredCase]:
    """Steps of a second model that take `slower` times what the profile and 2 ms of host time say."""
    true = Predictor(H200, unseen=MOE, host=HostTime(step_s=2e-3, overlapped=False))
    cases = [make_case("unseen prefill", "bf16", tokens=n, layers=48) for n in (512, 1024, 2048)]
    cases += [make_case("unseen decode", "bf16", batch=b, context=1024, layers=48) for b in (1, 8, 32, 64)]
    return [measured(c, slower * (true.seconds(c) or 0.0)) for c in cases]


def test_a_second_model_widens_the_band_and_earns_one_of_its_own_kind() -> None:
    """Where its experts were fitted: without that, what it says is of constants that nobody measured."""
    bare = H200.model_copy(update={"step_time": None})
    experts = []
    for experts_each, width in ((8, 14336), (128, 768), (64, 1408)):
        for tokens in (1, 8, 32, 128, 512, 2048):
            case = make_case(
                "moe", "bf16", variant="grouped", tokens=tokens, experts=experts_each, top_k=4, hidden=2048,
                intermediate=width,
            )  # fmt: skip
            function = formula(case, bare)
            assert function is not None
            experts.append(measured(case, function(case_constants(case, profile_lookup(bare)))))
    options: dict[str, Any] = {"name": "x@mine", "source": "test", "model": MODEL}
    cases = [*gemms(H200, slower=1.0), *steps(H200, noise=0.02)]
    alone = fit_profile(cases, bare, **options).residuals
    unfitted = fit_profile([*cases, *unseen_steps(slower=1.3)], bare, unseen=MOE, **options).residuals
    assert set(alone) == set(unfitted) == {"prefill", "decode"}
    assert unfitted["prefill"].high == alone["prefill"].high
    both = fit_profile([*cases, *experts, *unseen_steps(slower=1.3)], bare, unseen=MOE, **options).residuals
    assert set(both) == {"prefill", "decode", "decode_moe"}
    assert both["prefill"].high > alone["prefill"].high + 0.05
    assert f"{MODEL.name} and {MOE.name} in the harness's own loop" in both["decode_moe"].fit.source
    assert both["decode_moe"].fit.rows == 4
