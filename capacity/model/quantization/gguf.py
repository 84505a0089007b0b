"""llama.cpp's mixtures: which tensor of which layer takes which block format under Q4_K_M and its kin."""

from collections.abc import Callable
from dataclasses import dataclass

from capacity.model.parameter_part import ParameterPart
from capacity.model.quantization.scheme import (
    FormatException,
    QuantizationScheme,
    Stored,
    uniform_scheme,
)
from capacity.model.quantization.weight_format import WeightFormat, find_format


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mix:
    """Formats of one llama.cpp file type: of most matrices, and those of the sensitive ones by layer."""

    default: str
    value: Callable[[int, int], str] | None = None  # (layer, layers) -> format of attn_v
    down: Callable[[int, int], str] | None = None
    output: str | None = None  # attn_output


def _more_bits(layer: int, layers: int) -> bool:
    """The first and last eighth, and every third layer between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _promoted(usual: str, promoted: str, rule: Callable[[int, int], bool]) -> Callable[[int, int], str]:
    return lambda layer, layers: promoted if rule(layer, layers) else usual


# Source: ggml-org/llama.cpp src/llama-quant.cpp, llama_tensor_get_type, 2026; without an importance matrix.
# Left out: Q2_K's attn_v for models with fewer than 4 query heads per KV head, and fused QKV tensors.
_MIXES: dict[str, _Mix] = {
    "gguf-q2_k": _Mix(default="q2_k", value=lambda *_: "q4_k", down=lambda *_: "q3_k", output="q3_k"),
    "gguf-q3_k_m": _Mix(
        default="q3_k",
        value=_promoted("q4_k", "q5_k", lambda layer, _: layer < 2),
        down=_promoted("q4_k", "q5_k", lambda layer, layers: layer < layers // 16),
        output="q4_k",
    ),
    "gguf-q4_0": _Mix(default="q4_0"),
    "gguf-q4_k_s": _Mix(
        default="q4_k",
        value=_promoted("q4_k", "q5_k", lambda layer, _: layer < 4),
        down=_promoted("q4_k", "q5_k", lambda layer, layers: layer < layers // 8),
    ),
    "gguf-q4_k_m": _Mix(
        default="q4_k",
        value=_promoted("q4_k", "q6_k", _more_bits),
        down=_promoted("q4_k", "q6_k", _more_bits),
    ),
    "gguf-q5_0": _Mix(default="q5_0"),
    "gguf-q5_k_s": _Mix(default="q5_k"),
    "gguf-q5_k_m": _Mix(
        default="q5_k",
        value=_promoted("q5_k", "q6_k", _more_bits),
        down=_promoted("q5_k", "q6_k", _more_bits),
    ),
    "gguf-q6_k": _Mix(default="q6_k"),
    "gguf-q8_0": _Mix(default="q8_0"),
}
GGUF_MIXES = tuple(_MIXES)


def gguf_scheme(model: Stored, name: str) -> QuantizationScheme:
    """`model` as llama.cpp's quantizer stores it under the file type `name`; norms and routers are FP32."""
    mix, parts = _MIXES[name], tuple(model.parameter_parts())
    default = _format(mix.default)
    output = default if default.name == "gguf-q8_0" else _format("q6_k")
    eight_experts = any(part.kind == "experts" and part.matrices_per_layer == 8 for part in parts)
    exceptions = [e for part in parts for e in _exceptions(mix, part, model.num_layers, eight_experts)]
    return uniform_scheme(
        name,
        default,
        base=find_format("fp32"),
        method="gguf",
        lm_head=output,
        embedding=output if model.tie_word_embeddings else default,
        exceptions=tuple(exceptions),
    )


def _exceptions(
    mix: _Mix, part: ParameterPart, num_layers: int, eight_experts: bool
) -> list[FormatException]:
    layer_formats = {
        layer: _layer_format(mix, part, layer, num_layers, eight_experts) for layer in part.layers
    }
    promoted = {f for f in layer_formats.values() if f not in (None, mix.default)}
    return [
        FormatException(
            part_name=part.name,
            layers=frozenset(layer for layer, f in layer_formats.items() if f == name),
            weight_format=_format(name),
        )
        for name in sorted(promoted, key=str)
        if name is not None
    ]


def _layer_format(
    mix: _Mix, part: ParameterPart, layer: int, num_layers: int, eight_experts: bool
) -> str | None:
    leaf = part.name.rsplit(".", 1)[-1]
    if leaf in ("v_proj", "k_proj") and eight_experts:
        return "q8_0"
    if leaf in ("v_proj", "kv_b_proj") and mix.value is not None:
        usual = mix.value(layer, num_layers)
        return "q5_k" if num_layers == 80 and usual in ("q3_k", "q4_k") else usual  # llama.cpp's 70B rule
    if leaf == "down_proj" and mix.down is not None:
        return mix.down(layer, num_layers)
    if leaf == "o_proj":
        return ("q5_k" if mix.default in ("q2_k", "q3_k", "q4_k") else None) if eight_experts else mix.output
    return None


def _format(name: str) -> WeightFormat:
    return find_format(f"gguf-{name}")
