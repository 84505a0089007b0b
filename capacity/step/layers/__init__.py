"""From a model on a group of GPUs to the operators of its step: shapes of matrices, bytes of caches, messages.

One builder for each kind of mixer and of feed-forward, registered here by its type; equal operators of different
layer groups are merged, so that a step evaluates a dozen of them whatever the depth. Tensor parallelism divides
heads and widths; KV heads beyond it replicate.
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, singledispatch

from capacity.base.errors import UnsupportedModel
from capacity.model.compressed import CompressedAttention
from capacity.model.feed_forward import DenseFeedForward, FeedForward, MoEFeedForward, NoFeedForward
from capacity.model.layers import Attention, LatentAttention, LayerGroup, LinearAttention, Mixer
from capacity.model.recurrent import NoMixer, Recurrence, SideBySide
from capacity.step.layers import adapters, compressed, ends, feed_forward, grouped, host, latent, linear
from capacity.step.layers.builder import Builder, MixerOperators
from capacity.step.operators import Operator, RowCount, all_tokens, prompt_tokens, sampled_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """The operators of a step, by what they depend on.

    `per_token`: the number of rows alone, padded to a CUDA graph's. `per_sample`: the number of sampled rows alone.
    `per_context`: the contexts too. `shared`: the rows of all data-parallel ranks, given as their mean: experts and
    the exchange of tokens before and after them; empty without such ranks.
    """

    per_token: tuple[Operator, ...]
    shared: tuple[Operator, ...]
    per_sample: tuple[Operator, ...]
    per_context: tuple[Operator, ...]
    notes: tuple[str, ...]


def build_operators(build: Builder) -> Operators:
    """All operators of one step. Raises UnsupportedModel for a layer without a builder here."""
    per_token: list[Operator] = [*ends.embedding(build)]
    per_context: list[Operator] = []
    for layers in _layers(build):
        per_token += layers.products
        per_context += layers.attention
    per_token += ends.communication(build)
    per_token += adapters.operators(build)
    shared = feed_forward.SHARED if build.setting.joint else ()
    sampled = [*_head(build), *(op for op in per_token if _rows(op) is sampled_tokens)]
    per_context += [op for op in per_token if _rows(op) is prompt_tokens]
    per_token = [op for op in per_token if _rows(op) not in (sampled_tokens, prompt_tokens)]
    return Operators(
        per_token=merged(op for op in per_token if op.name not in shared),
        shared=merged(op for op in per_token if op.name in shared),
        per_sample=merged(sampled),
        per_context=merged(per_context),
        notes=tuple(dict.fromkeys(build.notes)),
    )


def _rows(operator: Operator) -> RowCount:
    """Which rows an operator is computed over."""
    return getattr(operator, "rows", all_tokens)


def _layers(build: Builder) -> Iterator[MixerOperators]:
    """Products and attention of all layers, those of the CPU too."""
    cpu_layers = build.setting.cpu_layers
    if not cpu_layers:
        yield from (_of_group(group, build) for group in build.model.layer_groups)
        return
    by_cpu, from_host = host.cpu_builder(build), host.host_reading_builder(build)
    for group in build.model.layer_groups:
        here, there = host.on_the_gpu(group, cpu_layers), host.on_the_cpu(group, cpu_layers)
        if here is not None:
            yield _of_group(here, build)
        if there is not None:
            own, read = _of_group(there, by_cpu), _of_group(there, from_host)
            products = [*host.products_of_host(own.products, read.products)]
            yield MixerOperators(products, [host.of_cpu(operator) for operator in own.attention])


def _of_group(group: LayerGroup, build: Builder) -> MixerOperators:
    mixed = mixer_operators(group.mixer, group, build)
    products = [
        *mixed.products,
        *feed_forward_operators(group.feed_forward, group, build),
        *build.products("other products", group.products, group),
    ]
    return MixerOperators(products, mixed.attention)


def _head(build: Builder) -> Iterator[Operator]:
    if not build.setting.head_on_cpu:
        return ends.head(build)
    return (host.of_cpu(operator) for operator in ends.head(host.cpu_builder(build)))


@singledispatch
def mixer_operators(mixer: Mixer, group: LayerGroup, build: Builder) -> MixerOperators:  # noqa: ARG001
    """Products and norms of a layer's token mixer, and its attention proper."""
    raise UnsupportedModel(build.model.model_type, f"{type(mixer).__name__} has no operators in a step")


mixer_operators.register(Attention, grouped.operators)
mixer_operators.register(LatentAttention, latent.operators)
mixer_operators.register(LinearAttention, linear.operators)
mixer_operators.register(CompressedAttention, compressed.operators)
mixer_operators.register(Recurrence, linear.recurrence_operators)


@mixer_operators.register
def _side_by_side(mixer: SideBySide, group: LayerGroup, build: Builder) -> MixerOperators:
    """Both, one after the other: engines run them on one stream."""
    first = mixer_operators(mixer.attention, group, build)
    second = linear.recurrence_operators(mixer.recurrence, group, build, norms=False)
    return MixerOperators(
        products=first.products + second.products, attention=first.attention + second.attention
    )


@mixer_operators.register
def _no_mixer(mixer: NoMixer, group: LayerGroup, build: Builder) -> MixerOperators:  # noqa: ARG001
    """The norm alone, before the feed-forward."""
    return MixerOperators(products=[build.elementwise(group, rope_values=0.0, cache_bytes=0.0)], attention=[])


@singledispatch
def feed_forward_operators(part: FeedForward, group: LayerGroup, build: Builder) -> list[Operator]:  # noqa: ARG001
    """Of a layer's feed-forward, dense or routed."""
    raise UnsupportedModel(build.model.model_type, f"{type(part).__name__} has no operators in a step")


feed_forward_operators.register(DenseFeedForward, feed_forward.dense)
feed_forward_operators.register(MoEFeedForward, feed_forward.mixture)
feed_forward_operators.register(NoFeedForward, lambda _part, _group, _build: [])


def merged(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Operators of equal keys once, added up. Raises TypeError for what is no `Operator`: none is left out."""
    by_key: dict[Hashable, Operator] = {}
    for operator in operators:
        _require_operator(type(operator))
        key = operator.key()
        by_key[key] = by_key[key].plus(operator) if key in by_key else operator
    return tuple(by_key.values())


@cache
def _require_operator(kind: type) -> None:
    lacking = [name for name in ("seconds", "cost", "key", "plus") if not hasattr(kind, name)]
    if lacking:
        raise TypeError(f"{kind.__name__} is no operator of a step: it has no {', no '.join(lacking)}")
