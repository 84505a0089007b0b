"""Patterns of module names, and layers that are exceptions to the byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
from quantization_configs import MIXTURE, compressed, quantized, scheme_of
from slowness import cpu_limit

from capacity.model.quantization import weight_bytes


@pytest.mark.parametrize(
    ("patterns", "excluded"),
    [
        (["self_attn"], {"q", "k", "v", "o"}),
        (["model.layers.*.self_attn"], {"q", "k", "v", "o"}),
        ([f"model.layers.{n}.self_attn*" for n in range(4)], {"q", "k", "v", "o"}),
        (["re:.*self_attn.*"], {"q", "k", "v", "o"}),
        (["re:.*self_attn.o_proj$"], {"o"}),
        (["re:.*qkv_proj"], {"q", "k", "v"}),
        (["*.o_proj"], {"o"}),
        ([f"language_model.model.layers.{n}.self_attn.qkv_proj" for n in range(4)], {"q", "k", "v"}),
        (["lm_head", "model.embed_tokens", "visual", "mtp.layers.0.self_attn.o_proj"], set()),
        (["re:vision_tower.*", "re:multi_modal_projector.*"], set()),
    ],
)
def test_patterns_mean_the_modules_that_checkpoints_mean(patterns: list[str], excluded: set[str]) -> None:
    model = quantized({"quant_method": "fp8", "modules_to_not_convert": patterns})
    stored = {p.name: model.checkpoint.part_bytes(p) / p.params for p in model.parameter_parts()}
    kept = {name[10] for name, size in stored.items() if name.startswith("self_attn.") and size == 2}
    assert kept == excluded
    assert stored["mlp.gate_proj"] < 1.01


def test_single_layers_are_exceptions_to_the_byte() -> None:
    plain = quantized({"quant_method": "fp8"})
    patterns = ["model.layers.0.mlp.down_proj", "model.layers.3"]
    model = quantized({"quant_method": "fp8", "modules_to_not_convert": patterns})
    layer = 2 * 256 * 256 + 2 * 256 * 64 + 3 * 256 * 512
    extra = (layer - 7 * 4) + (256 * 512 - 4)  # one more byte each, without their FP32 scales
    assert weight_bytes(model) - weight_bytes(plain) == extra
    assert {(e.part_name, e.layers) for e in model.checkpoint.exceptions} >= {
        ("mlp.down_proj", frozenset({0, 3})),
        ("self_attn.q_proj", frozenset({3})),
    }


def test_exceptions_count_in_the_layers_that_a_part_has() -> None:
    scheme = scheme_of({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.3.self_attn.q_proj"]})
    part = next(p for p in quantized({}).parameter_parts() if p.name == "self_attn.q_proj")
    weights = 256 * 256
    sizes = [scheme.part_bytes(replace(part, layers=layers)) for layers in [(0, 1), (2, 3), (3,)]]
    assert sizes == [2 * (weights + 4), weights + 4 + 2 * weights, 2 * weights]


def test_shared_and_routed_experts_by_their_names() -> None:
    patterns = [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    ]
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    scheme = scheme_of(compressed(weights, ignore=patterns), base=MIXTURE)
    assert (scheme.experts.name, scheme.shared_expert.name, scheme.attention.name) == (
        "int4-g32-sym",
        "bf16",
        "bf16",
    )


@pytest.mark.parametrize(
    "pattern",
    [
        "re:((a|model|.)*)*!$",
        "re:(.*.*)*x{5}$",
        "re:(([a-z.0-9_])+.)+[A-Z]$",
        "re:(.*)*(.*)*(.*)*!",
        "*?*?*?*?*?*!",
    ],
)
def test_a_checkpoint_cannot_hang_who_reads_it(pattern: str) -> None:
    with cpu_limit(0.2):
        scheme_of(compressed({"num_bits": 8, "type": "float"}, ignore=[pattern]))
