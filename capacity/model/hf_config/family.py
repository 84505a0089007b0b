"""Known model types: properties that their code defines and their config omits, as data in `families.json`.

Sources: transformers 5.23 configuration and modelling files, vLLM 0.33 `model_arch_config_convertor.py`, read 2026-11.
A row has fields of `Family`. With `like`, it inherits the fields of another row; null resets a field to its default. A
rule is the name of a function of this package (`module.function`), or an object with that name and keyword arguments.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Literal, TypeAlias

from capacity.base.data_files import Table, make_row, read_data
from capacity.base.fields import Fields
from capacity.model.hf_config.feed_forwards import FeedForwardRule
from capacity.model.hf_config.windows import WindowRule
from capacity.model.layers import Mixer, Phase
from capacity.model.parameter_part import ParameterPart
from capacity.model.parts import Product
from capacity.model.spec import Task

Flag: TypeAlias = bool | str | tuple[str, bool]
"""A boolean; the name of a boolean config field (False if the config lacks it); or the name of a field and the value to
use if the config lacks it."""
MixerRule: TypeAlias = "Callable[[Fields, Family, int], Mixer]"
QkNorm: TypeAlias = Literal["none", "per_head", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerExtras:
    """Parameters of a layer in addition to mixer and feed-forward.

    `norms`: number of norms over the hidden size; None: the model's `norms_per_layer`.
    """

    products: tuple[Product, ...] = ()
    vector_values: int = 0
    norms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Properties of a model type that its code defines and its config omits."""

    mixer: MixerRule
    feed_forward: FeedForwardRule
    qkv_bias: Flag = False
    output_bias: Flag = False
    qk_norm: QkNorm = "none"
    qk_norm_if: Flag = True
    norms_per_layer: int | Callable[[Fields], int] = 2
    norm_values: int = 1  # one scale; 2 with a bias; 0 if nothing is learned
    tied: bool = False  # if the config does not say
    sinks: Flag = False
    window: WindowRule = lambda _fields, _layer: None
    chunked: bool = False
    output_gate: bool = False
    indexer: bool = False  # sparse attention: its fields are required
    mtp_keys: tuple[str, ...] = ()
    defaults: Mapping[str, int] = field(default_factory=dict)  # for keys that are absent, not null
    extras: Callable[[Fields, int], LayerExtras] = lambda _fields, _layer: LayerExtras()
    outside: Callable[[Fields], tuple[ParameterPart, ...]] = lambda _fields: ()
    num_layers: Callable[[Fields], int] | None = None  # if the config counts them differently
    notes: tuple[str, ...] = ()
    task: Task = "generate"
    prompt_audio_s: int | None = None  # seconds of audio that are the prompt
    phase: Callable[[Fields, int], Phase] = lambda _fields, _layer: "all"
    source: str = ""  # of values without a field in the config


def flag_value(text: Fields, rule: Flag) -> bool:
    """Return the value of a flag: `rule` itself if it is a boolean, else the config's field that it names."""
    if isinstance(rule, bool):
        return rule
    key, default = (rule, False) if isinstance(rule, str) else rule
    return text.flag(key, default=default)


TABLE = Path(__file__).with_name("families.json")
RULES = ("mixer", "feed_forward", "window", "extras", "outside", "num_layers", "norms_per_layer", "phase")


@cache
def _rows() -> Table:
    return read_data(TABLE)


def supported_model_types() -> tuple[str, ...]:
    """Return every `model_type` with a row in `families.json`, sorted."""
    return tuple(sorted(_rows()))


@cache
def find_family(model_type: str) -> Family | None:
    """Return the properties of this `model_type`, or None if it is unknown. Raises MalformedFile."""
    if model_type not in _rows():
        return None
    return make_row(TABLE, model_type, _make_family, {"model_type": model_type})


def _inherited_fields(model_type: str) -> Table:
    """Return the fields of this type's row in `families.json`, including those inherited with `like`."""
    row = _rows().get(model_type)
    if row is None:
        raise ValueError(f"like: there is no row {model_type!r}")
    fields = {**(_inherited_fields(row["like"]) if "like" in row else {}), **row}
    return {key: value for key, value in fields.items() if key != "like" and value is not None}


def _make_family(model_type: str) -> Family:
    fields = _inherited_fields(model_type)
    rules = {key: find_rule(fields[key]) for key in RULES if isinstance(fields.get(key), str | dict)}
    return Family(**{**fields, **rules})


def find_rule(named: str | Table) -> Any:
    """Return the function that a rule names, with the rule's keyword arguments bound. Raises ValueError, TypeError."""
    if not isinstance(named, str):
        keywords = dict(named)
        rule = find_rule(keywords.pop("rule"))
        signature(rule).bind_partial(**keywords)  # an unknown keyword is an error in the table
        return partial(rule, **keywords)
    module, _, function = named.partition(".")
    try:
        return getattr(import_module(f"{__package__}.{module}"), function)
    except (ImportError, AttributeError):
        raise ValueError(f"there is no rule {named!r}") from None
