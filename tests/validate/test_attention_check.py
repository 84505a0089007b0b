"""The kernel that attention really ran is held against the one that is calibrated."""

from collections import Counter
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from capacity_validate.transformer import attention_findings


def model(device: str = "cuda:0", dtype: str = "bf16", **counts: int) -> SimpleNamespace:
    return SimpleNamespace(
        device=device, model=SimpleNamespace(dtype=dtype), attention_kernels=Counter(counts)
    )


def test_a_written_out_mask_on_a_gpu_is_a_failed_finding() -> None:
    (sound,) = attention_findings(model(flash=64), "serving")  # type: ignore[arg-type]
    assert sound.passed
    (odd,) = attention_findings(model(flash=64, masked=32), "serving")  # type: ignore[arg-type]
    assert not odd.passed
    assert "64 by flash, 32 by masked" in odd.detail


@pytest.mark.parametrize(
    "quiet", [model("cpu", "fp32", masked=3), model("cuda:0", "fp32", masked=3), model()]
)
def test_nothing_is_asked_of_a_cpu_of_fp32_or_of_no_prefill(quiet: SimpleNamespace) -> None:
    assert attention_findings(quiet, "serving") == ()  # type: ignore[arg-type]
