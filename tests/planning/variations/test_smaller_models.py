"""Smaller models: pruned shapes as published, the next of a family, and refusals."""

from __future__ import annotations

import pytest

from capacity.deployment import Pool
from capacity.model import load_model
from capacity.planning.variations.smaller_models import next_smaller, prune, smaller_changes, smaller_models
from capacity.pool.resolve import ResolvedPool, resolve


def pool(model: str = "llama-3.1-8b", **fields: object) -> ResolvedPool:
    return resolve(model, Pool.model_validate({"gpu": "h100"} | fields))


@pytest.mark.parametrize(("way", "billions"), [("depth-distilled", 4.54), ("width-distilled", 4.51)])
def test_the_published_models_have_their_published_sizes(way: str, billions: float) -> None:
    """Llama-3.1-Minitron-4B, by depth and by width: 4.5 B parameters each; 4.51 on the second's card."""
    pruned = prune(pool(), smaller_models().prunings[way])
    assert pruned.total_params / 1e9 == pytest.approx(billions, abs=0.005)
    if way == "width-distilled":
        assert pruned.hidden_size == 3072
        assert pruned.layer_groups[0].feed_forward.intermediate_size == 9216


def test_a_quarter_less_depth_is_a_quarter_less_decode() -> None:
    """Llama-2-13B has 40 layers; 30 stay, renumbered from the first to the last, so that stages can be cut."""
    full = pool("llama-2-13b")
    pruned = prune(full, smaller_models().prunings["depth"])
    assert [layer for group in pruned.layer_groups for layer in group.layers] == list(range(30))
    each = (full.model.total_params - pruned.total_params) / 10
    assert each == sum(part.params for part in full.model.group_parts(full.model.layer_groups[0])) / 40


def test_two_of_four_weights_are_nine_bits() -> None:
    sparse = prune(pool(), smaller_models().prunings["sparse-2of4"])
    dense, linear = pool().memory.weights_bytes, 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    read = resolve(sparse, Pool(gpu="h100"))
    assert dense - read.memory.weights_bytes == pytest.approx(linear * 7 / 8, rel=1e-6)
    assert sparse.total_params == pool().model.total_params


@pytest.mark.parametrize(
    ("model", "smaller"),
    [
        ("llama-3.1-405b", "llama-3.1-70b"),
        ("llama-3.1-70b", "llama-3.1-8b"),
        ("qwen2.5-32b", "qwen2.5-14b"),
        ("qwen3-235b-a22b", "qwen3-32b"),
        ("gpt-oss-120b", "gpt-oss-20b"),
        ("llama-3.1-8b", None),
        ("deepseek-v3", None),
    ],
)
def test_the_next_of_a_family(model: str, smaller: str | None) -> None:
    found = next_smaller(load_model(model))
    assert (None if found is None else found.name) == smaller


def test_a_published_score_is_a_loss_and_no_score_is_unknown() -> None:
    changes = {
        change.text: change for change in smaller_changes(pool("llama-3.1-70b", tensor_parallel_size=4))
    }
    family = changes["a smaller model of the same family: llama-3.1-8b"]
    assert family.worst_loss_fraction == pytest.approx(1 - 66.7 / 79.3)
    assert "model card" in (family.quality or "")
    (other,) = [change for change in smaller_changes(pool("qwen2.5-14b")) if "family" in change.text]
    assert other.worst_loss_fraction is None
    assert (other.quality or "").startswith("unknown")


@pytest.mark.parametrize(
    ("model", "fields", "way", "says"),
    [
        ("llama-3.1-8b", {"quantization": "fp8"}, "2:4 sparse", "16-bit"),
        ("llama-3.1-8b", {"gpu": "mi300x"}, "2:4 sparse", "Ampere"),
        ("qwen3-30b-a3b", {}, "drop a quarter", "dense"),
        ("deepseek-v2-lite", {}, "half of the layers", "dense"),
    ],
)
def test_what_cannot_be_said_is_refused(model: str, fields: dict[str, object], way: str, says: str) -> None:
    (change,) = [change for change in smaller_changes(pool(model, **fields)) if change.text.startswith(way)]
    assert change.refused is not None
    assert says in change.refused


def test_every_loss_has_its_source() -> None:
    for pruning in smaller_models().prunings.values():
        assert pruning.source
        assert pruning.date.startswith("20")
        assert 0 < pruning.worst_loss_fraction < 1
