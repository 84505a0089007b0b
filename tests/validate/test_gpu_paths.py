"""Every path that only a GPU takes, in shapes: builders of all kernels, and whole models, as torch dispatches them."""

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capacity_validate import model_blocks  # noqa: E402
from capacity_validate.campaigns import load_campaign  # noqa: E402
from capacity_validate.cases import Case  # noqa: E402
from capacity_validate.kernels import KernelContext, Unsupported, paged, prepare  # noqa: E402
from capacity_validate.kernels.attention import PACKAGES  # noqa: E402
from capacity_validate.small_models import small_model, small_model_names  # noqa: E402
from capacity_validate.step_inputs import InputRow  # noqa: E402
from capacity_validate.transformer import DecodeGraph, Transformer  # noqa: E402
from gpu_shapes import gpu_shapes  # noqa: E402
from torch.nn import functional  # noqa: E402

from capacity.model import ModelSpec  # noqa: E402
from capacity.model.layers import Attention  # noqa: E402
from capacity.model.quantization import find_format, uniform_scheme  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
GROUPED = hasattr(torch, "_grouped_mm")
BUILT_ELSEWHERE = ("launch", "transfer")  # graphs and pinned memory: the fake CUDA and a GPU have these


def one_of_each_kind() -> list[Case]:
    plan = load_campaign("full").plan("cuda")
    cases = [case for group in plan.kernels for case in (group.cases()[0], group.cases()[-1])]
    return list(dict.fromkeys(case for case in cases if case.operator not in BUILT_ELSEWHERE))


@pytest.mark.parametrize("case", one_of_each_kind(), ids=lambda case: case.id)
def test_every_builder_runs_in_shapes_of_a_gpu(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpu_shapes(monkeypatch):
        bench = KernelContext(torch, "cuda:0", 50 * 2**20, None, 4e9)
        if case.kernel == "int8" and case["m"] <= 16:
            with pytest.raises(Unsupported, match="more than 16 rows"):
                prepare(case, bench)
            return
        if case.variant in PACKAGES:
            with pytest.raises(Unsupported, match="is not installed here"):
                prepare(case, bench)
            return
        if missing(case):
            with pytest.raises(Unsupported):
                prepare(case, bench)
            return
        prepared = prepare(case, bench)
        for call in prepared.calls[:2]:
            call()
    assert prepared.flops + prepared.bytes > 0


def missing(case: Case) -> bool:
    """Whether this torch has no such product: `torch>=2.6` is what the harness asks for, and later ones have more."""
    grouped = case.operator == "moe" and case.variant == "grouped"
    return (
        (grouped and not GROUPED)
        or (case.kernel in ("nvfp4", "mxfp8") and not hasattr(torch, "float4_e2m1fn_x2"))
        or (case.kernel == "fp8_block" and not hasattr(functional, "ScalingType"))
    )


def in_half(name: str) -> ModelSpec:
    half = find_format("bf16")
    return replace(small_model(name), dtype="bf16", checkpoint=uniform_scheme("bf16", half, base=half))


def rows_of_each_kind() -> list[InputRow]:
    """Two decoded rows, a fresh prompt, a later chunk of another, and a verification of three drafts."""
    blocks = iter(range(100))

    def held(tokens: int) -> list[int]:
        return [next(blocks) for _ in range(-(-tokens // 16))]

    return [
        InputRow(tokens=[5], computed=30, blocks=held(31)),
        InputRow(tokens=[6], computed=99, blocks=held(100)),
        InputRow(tokens=[7] * 40, computed=0, blocks=held(40)),
        InputRow(tokens=[8] * 20, computed=64, blocks=held(84), samples=0),
        InputRow(tokens=[9] * 4, computed=50, blocks=held(54), samples=4),
    ]


@pytest.mark.parametrize("name", small_model_names())
@pytest.mark.parametrize("capability", [(9, 0), (8, 9)])
def test_a_whole_model_steps_in_shapes_of_a_gpu(
    name: str, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged, "supports_flash", lambda q, k, _: q.shape[2] == k.shape[2])
    experts: list[str] = []
    monkeypatch.setattr(model_blocks, "looped_experts", lambda _, __, x, *___: (experts.append("loop"), x)[1])
    with gpu_shapes(monkeypatch, capability=capability) as launches:
        model = Transformer(in_half(name), device="cuda:0", num_blocks=64)
        logits = model.logits(model.inputs(rows_of_each_kind()))
        assert (tuple(logits.shape), logits.device.type) == ((2 + 1 + 0 + 4, 4096), "cuda")
        decodes = [grid for grid, constants in launches.taken if "SPLITS_PADDED" in constants]
        assert len(decodes) == (0 if name == "tiny-mla" else model.model.num_layers)
        if model.model.is_moe:
            assert model.capturable is (capability == (9, 0) and GROUPED)
            assert bool(experts) is not model.capturable
        if model.capturable:
            graph = DecodeGraph(model, AtOnce(), batch=4, max_context=128)  # type: ignore[arg-type]
            assert tuple(graph.chosen.shape) == (4,)
    plain = isinstance(model.model.layer_groups[0].mixer, Attention) and name not in ("tiny-sinks",)
    if plain and model.model.window_tokens is None:
        assert model.attention_kernels == {"flash": 6, "masked": 12}  # prompt; chunk and verification


class AtOnce:
    """Captures that run what they should record."""

    shared_pool = None

    def run_on_side_stream(self, body: Any) -> Any:
        return body()

    def capture(self, body: Any, *, pool: Any = None) -> tuple[None, Any]:  # noqa: ARG002
        return None, body()
