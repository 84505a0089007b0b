"""Questions asked of a GPU before anything is timed: one sentence each, and nothing where all is well."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import capacity_validate.session as module
from capacity_validate.campaigns import load_campaign, order_cases
from capacity_validate.cases import make_case
from capacity_validate.devices import DeviceFacts
from capacity_validate.kernels import TRITON, KernelContext, Unsupported, missing_part, prepare
from capacity_validate.predictions import Target, calibration_target, formula
from capacity_validate.profile_match import provisional_profile
from capacity_validate.session import Session, preflight
from capacity_validate.small_models import find_model
from capacity_validate.stages.steps import unsupported_reason
from fake_cuda import FakeCuda, FakeDevice

from capacity.base.errors import InvalidInput

T4 = DeviceFacts(
    kind="cuda", index=0, name="Tesla T4", memory_total_bytes=15 * 2**30, memory_free_bytes=15 * 2**30,
    compute_units=40, cache_bytes=4 * 2**20, compute_capability="7.5", sm_clock_max_hz=1.59e9,
    memory_clock_max_hz=5.001e9, memory_bus_bits=256,
)  # fmt: skip


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Products and Triton need real tensors: they answer well, unless a test says otherwise."""
    monkeypatch.setattr(module, "_test_product", lambda *_: None)
    monkeypatch.setattr(module, "check_triton", lambda *_: None)
    return monkeypatch


@pytest.mark.usefixtures("answers")
def test_a_sound_gpu_gets_no_remark_and_its_answers_are_recorded() -> None:
    found = preflight(FakeCuda().torch, "cuda:0")
    assert found.remarks == ()
    assert found.missing == {}
    assert found.answers == dict.fromkeys(("a kernel", "a product", "Triton", "a CUDA graph"), "ok")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'triton'"), r"pip install triton.*No module"),
        (
            RuntimeError("Failed to find C compiler. Please specify via CC environment variable."),
            "C compiler.*Failed to find C compiler",
        ),
        (RuntimeError("a kernel has an error of 1.0e+00"), "Triton does not work here.*an error of"),
    ],
)
def test_without_triton_only_its_cases_are_skipped(
    answers: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    answers.setattr(module, "check_triton", fail)
    fake = FakeCuda()
    found = preflight(fake.torch, "cuda:0")
    (remark,) = found.remarks
    assert re.search(said, remark)
    assert "\n" not in remark
    assert found.answers["a CUDA graph"] == "ok"
    plan = load_campaign("standard").cuda
    skipped = {case for case in order_cases(plan) if missing_part(case, found.missing)}
    assert {case.operator for case in skipped} == {"decode_attention", "elementwise", "moe"}
    assert all(case.variant == "paged" for case in skipped if case.operator == "decode_attention")
    assert len(order_cases(plan)) - len(skipped) > 300
    session = SimpleNamespace(missing=found.missing)
    assert unsupported_reason(session, find_model("llama-3.1-8b")) == found.missing[TRITON]
    bench = KernelContext(fake.torch, "cuda:0", 2**20, None, 1e9, missing=found.missing)
    with pytest.raises(Unsupported, match=said):
        prepare(make_case("elementwise", "fp32", variant="norm", rows=1, hidden=64), bench)


@pytest.mark.usefixtures("answers")
def test_a_context_that_is_broken_before_we_begin_is_one_sentence() -> None:
    fake = FakeCuda()
    fake.broken = "CUDA error: uncorrectable ECC error encountered"
    with pytest.raises(InvalidInput, match=r"the test kernel failed on this GPU .*ECC"):
        preflight(fake.torch, "cuda:0")
    fake.broken = "CUDA error: no kernel image is available for execution on the device"
    with pytest.raises(InvalidInput, match="no code for this GPU"):
        preflight(fake.torch, "cuda:0")


@pytest.mark.usefixtures("answers")
def test_a_card_without_bf16_leaves_its_cases_out_before_they_touch_it() -> None:
    fake = FakeCuda(devices=(FakeDevice(name="Tesla T4", major=7, minor=5),))
    found = preflight(fake.torch, "cuda:0")
    assert found.remarks == (
        "compute capability 7.5 has no native bf16, so fp16 replaces it",
        "compute capability 7.5 has no native FP8, so FP8 cases are skipped",
    )
    bench = KernelContext(fake.torch, "cuda:0", 2**20, None, 1e9, missing=found.missing)
    with pytest.raises(Unsupported, match=r"7\.5 has no native bf16"):
        prepare(make_case("gemm", "bf16", m=1, n=64, k=64), bench)
    session = Session(
        torch=None, facts=SimpleNamespace(kind="cuda"), campaign=load_campaign("standard"), profile=None, log=None,
        deadline=0.0, seed=0, progress=None, missing=found.missing,
    )  # fmt: skip
    cases = order_cases(session.plan)
    assert not any(case.kernel == "bf16" for case in cases)
    assert len(set(cases)) == len(cases)
    served = [case for case in cases if case.operator == "decode_attention" and case.kernel == "fp16"]
    assert served
    assert not any(missing_part(case, found.missing) for case in served)
    assert session.find_model("llama-3.1-8b").dtype == "fp16"
    assert unsupported_reason(session, session.find_model("llama-3.1-8b")) is None
    card = provisional_profile(T4)
    assert card.compute_type_16_bit == "fp16"
    (gemm, *_) = (case for case in cases if case.operator == "gemm" and case.kernel == "fp16")
    assert formula(gemm, card) is not None
    assert calibration_target(gemm) == Target("gemm", "bf16")  # as the step model looks it up


@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize(("major", "minor", "missing"), [(8, 0, True), (8, 6, True), (8, 9, False)])
def test_fp8_cases_are_unsupported_below_capability_8_9(major: int, minor: int, missing: bool) -> None:
    """Triton compiles no FP8 conversion there: unsupported, which fails no run, and known before any case."""
    fake = FakeCuda(devices=(FakeDevice(name="NVIDIA A100-SXM4-80GB", major=major, minor=minor),))
    found = preflight(fake.torch, "cuda:0")
    shape = {"heads": 32, "kv_heads": 8, "head_dim": 128, "batch": 1, "context": 512}
    reasons = {
        kernel: missing_part(make_case("decode_attention", kernel, variant="paged", **shape), found.missing)
        for kernel in ("bf16", "fp8")
    }
    said = f"compute capability {major}.{minor} has no native FP8" if missing else None
    assert reasons == {"bf16": None, "fp8": said}
    assert found.remarks == ((f"{said}, so FP8 cases are skipped",) if missing else ())


@pytest.mark.usefixtures("answers")
def test_refused_graphs_are_said_and_the_run_goes_on() -> None:
    fake = FakeCuda(capture_fails=True)
    found = preflight(fake.torch, "cuda:0")
    assert "CUDA graphs are not available here" in found.remarks[0]
    assert fake.stream.number == 0


def test_a_cpu_is_asked_nothing() -> None:
    assert preflight(None, "cpu").answers == {}
