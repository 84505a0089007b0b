"""A whole decoder with random weights: its parameters, its mixed steps, and what it refuses."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.small_models import small_model, small_model_names  # noqa: E402
from capacity_validate.step_inputs import InputRow  # noqa: E402
from capacity_validate.technique_checks import (  # noqa: E402  # noqa: E402
    cache_difference,
    exact_findings,
)
from capacity_validate.transformer import Transformer  # noqa: E402

from capacity.base.errors import UnsupportedModel  # noqa: E402
from capacity.model import load_model  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=small_model_names())
def model(request: pytest.FixtureRequest) -> Transformer:
    return Transformer(small_model(request.param), device="cpu", num_blocks=32)


def test_parameters_and_cache_are_the_specs_to_the_byte(model: Transformer) -> None:
    assert sum(t.numel() for t in model.weight_tensors) == model.model.total_params
    for finding in exact_findings(model):
        assert finding.passed, finding


def test_one_mixed_step_is_the_sum_of_its_rows(model: Transformer) -> None:
    """A prefill chunk and two decode rows in one step give each row the logits that it has alone."""
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(4096, (n,), generator=generator).tolist() for n in (33, 20, 48)]
    blocks = [[3, 17, 5, 9], [30, 2, 8], [11, 0, 21, 6]]
    whole = [
        model.logits(model.inputs([InputRow(tokens=p, computed=0, blocks=b)]))
        for p, b in zip(prompts, blocks, strict=True)
    ]
    for p, b, held_back in zip(prompts, blocks, (1, 1, 16), strict=True):
        model.logits(model.inputs([InputRow(tokens=p[:-held_back], computed=0, blocks=b)]))
    mixed = model.logits(
        model.inputs(
            [
                InputRow(tokens=p[-n:], computed=len(p) - n, blocks=b)
                for p, b, n in zip(prompts, blocks, (1, 1, 16), strict=True)
            ]
        )
    )
    for alone, row in zip(whole, mixed, strict=True):
        assert float((alone[0] - row).abs().max() / alone.abs().max()) < 1e-4


def test_a_model_without_a_kernel_is_refused() -> None:
    for name, lacks in (("qwen3-next-80b-a3b", "linear attention"), ("deepseek-v3.2", "sparse indexer")):
        with pytest.raises(UnsupportedModel, match=lacks) as refused:
            Transformer(load_model(name), device="cpu", num_blocks=1)
        assert "\n" not in str(refused.value)


def test_biased_and_normalised_attention_has_the_specs_parameters() -> None:
    """Qwen's variants: a bias on QKV, or a norm over each head."""
    base = small_model("tiny")
    for changes in ({"qkv_bias": True}, {"qk_norm": "per_head"}):
        group = base.layer_groups[0]
        spec = replace(base, layer_groups=(replace(group, mixer=replace(group.mixer, **changes)),))
        model = Transformer(spec, device="cpu", num_blocks=16)
        assert sum(t.numel() for t in model.weight_tensors) == spec.total_params
        assert cache_difference(model) < 1e-4
