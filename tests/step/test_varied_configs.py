"""Configurations changed at random, of known and unknown types: an answer that says what it took, or one line.

Every draw changes a public configuration in one to three ways: a width scaled, a field dropped, null or of another
kind, an unknown type, a field that nobody knows, experts where the type has none, another activation, or all of it
inside another model. `--slow` draws fifty times as many.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from answered_configs import READ, check_answers

from capacity.base.errors import CapacityError
from capacity.model import ModelSpec, from_hf_config, supported_model_types
from capacity.model.hf_config.feed_forwards import EXPERTS

FEW, MANY = 60, 3_000
WIDTHS = (
    "hidden_size", "intermediate_size", "moe_intermediate_size", "vocab_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "num_experts", "n_routed_experts", "num_local_experts", "head_dim",
)  # fmt: skip
KINDS = ("scale", "drop", "null", "wrong", "type", "slots", "experts", "activation", "wrap")
WRONG: tuple[Any, ...] = ("many", -1, 0.5, [], {}, True, 10**12)


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's own object."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def varied(seed: int) -> tuple[dict[str, Any], set[str]]:
    """A configuration, and in which ways it was changed."""
    rng = random.Random(seed)
    config = copy.deepcopy(rng.choice(READ)["config"])
    ways = [rng.choice(KINDS) for _ in range(rng.randint(1, 3))]
    for way in ways:
        text = text_of(config)
        numbers = [key for key, value in text.items() if type(value) is int] or ["hidden_size"]
        key = rng.choice(numbers)
        if way == "scale":
            key = rng.choice([name for name in WIDTHS if type(text.get(name)) is int] or numbers)
            text[key] = max(1, int(text.get(key, 1) * rng.choice((0.5, 2, 3))))
        elif way == "drop":
            text.pop(key, None)
        elif way == "null":
            text[key] = None
        elif way == "wrong":
            text[key] = rng.choice(WRONG)
        elif way == "type":
            text["model_type"] = config["model_type"] = "never_seen"
        elif way == "slots":
            text["memory_slots"] = rng.randint(2, 64)
        elif way == "experts":
            text.update(num_local_experts=8, num_experts_per_tok=2)
        elif way == "activation":
            text["hidden_act"] = rng.choice(("relu2", "gelu", "silu", "gelu_pytorch_tanh"))
        else:
            config = {
                "model_type": "never_seen_vl",
                "text_config": text,
                "vision_config": {"hidden_size": 64},
            }
    return config, set(ways)


def check_what_is_said(model: ModelSpec, config: dict[str, Any], ways: set[str]) -> None:
    """Nothing that could change the layers is passed over in silence."""
    said, text = " ".join(model.notes), text_of(config)
    known = (text.get("model_type") or config.get("model_type")) in supported_model_types()
    assert model.assumed != known
    if not known:
        assert "is unknown: its field names indicate" in said
        assert f"{model.total_params / 1e9:,.4g} B parameters (assumed)" in said
    if not known and isinstance(text.get("memory_slots"), int) and text["memory_slots"] > 1:
        assert "memory_slots" in said or " more" in said
    if known and any(type(text.get(key)) is int and text[key] > 1 for key in EXPERTS) and not model.is_moe:
        assert ": ignored, because layers of" in said
    if "wrap" in ways and model.vision_params == 0 and "vision_config" in config:
        assert "vision_config" in said


def check(seed: int) -> bool:
    """Whether the variation is answered."""
    config, ways = varied(seed)
    try:
        model = from_hf_config(config, name="varied")
    except CapacityError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "\n" not in refused, seed
        return False
    check_what_is_said(model, config, ways)
    check_answers(config, "varied")
    return True


def test_variations_are_answered_or_refused_in_one_line() -> None:
    answered = sum(check(seed) for seed in range(FEW))
    assert 0.4 * FEW < answered < 0.9 * FEW  # neither all of them harmless nor none


@pytest.mark.slow
def test_many_variations_are_answered_or_refused_in_one_line() -> None:
    assert sum(check(seed) for seed in range(FEW, MANY)) > 0.4 * MANY
