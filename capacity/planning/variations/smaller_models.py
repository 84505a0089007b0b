"""Smaller models that could replace a given model: the next smaller one of its family, and pruned variants.

A pruned variant is the model with fewer layers, narrower layers or fewer bits per weight; its cost is simulated like
that of any model. Its quality loss is published for another model (`smaller_models.toml`) and is not a prediction
for this one.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from capacity.base.data_files import read_data
from capacity.base.errors import CapacityError
from capacity.base.spec import Spec
from capacity.model import Attention, ModelSpec, load_model, model_names
from capacity.model.feed_forward import DenseFeedForward
from capacity.model.quantization import uniform_scheme
from capacity.model.quantization.weight_format import WeightFormat
from capacity.planning.variations.changes import Change
from capacity.pool.resolve import ResolvedPool

TABLE = Path(__file__).with_name("smaller_models.toml")
SIZE = re.compile(r"-\d+(\.\d+)?b(-a\d+(\.\d+)?b)?")  # size in a model's name
MULTIPLE = 128  # of widths, to suit tensor cores and sharding
Fraction = Annotated[float, Field(gt=0, le=1)]


class Scores(Spec):
    """Benchmark scores of model presets, by preset name."""

    source: str
    date: str
    scores: dict[str, Annotated[float, Field(gt=0, le=100)]]


class Pruning(Spec):
    """Pruning method: remaining fractions of layers and widths, or bits per weight, and its published quality loss."""

    title: str
    quality: str
    worst_loss_fraction: Fraction
    source: str
    date: str
    note: str = ""
    layers_fraction: Fraction = 1.0
    hidden_fraction: Fraction = 1.0
    intermediate_fraction: Fraction = 1.0
    bits_per_weight: Annotated[float, Field(gt=0, le=16)] | None = None
    min_compute_capability: float = 0.0


class SmallerModels(Spec):
    """Content of `smaller_models.toml`."""

    mmlu: Scores
    prunings: dict[str, Pruning]


@lru_cache(maxsize=1)
def smaller_models() -> SmallerModels:
    """Return the published scores and pruning methods. Raises MalformedFile."""
    tables = dict(read_data(TABLE))
    return SmallerModels(mmlu=tables.pop("mmlu"), prunings=tables)


def smaller_changes(resolved: ResolvedPool) -> Iterator[Change]:
    """Yield the changes to the next smaller model of the family and to each pruned variant."""
    yield _smaller_of_family(resolved)
    for pruning in smaller_models().prunings.values():
        try:
            pruned = prune(resolved, pruning)
        except ValueError as error:
            yield Change(pruning.title, refused=str(error))
            continue
        saved = 1 - _weight_bits(pruned) / _weight_bits(resolved.model)
        notes = (f"{saved:.0%} fewer weight bytes; needs a new checkpoint", pruning.note)
        yield Change(
            pruning.title,
            model=pruned,
            note="; ".join(filter(None, notes)),
            quality=f"{pruning.quality} ({pruning.source}, {pruning.date})",
            worst_loss_fraction=pruning.worst_loss_fraction,
        )


def next_smaller(model: ModelSpec) -> ModelSpec | None:
    """Return the largest preset of the same family that is smaller than `model`; None if there is none."""
    family = _family(model.name)
    if not family:
        return None
    found = [
        each
        for name in model_names()
        if name != model.name and _family(name) == family and (each := load_model(name))
    ]
    smaller = [each for each in found if each.total_params < 0.9 * model.total_params]
    return max(smaller, key=lambda each: each.total_params, default=None)


def _family(name: str) -> str:
    return SIZE.sub("", name, count=1) if SIZE.search(name) else ""


def _smaller_of_family(resolved: ResolvedPool) -> Change:
    model, text = resolved.model, "a smaller model of the same family"
    try:
        smaller = next_smaller(model)
    except CapacityError as error:
        return Change(text, refused=str(error))
    if smaller is None:
        return Change(text, refused=f"no preset is a smaller model of {model.name}'s family")
    published = smaller_models().mmlu
    scores = [published.scores.get(each.name) for each in (model, smaller)]
    quality, loss = "unknown: another model", None
    if scores[0] and scores[1]:
        loss = 1 - scores[1] / scores[0]
        quality = f"MMLU {scores[0]} to {scores[1]} ({published.source}, {published.date})"
    return Change(
        f"{text}: {smaller.name}",
        model=smaller,
        pool={"max_model_len": min(resolved.max_model_len, smaller.max_position_embeddings)},
        note=f"{smaller.total_params / model.total_params:.0%} of the parameters; another checkpoint",
        quality=quality,
        worst_loss_fraction=loss,
    )


def prune(resolved: ResolvedPool, pruning: Pruning) -> ModelSpec:
    """Return the model after pruning. Raises ValueError with a one-line reason if it does not apply."""
    model = resolved.model
    plain = all(
        isinstance(group.mixer, Attention)
        and isinstance(group.feed_forward, DenseFeedForward)
        and group.phase == "all"
        for group in model.layer_groups
    )
    if not plain:
        raise ValueError(f"published results cover only dense decoders with full attention, not {model.name}")
    if model.checkpoint.exceptions:
        raise ValueError(f"{model.name} stores layers in several formats, which pruning does not support")
    if pruning.bits_per_weight is not None:
        return _sparse(resolved, pruning, pruning.bits_per_weight)
    return _reduce_widths(_drop_layers(model, pruning.layers_fraction), pruning)


def _sparse(resolved: ResolvedPool, pruning: Pruning, bits: float) -> ModelSpec:
    model, profile = resolved.model, resolved.profile
    if resolved.scheme.quantized:
        raise ValueError(f"published results cover only 16-bit weights, not {resolved.scheme.name}")
    if profile.platform != "cuda" or profile.capability < pruning.min_compute_capability:
        raise ValueError(f"{profile.name} has no sparse tensor cores, which NVIDIA GPUs have since Ampere")
    dense = model.checkpoint.dense_ffn
    stored = WeightFormat(
        name="sparse-2of4",
        value_bits=bits,
        compute_dtype=dense.compute_dtype,
        kernel=dense.kernel,
        family=dense.family,
        source=pruning.source,
    )
    return replace(model, checkpoint=uniform_scheme("2:4 sparse", stored, base=dense))


def _drop_layers(model: ModelSpec, fraction: float) -> ModelSpec:
    """Return the model with this fraction of its layers: the last layer and the first ones."""
    count = max(round(model.num_layers * fraction), 2)
    kept = [*range(count - 1), model.num_layers - 1]
    place = {layer: number for number, layer in enumerate(kept)}
    groups = (
        replace(group, layers=tuple(place[layer] for layer in group.layers if layer in place))
        for group in model.layer_groups
    )
    return replace(model, layer_groups=tuple(group for group in groups if group.layers))


def _reduce_widths(model: ModelSpec, pruning: Pruning) -> ModelSpec:
    if pruning.hidden_fraction == pruning.intermediate_fraction == 1:
        return model

    def narrow(width: int, fraction: float) -> int:
        return max(round(width * fraction / MULTIPLE), 1) * MULTIPLE

    groups = []
    for group in model.layer_groups:
        assert isinstance(group.feed_forward, DenseFeedForward)
        size = narrow(group.feed_forward.intermediate_size, pruning.intermediate_fraction)
        groups.append(replace(group, feed_forward=replace(group.feed_forward, intermediate_size=size)))
    hidden_size = narrow(model.hidden_size, pruning.hidden_fraction)
    return replace(model, hidden_size=hidden_size, layer_groups=tuple(groups))


def _weight_bits(model: ModelSpec) -> float:
    """Return the number of bits of all stored weights, including weights outside the layers."""
    dense, base = model.checkpoint.dense_ffn, model.checkpoint.base
    return sum(
        part.params * (dense if part.kind in ("attention", "dense_ffn") else base).bits_per_weight
        for part in model.parameter_parts()
    )
