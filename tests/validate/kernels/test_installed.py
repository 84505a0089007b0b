"""Kernels of packages that are not here: stand-ins with their documented calls, and a refusal where they lack."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.cases import make_case  # noqa: E402
from capacity_validate.kernels import Unsupported  # noqa: E402
from capacity_validate.kernels.attention import reference_attention  # noqa: E402
from kernel_checks import error_of, prepared  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
HEADS = {"heads": 8, "kv_heads": 2, "head_dim": 32}
PREFILL = {"batch": 1, "tokens": 40, **HEADS}


def causal(q: Any, k: Any, v: Any) -> Any:
    """[batch, tokens, heads, d], as FlashAttention has them."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return reference_attention(torch, q, k, v, positions=range(q.shape[2])).to(q.dtype).transpose(1, 2)


class Wrapper:
    """Decodes page by page from the index arrays alone."""

    def __init__(self, workspace: Any, layout: str, *, use_tensor_cores: bool) -> None:
        assert (layout, workspace.dtype, use_tensor_cores) == ("NHD", torch.uint8, True)

    def plan(
        self, indptr: Any, indices: Any, last: Any, heads: int, kv_heads: int, d: int, page: int,
        *, q_data_type: Any, kv_data_type: Any,
    ) -> None:  # fmt: skip
        assert (heads, kv_heads, d, q_data_type, kv_data_type) == (8, 2, 32, torch.float32, torch.float32)
        self.indptr, self.indices, self.last, self.page = indptr.tolist(), indices, last.tolist(), page

    def run(self, q: Any, cache: Any) -> Any:
        out = []
        for row in range(q.shape[0]):
            pages = self.indices[self.indptr[row] : self.indptr[row + 1]].long()
            length = (len(pages) - 1) * self.page + self.last[row]
            k, v = (part[pages].flatten(0, 1)[:length].transpose(0, 1)[None] for part in cache)
            out.append(reference_attention(torch, q[row][None, :, None], k, v)[0, :, 0].to(q.dtype))
        return torch.stack(out)


def test_what_is_not_installed_is_unsupported_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for variant, package in (("fa3", "flash_attn_interface"), ("flashinfer", "flashinfer")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(Unsupported, match=f"{package} is not installed here"):
            prepared(make_case("prefill_attention", "fp32", variant=variant, **PREFILL))


@pytest.mark.parametrize("as_tuple", [False, True])
def test_flash_attention_3_gets_its_order_of_dimensions(
    as_tuple: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flash(q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        assert causal
        assert q.shape[1:] == (40, 8, 32)
        out = causal_out(q, k, v)
        return (out, None) if as_tuple else out

    causal_out = causal
    monkeypatch.setitem(sys.modules, "flash_attn_interface", SimpleNamespace(flash_attn_func=flash))
    built = prepared(make_case("prefill_attention", "fp32", variant="fa3", **PREFILL))
    assert error_of(built) < built.tolerance


def test_flashinfer_prefills_one_prompt_and_decodes_over_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    def single(q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        assert causal
        return one(q[None], k[None], v[None])[0]

    one = causal
    fake = SimpleNamespace(single_prefill_with_kv_cache=single, BatchDecodeWithPagedKVCacheWrapper=Wrapper)
    monkeypatch.setitem(sys.modules, "flashinfer", fake)
    for case in (
        make_case("prefill_attention", "fp32", variant="flashinfer", **PREFILL),
        make_case("decode_attention", "fp32", variant="flashinfer", batch=3, context=75, **HEADS),
    ):
        built = prepared(case)
        assert error_of(built) < built.tolerance
    with pytest.raises(Unsupported, match="one prompt"):
        prepared(make_case("prefill_attention", "fp32", variant="flashinfer", **{**PREFILL, "batch": 2}))
