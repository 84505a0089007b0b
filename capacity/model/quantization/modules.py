"""Module names in checkpoints: match the patterns of `ignore`, `targets` or `quantized_layers` to weight matrices."""

import re
from collections.abc import Callable, Iterable
from itertools import groupby, product
from pathlib import Path

from capacity.base.data_files import Table, read_data
from capacity.base.errors import InvalidInput
from capacity.model.parameter_part import ParameterPart, PartKind
from capacity.model.quantization.expressions import Expressions, glob_to_expression
from capacity.model.quantization.scheme import FormatException, QuantizationScheme
from capacity.model.quantization.weight_format import WeightFormat

_PREFIXES = ("model.", "language_model.", "transformer.", "base_model.")
_PARTS_OF_MODULES: Table = read_data(Path(__file__).with_name("module_names.json"))
"""Dict from the name of a module in checkpoints to the names of the model parts in this package."""
_SPELLINGS: dict[str, tuple[str, ...]] = {}
for _theirs, _ours in _PARTS_OF_MODULES.items():
    for _name in _ours:
        _SPELLINGS[_name] = (*_SPELLINGS.get(_name, (_name,)), _theirs)


class ModulePatterns:
    """List of module names, globs and `re:` expressions; `match` tests whether it includes a matrix of a layer.

    A plain name, found by look-up, includes each matrix whose dotted path contains that name, so also all child
    modules. Globs and expressions are matched with every spelling of the matrix's name in checkpoints.
    """

    def __init__(self, patterns: Iterable[str], *, lists: int = 1) -> None:
        """Compile the patterns. `lists`: number of lists that share the work limit. Raises `re.error`."""
        self._plain: set[str] = set()
        expressions: list[str] = []
        for pattern in patterns:
            expressions += self._add(pattern)
        self._count = len(expressions)
        self._expressions = Expressions(dict.fromkeys(expressions), lists=lists)

    def __bool__(self) -> bool:
        return bool(self._plain or self._count)

    def match(self, part_name: str, layer: int | None) -> bool:
        """Return whether a pattern includes a matrix of the model; `layer` None: a matrix outside of the layers."""
        if not self:
            return False
        path = part_name if layer is None else f"layers.{layer}.{part_name}"
        if self._plain and any(run in self._plain for run in _subpaths(path.split("."))):
            return True
        try:
            return bool(self._count) and any(map(self._expressions.match, _spellings(part_name, layer)))
        except re.error as error:
            raise InvalidInput(
                f"quantization_config: {self._count:,} patterns of module names: {error}"
            ) from None

    def _add(self, pattern: str) -> list[str]:
        """Store a plain name and return nothing; return the regular expression of any other pattern."""
        if pattern.startswith("re:"):
            return [pattern[3:]]
        plain = pattern.removesuffix(".weight").replace("layers.*.", "")
        plain = plain[:-1].removesuffix(".") if plain.endswith("*") else plain
        if any(character in plain for character in "*?["):
            return [glob_to_expression(pattern)]
        self._plain.update(_canonical_names(plain))
        return []


def _canonical_names(name: str) -> set[str]:
    """Return this package's names for a module of a checkpoint; a fused module such as `qkv_proj` has several."""
    while name.startswith(_PREFIXES):
        name = name.split(".", 1)[1]
    tokens = re.sub(r"\bexperts\.\d+\b", "experts", name).split(".")
    return {
        ".".join(spelled)
        for spelled in product(*(_PARTS_OF_MODULES.get(token, (token,)) for token in tokens))
    }


def _subpaths(tokens: list[str]) -> Iterable[str]:
    """Yield every contiguous part of a dotted path, given as its tokens."""
    for start in range(len(tokens)):
        for end in range(start + 1, len(tokens) + 1):
            yield ".".join(tokens[start:end])


def _spellings(part_name: str, layer: int | None) -> Iterable[str]:
    inside = "" if layer is None else f"layers.{layer}."
    for tokens in product(*(_SPELLINGS.get(token, (token,)) for token in part_name.split("."))):
        name = ".".join(tokens)
        for spelled in {name, name.replace("experts.", "experts.0.", 1) if ".experts." in name else name}:
            yield f"model.{inside}{spelled}" if inside else spelled
            yield f"model.language_model.{inside}{spelled}"
            yield f"language_model.model.{inside}{spelled}"


FormatRule = Callable[[ParameterPart, int | None], WeightFormat]
_CLASSES: tuple[PartKind, ...] = ("attention", "linear_attention", "dense_ffn", "shared_expert", "experts")


def scheme_by_module(
    parts: Iterable[ParameterPart],
    rule: FormatRule,
    *,
    name: str,
    method: str,
    base: WeightFormat,
    default: WeightFormat,
    kv_cache_dtype: str | None = None,
) -> QuantizationScheme:
    """Return a quantization scheme in which each matrix has the format that `rule(part, layer)` returns for it.

    The scheme gives each kind of parameters (attention, experts, ...) the format of most of them (`default` if there
    are none), and lists the matrices in other formats.
    """
    chosen = [
        (part, layer, rule(part, layer))
        for part in parts
        if part.quantizable
        for layer in part.layers or (None,)
    ]
    usual = {kind: _most_common_format(kind, chosen, default) for kind in (*_CLASSES, "lm_head", "embedding")}
    exceptions = []
    for part_name, entries in groupby(chosen, key=lambda entry: entry[0].name):
        exceptions += _exceptions(part_name, list(entries), usual)
    return QuantizationScheme(
        name=name,
        method=method,
        base=base,
        **{kind: usual[kind] for kind in _CLASSES},
        lm_head=usual["lm_head"] if "lm_head" in {part.kind for part, _, _ in chosen} else base,
        embedding=usual["embedding"],
        exceptions=tuple(exceptions),
        kv_cache_dtype=kv_cache_dtype,
    )


def _most_common_format(
    kind: PartKind, chosen: list[tuple[ParameterPart, int | None, WeightFormat]], default: WeightFormat
) -> WeightFormat:
    params: dict[WeightFormat, int] = {}
    for part, _, weight_format in chosen:
        if part.kind == kind:
            size = part.rows * part.columns * part.matrices_per_layer
            params[weight_format] = params.get(weight_format, 0) + size
    return max(params, key=lambda f: params[f], default=default)


def _exceptions(
    part_name: str,
    entries: list[tuple[ParameterPart, int | None, WeightFormat]],
    usual: dict[PartKind, WeightFormat],
) -> list[FormatException]:
    by_format: dict[WeightFormat, set[int | None]] = {}
    for part, layer, weight_format in entries:
        if weight_format != usual.get(part.kind, weight_format):
            by_format.setdefault(weight_format, set()).add(layer)
    return [
        FormatException(
            part_name=part_name,
            layers=None if None in layers else frozenset(layer for layer in layers if layer is not None),
            weight_format=weight_format,
        )
        for weight_format, layers in by_format.items()
    ]
