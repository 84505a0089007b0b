"""The parameters of a model in parts: matrices and vectors of one name, and how ranks divide them."""

from dataclasses import dataclass
from typing import Literal

from capacity.model.quantization import PartKind

Divided = Literal["rows", "columns", "none"]
Sharding = Literal["tensor", "kv_heads", "vocabulary", "experts", "replicated"]
"""How tensor parallelism divides a part: by `tensor_parallel_size`; by at most `shard_limit` KV heads; by
vocabulary rows; by expert (expert parallelism) or inside each expert (tensor parallelism); not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPart:
    """Matrices (rows x columns; outputs x inputs) or vectors (columns 1) of one name, in each of `layers`.

    `layers` is empty for what stands outside of the layers (embedding, final norm, LM head). `matrices_per_layer`
    counts equal matrices in one layer (experts).
    """

    name: str  # as the checkpoint calls it, without the layer: "self_attn.q_proj", "mlp.experts.down_proj"
    kind: PartKind
    rows: int
    columns: int = 1
    matrices_per_layer: int = 1
    layers: tuple[int, ...] = ()
    sharding: Sharding = "tensor"
    shard_limit: int | None = None  # tensor parallelism beyond this replicates
    quantizable: bool = True

    @property
    def num_matrices(self) -> int:
        """In the whole model."""
        return self.matrices_per_layer * max(1, len(self.layers))

    @property
    def params(self) -> int:
        """In the whole model."""
        return self.rows * self.columns * self.num_matrices


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix of one layer that every token is multiplied with (rows x columns; outputs x inputs).

    `divided`: the side that tensor parallelism divides; "none" is computed whole on every GPU. `bias` is one value
    for each row.
    """

    name: str
    kind: PartKind
    rows: int
    columns: int
    divided: Divided = "none"
    bias: bool = False
    quantizable: bool = True

    def parts(self, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        """The matrix in these layers, and its bias."""
        sharding: Sharding = "replicated" if self.divided == "none" else "tensor"
        weight = ParameterPart(
            name=self.name,
            kind=self.kind,
            rows=self.rows,
            columns=self.columns,
            layers=layers,
            sharding=sharding,
            quantizable=self.quantizable,
        )
        if not self.bias:
            return (weight,)
        split: Sharding = "tensor" if self.divided == "rows" else "replicated"
        return weight, vector(f"{self.name}.bias", "bias", self.rows, layers, sharding=split)


def matrix(
    name: str,
    kind: PartKind,
    rows: int,
    columns: int,
    layers: tuple[int, ...],
    *,
    sharding: Sharding = "tensor",
) -> ParameterPart:
    quantizable = kind != "router"
    return ParameterPart(
        name=name,
        kind=kind,
        rows=rows,
        columns=columns,
        layers=layers,
        sharding=sharding,
        quantizable=quantizable,
    )


def vector(
    name: str,
    kind: PartKind,
    length: int,
    layers: tuple[int, ...],
    *,
    sharding: Sharding = "replicated",
    limit: int | None = None,
) -> ParameterPart:
    return ParameterPart(
        name=name,
        kind=kind,
        rows=length,
        layers=layers,
        sharding=sharding,
        shard_limit=limit,
        quantizable=False,
    )
