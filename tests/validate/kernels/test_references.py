"""Checks against float64: a small part of a kernel's own work, never on the host, and still they find what is wrong."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.cases import Case, make_case  # noqa: E402
from capacity_validate.kernels import attention, experts  # noqa: E402
from capacity_validate.kernels.attention import sample_indices  # noqa: E402
from kernel_checks import error_of, prepared  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

HEADS = {"heads": 16, "kv_heads": 8, "head_dim": 32}
LARGE = [
    make_case("prefill_attention", "fp32", batch=2, tokens=512, **HEADS),
    make_case("decode_attention", "fp32", variant="paged", batch=16, context=512, **HEADS),
    make_case("decode_attention", "fp32", variant="contiguous", batch=16, context=512, **HEADS),
    make_case("mla_decode", "fp32", batch=8, context=256, heads=32, latent=64, rope=16, nope=32),
    make_case("gemm", "fp32", m=512, n=1024, k=128),
    make_case("moe", "fp32", variant="loop", tokens=256, experts=8, top_k=2, hidden=128, intermediate=128),
]


@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.operator + case.variant)
def test_a_reference_costs_a_small_part_of_the_kernel_it_checks(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the FLOPs of one call, the call itself aside."""
    built = prepared(case)
    with FlopCounterMode(display=False) as own:
        built.calls[0]()
    monkeypatch.setattr(torch.Tensor, "cpu", lambda *_: pytest.fail("a check went to the host"))
    with FlopCounterMode(display=False) as both:
        assert error_of(built) <= built.tolerance
    reference = both.get_total_flops() - own.get_total_flops()
    assert reference < 0.15 * built.flops


@pytest.mark.parametrize("case", LARGE[:4], ids=lambda case: case.operator + case.variant)
def test_what_is_sampled_finds_one_wrong_row_at_the_end(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last tokens, the last head, the last sequence: where tiles and groups go wrong."""
    built = prepared(case)
    right = error_of(built)
    assert right < built.tolerance

    def spoiled(_: Any, out: Any, reference: Any) -> float:
        out = out.clone()
        out[(-1,) * (out.dim() - 1)] += 1.0  # one row of the last head of the last sequence
        return float((out.double() - reference).norm() / reference.norm())

    monkeypatch.setattr(attention, "relative_error", spoiled)
    assert error_of(built) > built.tolerance


def test_an_expert_is_never_doubled_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Mixtral expert in float64 would take 940 MB: pieces give the same."""
    built = prepared(LARGE[-1])
    whole = error_of(built)
    monkeypatch.setattr(experts, "DOUBLED_ROWS", 7)
    assert error_of(built) == pytest.approx(whole, rel=1e-3)


def test_samples_hold_both_ends() -> None:
    assert sample_indices(3, 8) == [0, 1, 2]
    assert sample_indices(512, 8)[0] == 0
    assert sample_indices(512, 8)[-1] == 511
    assert len(sample_indices(512, 8)) == 8
    assert sample_indices(1, 2) == [0]
