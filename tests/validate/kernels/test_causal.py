"""Causal attention at the end of a longer context: right by definition, and by FlashAttention where it is taken."""

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.kernels import paged  # noqa: E402
from capacity_validate.kernels.attention import reference_attention  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPES = [(5, 5, 4, 4), (5, 12, 4, 4), (5, 12, 8, 2), (1, 9, 8, 1)]  # new tokens, context, heads, KV heads


def some(
    new: int, context: int, heads: int, kv_heads: int, *, d: int = 16, dv: int = 16
) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(1, heads, new, d, generator=generator)
    k = torch.randn(1, kv_heads, context, d, generator=generator)
    return q, k, torch.randn(1, kv_heads, context, dv, generator=generator)


@pytest.mark.parametrize("shape", SHAPES)
def test_new_tokens_see_the_context_and_each_other_up_to_themselves(shape: tuple[int, ...]) -> None:
    q, k, v = some(*shape)
    expected = reference_attention(torch, q, k, v, positions=range(k.shape[2] - q.shape[2], k.shape[2]))
    assert torch.allclose(paged.causal_attention(q, k, v).double(), expected, atol=1e-5)


@pytest.mark.parametrize("shape", [s for s in SHAPES if s[2] == s[3]])
def test_the_form_for_flash_attention_means_the_same(shape: tuple[int, ...]) -> None:
    """Aligned to the lower right: upper-left alignment, a common slip, would hide most of the context."""
    q, k, v = some(*shape)
    expected = reference_attention(torch, q, k, v, positions=range(k.shape[2] - q.shape[2], k.shape[2]))
    assert torch.allclose(paged._flash_attention(q, k, v, scale=None).double(), expected, atol=1e-5)


@pytest.fixture
def as_if_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Tensors of the CPU that say they are a GPU's, and FlashAttention's operator as torch documents it for one."""
    import torch.nn.attention.bias as bias

    called: list[tuple[int, ...]] = []

    def flash(
        q: Any, k: Any, v: Any, dropout_p: float, *, is_causal: bool, scale: float, **_: Any
    ) -> tuple[Any]:
        assert (dropout_p, is_causal) == (0.0, True)
        assert q.shape[-1] == k.shape[-1] == v.shape[-1]
        called.append(tuple(q.shape))
        first = k.shape[2] - q.shape[2]
        q = q * (scale * q.shape[-1] ** 0.5)
        return (reference_attention(torch, q, k, v, positions=range(first, first + q.shape[2])).to(q.dtype),)

    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(paged, "supports_flash", lambda *_: True)
    monkeypatch.setattr(bias, "can_use_flash_attention", lambda _: True)
    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_flash_attention", flash)
    return called


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dv", [16, 8])
def test_chunks_and_verification_call_flash_attention_and_nothing_else(
    shape: tuple[int, ...], dv: int, as_if_on_a_gpu: list[tuple[int, ...]]
) -> None:
    q, k, v = some(*shape, dv=dv)
    used: Counter[str] = Counter()
    out = paged.causal_attention(q, k, v, scale=0.2, used=used)
    expected = reference_attention(
        torch, q * 0.2 * q.shape[-1] ** 0.5, k, v, positions=range(k.shape[2] - q.shape[2], k.shape[2])
    )
    assert torch.allclose(out.double(), expected, atol=1e-5)
    assert used == {"flash": 1}
    assert as_if_on_a_gpu == ([tuple(q.shape)] if shape[0] < shape[1] else [])


@pytest.mark.usefixtures("as_if_on_a_gpu")
def test_what_flash_does_not_take_is_counted_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "supports_flash", lambda *_: False)
    used: Counter[str] = Counter()
    paged.causal_attention(*some(5, 12, 8, 2), used=used)
    assert used == {"masked": 1}


def test_torch_is_asked_in_the_words_that_it_knows() -> None:
    """Arguments of SDPAParams and the answer's type, in this torch; a CPU's tensors are refused."""
    assert paged.supports_flash(*some(5, 12, 8, 2)) is False
