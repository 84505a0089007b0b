"""Storage format of each kind of parameters (attention, experts, ...), so that bytes equal the checkpoint's."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from capacity.model.parameter_part import ParameterPart, PartKind
from capacity.model.quantization.weight_format import FormatFamily, WeightFormat


class StoredModel(Protocol):
    """Interface of a model with weights, which `capacity.model.ModelSpec` implements."""

    @property
    def checkpoint(self) -> "QuantizationScheme": ...
    @property
    def tie_word_embeddings(self) -> bool: ...
    @property
    def num_layers(self) -> int: ...
    def parameter_parts(self) -> Iterable[ParameterPart]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatException:
    """Matrix `part_name` of `layers` (None: all) has this format, not the one that the scheme gives its kind."""

    part_name: str
    layers: frozenset[int] | None
    weight_format: WeightFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationScheme:
    """Weight formats of a checkpoint by kind of parameters; `exceptions` lists matrices in other formats.

    `base` (16 or 32 bit) is the format of norms, biases, routers and all unquantized parameters. `kv_cache_dtype`: the
    KV cache format that the checkpoint requests, or None.
    """

    name: str
    method: str  # `quant_method` of the checkpoint, "none" if it is not quantized
    base: WeightFormat
    attention: WeightFormat
    linear_attention: WeightFormat
    dense_ffn: WeightFormat
    shared_expert: WeightFormat
    experts: WeightFormat
    lm_head: WeightFormat
    embedding: WeightFormat
    exceptions: tuple[FormatException, ...] = ()
    kv_cache_dtype: str | None = None

    @property
    def quantized(self) -> bool:
        return any(f.value_bits < 16 for f in (self.attention, self.dense_ffn, self.experts, self.embedding))

    @property
    def formats(self) -> tuple[WeightFormat, ...]:
        every = (
            self.base, self.attention, self.linear_attention, self.dense_ffn, self.shared_expert, self.experts,
            self.lm_head, self.embedding, *(exception.weight_format for exception in self.exceptions),
        )  # fmt: skip
        return tuple(dict.fromkeys(every))

    @property
    def families(self) -> tuple[FormatFamily, ...]:
        """Return the families of weight formats (awq, fp8, ...) that an engine must support to load the checkpoint."""
        return tuple(sorted({stored.family for stored in self.formats}))

    def format_of(self, kind: PartKind) -> WeightFormat:
        """Return the format of this kind of parameters; single matrices may differ (`part_format`)."""
        stored: WeightFormat = self.base if kind in ("norm", "bias", "router") else getattr(self, kind)
        return stored

    def part_format(self, part_name: str, kind: PartKind, layer: int | None) -> WeightFormat:
        """Return the format of one matrix in one layer (None: outside of the layers), including `exceptions`."""
        for exception in self.exceptions:
            if exception.part_name == part_name and (exception.layers is None or layer in exception.layers):
                return exception.weight_format
        return self.format_of(kind)

    def part_bytes(self, part: ParameterPart) -> float:
        """Return the stored bytes of all matrices of `part`, each in its own format, with scales and zero points."""
        usual = self._matrix_bytes(part, self.format_of(part.kind))
        num_layers = max(1, len(part.layers))
        excess = 0.0
        for exception in self.exceptions:
            if exception.part_name == part.name:
                excepted = num_layers if exception.layers is None else len(exception.layers & {*part.layers})
                excess += excepted * (self._matrix_bytes(part, exception.weight_format) - usual)
        return (num_layers * usual + excess) * part.matrices_per_layer

    def _matrix_bytes(self, part: ParameterPart, weight_format: WeightFormat) -> float:
        stored = weight_format if part.quantizable else self.base
        return stored.matrix_bytes(part.rows, part.columns)


def uniform_scheme(
    name: str,
    linear: WeightFormat,
    *,
    base: WeightFormat,
    method: str = "none",
    experts: WeightFormat | None = None,
    attention: WeightFormat | None = None,
    lm_head: WeightFormat | None = None,
    embedding: WeightFormat | None = None,
    exceptions: tuple[FormatException, ...] = (),
    kv_cache_dtype: str | None = None,
) -> QuantizationScheme:
    """Return a scheme with the matrices of all layers in `linear`; embedding, LM head, routers and norms are in `base`.

    `experts`, `attention`, `lm_head` and `embedding` give these parameters another format.
    """
    attention = attention or linear
    return QuantizationScheme(
        name=name,
        method=method,
        base=base,
        attention=attention,
        linear_attention=attention,
        dense_ffn=linear,
        shared_expert=linear,
        experts=experts or linear,
        lm_head=lm_head or base,
        embedding=embedding or base,
        exceptions=exceptions,
        kv_cache_dtype=kv_cache_dtype,
    )


def weight_bytes(model: StoredModel, scheme: QuantizationScheme | None = None) -> float:
    """Return the bytes of all weights of `model` in `scheme` (None: the scheme of its checkpoint)."""
    stored = scheme or model.checkpoint
    return sum(stored.part_bytes(part) for part in model.parameter_parts())


MATRICES: tuple[PartKind, ...] = ("attention", "linear_attention", "dense_ffn", "shared_expert", "experts")


def bits_per_weight(model: StoredModel, scheme: QuantizationScheme) -> float:
    """Return the mean bits per weight, with scales, of the layers' quantized matrices; if there are none, of all."""
    matrices = [part for part in model.parameter_parts() if part.kind in MATRICES and part.columns > 1]
    quantized = [part for part in matrices if scheme.format_of(part.kind).value_bits < 16] or matrices
    return 8 * sum(map(scheme.part_bytes, quantized)) / sum(part.params for part in quantized)
