"""llama.cpp's mixed formats: the block format of each tensor in each layer for Q4_K_M and similar file types."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from capacity.base.data_files import read_rows
from capacity.model.parameter_part import ParameterPart
from capacity.model.quantization.scheme import (
    FormatException,
    QuantizationScheme,
    StoredModel,
    uniform_scheme,
)
from capacity.model.quantization.weight_format import WeightFormat, find_format


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mix:
    """Formats of one llama.cpp file type, for most matrices and for those that lose more quality by quantization.

    `value` (attn_v) and `down` (ffn_down): the usual format, then optionally another format and the rule for the
    layers that have it. `output`: the format of attn_output.
    """

    default: str
    value: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    output: str | None = None


def _is_more_bits_layer(layer: int, layers: int) -> bool:
    """Return whether llama.cpp gives this layer more bits: first and last eighth, and every third layer between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


_RULES: dict[str, Callable[[int, int], bool]] = {
    "first 2": lambda layer, _: layer < 2,
    "first 4": lambda layer, _: layer < 4,
    "first eighth": lambda layer, layers: layer < layers // 8,
    "first sixteenth": lambda layer, layers: layer < layers // 16,
    "more bits": _is_more_bits_layer,
}
# Source: ggml-org/llama.cpp src/llama-quant.cpp, llama_tensor_get_type, 2026; without an importance matrix.
# Not included: Q2_K's attn_v for models with fewer than 4 query heads per KV head, and fused QKV tensors.
_MIXES = read_rows(Path(__file__).with_name("gguf_mixes.json"), _Mix, named=False)
GGUF_MIXES = tuple(_MIXES)


def gguf_scheme(model: StoredModel, name: str) -> QuantizationScheme:
    """Return the scheme that llama.cpp's quantizer applies for the file type `name`; norms and routers are FP32."""
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
    if leaf in ("v_proj", "kv_b_proj") and mix.value:
        usual = _promoted_type(mix.value, layer, num_layers)
        return "q5_k" if num_layers == 80 and usual in ("q3_k", "q4_k") else usual  # llama.cpp's 70B rule
    if leaf == "down_proj" and mix.down:
        return _promoted_type(mix.down, layer, num_layers)
    if leaf == "o_proj":
        return ("q5_k" if mix.default in ("q2_k", "q3_k", "q4_k") else None) if eight_experts else mix.output
    return None


def _promoted_type(stated: tuple[str, ...], layer: int, num_layers: int) -> str:
    usual, *promoted = stated
    return promoted[0] if promoted and _RULES[promoted[1]](layer, num_layers) else usual


def _format(name: str) -> WeightFormat:
    return find_format(f"gguf-{name}")
