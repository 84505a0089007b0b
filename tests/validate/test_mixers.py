"""Attention with windows, chunks and sinks, and latent attention, against their definitions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from capacity_validate.kernels.paged import paged_decode_attention  # noqa: E402
from capacity_validate.model_blocks import window_mask  # noqa: E402
from capacity_validate.small_models import small_model  # noqa: E402
from capacity_validate.step_inputs import InputRow  # noqa: E402
from capacity_validate.transformer import Transformer  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@given(st.integers(1, 12), st.integers(0, 12), st.integers(1, 30), st.booleans())
def test_window_masks_show_the_window_and_no_future(
    new: int, computed: int, window: int, chunked: bool
) -> None:
    mask = window_mask(new, computed, window, "cpu", chunked=chunked)
    if mask is None:
        assert computed + new <= window
        return
    for query in range(new):
        position = computed + query
        first = position // window * window if chunked else max(0, position - window + 1)
        assert mask[query].nonzero().flatten().tolist() == list(range(first, position + 1))
    assert window_mask(new, computed, None, "cpu") is None


def test_padded_latent_decode_is_the_gathered_one() -> None:
    """What a graph holds on a GPU, tables padded to one length, against sequence by sequence."""
    model = Transformer(small_model("tiny-mla"), device="cpu", num_blocks=32)
    model.fill_caches()
    rows = [
        InputRow(tokens=[5], computed=c - 1, blocks=list(range(i * 8, i * 8 + 8)))
        for i, c in enumerate((3, 100, 40))
    ]
    step = model.inputs(rows)
    mixer = model.layers[0].mixer
    spec = mixer.spec
    nope = torch.randn(3, spec.num_heads, spec.qk_nope_head_dim, generator=torch.Generator().manual_seed(1))
    rope = torch.randn(3, spec.num_heads, spec.qk_rope_head_dim, generator=torch.Generator().manual_seed(2))
    key_half, value_half = mixer._expansion()
    query = torch.cat([torch.einsum("bhn,hnl->bhl", nope, key_half), rope], dim=-1)
    padded = torch.einsum("bhl,hvl->bhv", mixer._padded_decode(query, step), value_half)
    assert torch.allclose(padded, mixer._decode(nope, rope, step), atol=1e-4)


def attention_by_definition(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Softmax over what is seen, with exp(sink) in its denominator; float64, [heads, tokens, d]."""
    groups = q.shape[0] // k.shape[0]
    k, v = (part.repeat_interleave(groups, dim=0).double() for part in (k, v))
    scores = q.double() @ k.transpose(1, 2) * q.shape[-1] ** -0.5
    weights = torch.exp(scores).masked_fill(~seen, 0.0)
    total = weights.sum(dim=-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks.double())[:, None, None]
    return (weights / total) @ v


@pytest.mark.parametrize("name", ["tiny-sinks", "tiny-chunked", "tiny-window", "tiny"])
def test_windows_chunks_and_sinks_are_what_their_definition_says(name: str) -> None:
    """Of the mixer itself, prefill and decode, against plain exponentials."""
    spec = small_model(name)
    model = Transformer(spec, device="cpu", num_blocks=16)
    model.fill_caches()
    mixer, context = model.layers[0].mixer, 150
    blocks = torch.randperm(16, generator=torch.Generator().manual_seed(3)).tolist()
    window, chunked = mixer.spec.window_tokens or context, mixer.spec.chunked
    keys, values = (c[torch.tensor(blocks)].flatten(0, 1)[:context].transpose(0, 1) for c in mixer.caches)
    query = torch.arange(context)[:, None]
    first = query // window * window if chunked else query - window + 1
    position = torch.arange(context)[None, :]
    seen = (position <= query) & (position >= first)
    q = torch.randn(
        context, mixer.spec.num_heads, mixer.spec.head_dim, generator=torch.Generator().manual_seed(4)
    )
    expected = attention_by_definition(q.transpose(0, 1), keys, values, seen, mixer.sinks)
    for computed in (0, 70):
        found = mixer._prefill(q[computed:], computed, torch.tensor(blocks))
        assert torch.allclose(found.transpose(0, 1).double(), expected[:, computed:], atol=1e-5)
    for seen_tokens in (context, 120, 64, 1):  # 120 and 64 end a chunk, and fill a window
        last = paged_decode_attention(
            q[seen_tokens - 1 : seen_tokens], *mixer.caches, torch.tensor([blocks]), torch.tensor([seen_tokens]),
            max_context=seen_tokens, window_tokens=mixer.spec.window_tokens, chunked=chunked, sinks=mixer.sinks,
        )  # fmt: skip
        assert torch.allclose(last[0].double(), expected[:, seen_tokens - 1], atol=1e-5)
