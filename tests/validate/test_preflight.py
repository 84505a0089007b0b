"""Questions asked of a GPU before anything is timed: one sentence each, and nothing where all is well."""

from typing import Any

import capacity_validate.session as module
import pytest
from capacity_validate.cases import make_case
from capacity_validate.kernels import KernelContext, Unsupported, prepare
from capacity_validate.session import preflight
from fake_cuda import FakeCuda, FakeDevice

from capacity.base.errors import InvalidInput


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
        (
            ModuleNotFoundError("No module named 'triton'"),
            r"Triton, which most cases need, does not work here.*pip install triton.*No module",
        ),
        (
            RuntimeError("Failed to find C compiler. Please specify via CC environment variable."),
            "C compiler",
        ),
        (
            RuntimeError("a kernel has an error of 1.0e+00"),
            "Triton, which most cases need, does not work here.*an error of",
        ),
    ],
)
def test_a_gpu_without_triton_is_one_sentence(
    answers: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    answers.setattr(module, "check_triton", fail)
    with pytest.raises(InvalidInput, match=said) as caught:
        preflight(FakeCuda().torch, "cuda:0")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("answers")
def test_a_context_that_is_broken_before_we_begin_is_one_sentence() -> None:
    fake = FakeCuda()
    fake.broken = "CUDA error: uncorrectable ECC error encountered"
    with pytest.raises(InvalidInput, match=r"no kernel runs on this GPU .*ECC"):
        preflight(fake.torch, "cuda:0")
    fake.broken = "CUDA error: no kernel image is available for execution on the device"
    with pytest.raises(InvalidInput, match="no code for this GPU"):
        preflight(fake.torch, "cuda:0")


@pytest.mark.usefixtures("answers")
def test_a_card_without_bf16_leaves_its_cases_out_before_they_touch_it() -> None:
    fake = FakeCuda(devices=(FakeDevice(name="Tesla T4", major=7, minor=5),))
    found = preflight(fake.torch, "cuda:0")
    assert found.remarks == ("compute capability 7.5 has no native bf16, so bf16 cases are skipped",)
    bench = KernelContext(fake.torch, "cuda:0", 2**20, None, 1e9, missing=found.missing)
    with pytest.raises(Unsupported, match=r"7\.5 has no native bf16"):
        prepare(make_case("gemm", "bf16", m=1, n=64, k=64), bench)


@pytest.mark.usefixtures("answers")
def test_refused_graphs_are_said_and_the_run_goes_on() -> None:
    fake = FakeCuda(capture_fails=True)
    found = preflight(fake.torch, "cuda:0")
    assert "CUDA graphs are not available here" in found.remarks[0]
    assert fake.stream.number == 0


def test_a_cpu_is_asked_nothing() -> None:
    assert preflight(None, "cpu").answers == {}
