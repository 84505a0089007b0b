"""What the code of a model type fixes and its config does not say."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from capacity.base.fields import Fields
from capacity.model.hf_config.feed_forwards import FeedForwardRule
from capacity.model.hf_config.windows import WindowRule
from capacity.model.layers import Mixer, Phase
from capacity.model.parts import ParameterPart, Product
from capacity.model.spec import Task

Flag: TypeAlias = bool | str | tuple[str, bool]
"""Fixed by the code, or a field of the config: false where it is absent, or what stands beside its name."""
QkNorm: TypeAlias = Literal["none", "per_head", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a layer has beside its mixer and its feed-forward."""

    products: tuple[Product, ...] = ()
    vector_values: int = 0
    norms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the code of a model type fixes and its config does not say."""

    mixer: "Callable[[Fields, Family, int], Mixer]"
    feed_forward: FeedForwardRule
    qkv_bias: Flag = False
    output_bias: Flag = False
    qk_norm: QkNorm = "none"
    qk_norm_if: Flag = True
    norms_per_layer: int | Callable[[Fields], int] = 2
    norm_values: int = 1  # one scale; 2 with a bias; 0 where nothing is learned
    tied: bool = False  # where the config does not say
    sinks: Flag = False
    window: WindowRule = lambda _fields, _layer: None
    chunked: bool = False
    output_gate: bool = False
    indexer: bool = False  # sparse attention: its fields must be there
    mtp_keys: tuple[str, ...] = ()
    defaults: Mapping[str, int] = field(
        default_factory=dict
    )  # of transformers, for keys that are absent, not null
    beside: Callable[[Fields, int], Beside] = lambda _fields, _layer: Beside()
    outside: Callable[[Fields], tuple[ParameterPart, ...]] = lambda _fields: ()
    num_layers: Callable[[Fields], int] | None = None  # where the config counts otherwise
    notes: tuple[str, ...] = ()
    task: Task = "generate"
    prompt_audio_s: int | None = None  # seconds of audio that are the prompt
    phase: Callable[[Fields, int], Phase] = lambda _fields, _layer: "all"
    source: str = ""  # of what is no field of the config


def holds(text: Fields, rule: Flag) -> bool:
    """Whether it is so in this config."""
    if isinstance(rule, bool):
        return rule
    key, default = (rule, False) if isinstance(rule, str) else rule
    return text.flag(key, default=default)
