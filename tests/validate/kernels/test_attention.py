"""Reference attention: no future, and memory by the square."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.cases import make_case  # noqa: E402
from capacity_validate.kernels import Bench, prepare  # noqa: E402
from capacity_validate.kernels.attention import reference_attention  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_causal_reference_masks_the_future() -> None:
    q, k, v = (torch.randn(1, 2, 6, 8, dtype=torch.float64) for _ in range(3))
    whole = reference_attention(torch, q, k, v, first_position=0)
    first_three = reference_attention(torch, q[:, :, :3], k[:, :, :3], v[:, :, :3], first_position=0)
    assert torch.allclose(whole[:, :, :3], first_three, atol=1e-14)


def test_plain_attention_needs_memory_by_the_square_and_flash_does_not() -> None:
    """Bytes created on the way, at 128 and 512 tokens: 16 times and 4 times (with what both must create)."""

    def created(tokens: int, backend: str) -> float:
        case = make_case(
            "prefill_attention",
            "fp32",
            variant=backend,
            batch=1,
            heads=2,
            kv_heads=2,
            head_dim=32,
            tokens=tokens,
        )
        prepared = prepare(case, Bench(torch, "cpu", 1, torch.Generator().manual_seed(0), 1e9))
        assert prepared.extra_bytes is not None
        return prepared.extra_bytes()

    assert created(512, "math") / created(128, "math") > 10
    assert created(512, "flash") / created(128, "flash") < 5
