"""The same checks on whatever device is here: a CPU in CI, and first of all things on a machine with a GPU.

Every kind of kernel against its reference, the whole model cached against uncached, and what only a GPU has: Triton
kernels in bf16, graphs against eager steps.
"""

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.campaigns import load_campaign  # noqa: E402
from capacity_validate.capture import GraphCapturer  # noqa: E402
from capacity_validate.cases import Case  # noqa: E402
from capacity_validate.kernels import (  # noqa: E402
    TRITON,
    KernelContext,
    Unsupported,
    fused,
    prepare,
)
from capacity_validate.session import preflight  # noqa: E402
from capacity_validate.small_models import small_model_names  # noqa: E402
from capacity_validate.technique_checks import (  # noqa: E402
    GRAPH_DOUBT,
    GRAPHED,
    MODEL_TOLERANCES,
    WINDOWS,
    cache_difference,
    device_model,
    graph_logit_gap,
    paged_finding,
    served_dtype,
)
from capacity_validate.transformer import Transformer  # noqa: E402

ON_GPU = bool(torch.cuda.is_available())
DEVICE = "cuda:0" if ON_GPU else "cpu"
MISSING = preflight(torch, DEVICE).missing
NEEDS_GPU = pytest.mark.skipif(
    not ON_GPU or bool(MISSING.keys() & {"bf16", TRITON}), reason="needs a GPU with bf16, and Triton"
)
MODEL_TOLERANCE = MODEL_TOLERANCES[served_dtype(DEVICE)]


def some_of_each_kind() -> list[Case]:
    """The smallest and the largest case of each group of the standard campaign."""
    plan = load_campaign("standard").plan("cuda" if ON_GPU else "cpu")
    return list(
        dict.fromkeys(case for group in plan.kernels for case in (group.cases()[0], group.cases()[-1]))
    )


if not ON_GPU:  # references of a GPU's kernels are worth every core
    pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("case", some_of_each_kind(), ids=lambda case: case.id)
def test_every_kind_of_kernel_is_right_or_said_to_be_missing(case: Case) -> None:
    generator = torch.Generator(device=DEVICE).manual_seed(0)
    bench = KernelContext(torch, DEVICE, 50 * 2**20, generator, 8e9, missing=MISSING)
    try:
        prepared = prepare(case, bench)
    except Unsupported as reason:
        pytest.skip(str(reason))
    for call in prepared.calls[:2]:
        call()
    if prepared.check is not None:
        assert prepared.check() <= prepared.tolerance
    if prepared.extra_bytes is not None:
        assert prepared.extra_bytes() >= 0


@NEEDS_GPU  # on a CPU `device_findings` does the same
@pytest.mark.parametrize("name", small_model_names())
def test_a_model_says_the_same_with_and_without_its_cache(name: str) -> None:
    model = Transformer(device_model(DEVICE, name), device=DEVICE, num_blocks=32)
    assert cache_difference(model) < MODEL_TOLERANCE


@NEEDS_GPU
@pytest.mark.parametrize(("heads", "kv_heads", "width", "window"), WINDOWS)
def test_paged_attention_in_bf16(heads: int, kv_heads: int, width: int, window: int | None) -> None:
    found = paged_finding(DEVICE, heads=heads, kv_heads=kv_heads, width=width, window=window)
    assert found.value < 2e-2


@NEEDS_GPU
def test_fused_kernels_in_bf16() -> None:
    generator = torch.Generator(device=DEVICE).manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=DEVICE).bfloat16()

    x, residual, weight = random(9, 4096), random(9, 4096), random(4096)
    for ours, plain in zip(
        fused.add_norm(x, residual, weight, 1e-6),
        fused.plain_add_norm(x, residual, weight, 1e-6),
        strict=True,
    ):
        assert torch.allclose(ours.float(), plain.float(), atol=0.05, rtol=0.02)
    both = random(9, 2 * 14336)
    gate, up = both.float().chunk(2, dim=-1)
    assert torch.allclose(
        fused.silu_and_mul(both).float(), torch.nn.functional.silu(gate) * up, atol=0.05, rtol=0.02
    )
    q, k, v = (p.reshape(9, -1, 128) for p in random(9, 48 * 128).split((4096, 1024, 1024), dim=-1))
    tables = fused.rope_tables(128, 100, base=1e4, device=DEVICE, dtype=torch.bfloat16)
    positions, slots = torch.arange(9, device=DEVICE) * 7, torch.randperm(32, device=DEVICE)[:9]
    ours, plain = (torch.zeros(2, 2, 16, 8, 128, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    turned = fused.rope_and_cache(
        q, k, v, positions=positions, tables=tables, keys=ours[0], values=ours[1], slots=slots
    )
    fused.write_cache(plain[0], plain[1], fused.rotate(k, positions, tables), v, slots)
    assert torch.allclose(turned.float(), fused.rotate(q, positions, tables).float(), atol=0.05, rtol=0.02)
    assert torch.allclose(ours.float(), plain.float(), atol=0.05, rtol=0.02)


@NEEDS_GPU
@pytest.mark.parametrize("name", GRAPHED)
def test_graphs_give_the_eager_tokens(name: str) -> None:
    model = Transformer(device_model(DEVICE, name), device=DEVICE, num_blocks=64)
    if not model.capturable:
        pytest.skip("no CUDA graph can hold these experts on this GPU")
    assert graph_logit_gap(model, GraphCapturer(torch, DEVICE)) < GRAPH_DOUBT
