"""Operators of a step, built from a model on a group of GPUs: matrix shapes, cache bytes, messages.

Input: a `Builder` (the setting with its kernel constants). Output: `Operators`, grouped by what they depend on. Each
kind of token mixer and feed-forward has one builder function, registered here by its type. Equal operators of different
layer groups are merged, so a step evaluates about a dozen of them for any depth. Tensor parallelism divides heads and
widths; with more ranks than KV heads, the KV heads are replicated.

For layers that llama.cpp's `-ngl` leaves to the CPU, the CPU computes steps with few rows; in steps with many rows the
GPU reads their weights over PCIe. Attention and the small kernels of these layers always run on the CPU, where their
KV is. Not modelled: hidden states cross PCIe twice a step (16 KiB per row), and llama.cpp replays no CUDA graph for
models that are split between CPU and GPU.
"""

import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, singledispatch

from capacity.base.errors import UnsupportedModel
from capacity.model.compressed import CompressedAttention
from capacity.model.feed_forward import DenseFeedForward, FeedForward, MoEFeedForward, NoFeedForward
from capacity.model.layers import Attention, LatentAttention, LayerGroup, LinearAttention, Mixer
from capacity.model.recurrent import NoMixer, ParallelMixer, Recurrence
from capacity.step.collectives import Transfer
from capacity.step.layers import adapters, compressed, feed_forward, grouped, latent, linear
from capacity.step.layers.builder import Builder, MixerOperators
from capacity.step.layers.sampling import sampling_operator
from capacity.step.operators import ACTIVATION_BYTES, Gemm, Operator
from capacity.step.row_counts import RowCount, all_tokens, prompt_tokens, sampled_tokens

MIN_GPU_OFFLOAD_ROWS = 32.0
"""Rows of a step from which the GPU, not the CPU, multiplies weights in host memory. Source: ggml-cuda, min_batch_size
of offload_op (llama.cpp PR 6083); ik_llama.cpp's GGML_CUDA_MIN_BATCH_OFFLOAD has the same default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """Operators of a step, grouped by what their time depends on.

    `per_token`: the number of rows, padded to the size of a CUDA graph. `per_sample`: the number of sampled rows.
    `per_context`: rows and contexts. `shared`: the mean rows of all data-parallel ranks, for experts and the exchange
    of tokens before and after them; empty if the ranks do not share experts.
    """

    per_token: tuple[Operator, ...]
    shared: tuple[Operator, ...]
    per_sample: tuple[Operator, ...]
    per_context: tuple[Operator, ...]
    notes: tuple[str, ...]


def build_operators(build: Builder) -> Operators:
    """Build all operators of one step. Raises UnsupportedModel for a kind of layer without a builder function."""
    per_token: list[Operator] = [*embedding(build)]
    per_context: list[Operator] = []
    for layers in _layer_operators(build):
        per_token += layers.products
        per_context += layers.attention
    per_token += communication(build)
    per_token += adapters.operators(build)
    shared = feed_forward.SHARED_OPERATORS if build.setting.runs_joint_steps else ()
    lm_head = map(name_as_cpu, head(cpu_builder(build))) if build.setting.head_on_cpu else head(build)
    sampled = [*lm_head, *(op for op in per_token if _operator_rows(op) is sampled_tokens)]
    per_context += [op for op in per_token if _operator_rows(op) is prompt_tokens]
    per_token = [op for op in per_token if _operator_rows(op) not in (sampled_tokens, prompt_tokens)]
    return Operators(
        per_token=merge_operators(op for op in per_token if op.name not in shared),
        shared=merge_operators(op for op in per_token if op.name in shared),
        per_sample=merge_operators(sampled),
        per_context=merge_operators(per_context),
        notes=tuple(dict.fromkeys(build.notes)),
    )


def _operator_rows(operator: Operator) -> RowCount:
    """Return the function that counts the rows of a step that the operator computes."""
    return getattr(operator, "rows", all_tokens)


def _layer_operators(build: Builder) -> Iterator[MixerOperators]:
    """Yield matrix multiplications and attention of all layers, including layers on the CPU."""
    cpu_layers = build.setting.cpu_layers
    if not cpu_layers:
        yield from (_group_operators(group, build) for group in build.model.layer_groups)
        return
    by_cpu, from_host = cpu_builder(build), Builder(replace(build.setting, host_weight_share=1.0))
    for group in build.model.layer_groups:  # the GPU holds the model's last layers
        here = tuple(layer for layer in group.layers if layer >= cpu_layers)
        there = tuple(layer for layer in group.layers if layer < cpu_layers)
        if here:
            yield _group_operators(replace(group, layers=here), build)
        if there:
            cpus = replace(group, layers=there)
            own, read = _group_operators(cpus, by_cpu), _group_operators(cpus, from_host)
            products = [*host_products(own.products, read.products)]
            yield MixerOperators(products, [name_as_cpu(operator) for operator in own.attention])


def _group_operators(group: LayerGroup, build: Builder) -> MixerOperators:
    mixed = mixer_operators(group.mixer, group, build)
    products = [
        *mixed.products,
        *feed_forward_operators(group.feed_forward, group, build),
        *build.products("other products", group.products, group),
    ]
    return MixerOperators(products, mixed.attention)


@singledispatch
def mixer_operators(mixer: Mixer, group: LayerGroup, build: Builder) -> MixerOperators:  # noqa: ARG001
    """Build the matrix multiplications, norms and attention of a layer's token mixer."""
    raise UnsupportedModel(
        build.model.model_type, f"the step model has no operators for {type(mixer).__name__}"
    )


mixer_operators.register(Attention, grouped.operators)
mixer_operators.register(LatentAttention, latent.operators)
mixer_operators.register(LinearAttention, linear.operators)
mixer_operators.register(CompressedAttention, compressed.operators)
mixer_operators.register(Recurrence, linear.recurrence_operators)


@mixer_operators.register
def _side_by_side(mixer: ParallelMixer, group: LayerGroup, build: Builder) -> MixerOperators:
    """Build a mixer of parallel attention and recurrence; the two run in sequence, because engines use one stream."""
    first = mixer_operators(mixer.attention, group, build)
    second = linear.recurrence_operators(mixer.recurrence, group, build, norms=False)
    return MixerOperators(
        products=first.products + second.products, attention=first.attention + second.attention
    )


@mixer_operators.register
def _no_mixer(mixer: NoMixer, group: LayerGroup, build: Builder) -> MixerOperators:  # noqa: ARG001
    """Build the mixer operators of a layer without a token mixer: only the norm before the feed-forward."""
    return MixerOperators(products=[build.elementwise(group, rope_values=0.0, cache_bytes=0.0)], attention=[])


@singledispatch
def feed_forward_operators(part: FeedForward, group: LayerGroup, build: Builder) -> list[Operator]:  # noqa: ARG001
    """Build the operators of a layer's feed-forward, dense or routed."""
    raise UnsupportedModel(
        build.model.model_type, f"the step model has no operators for {type(part).__name__}"
    )


feed_forward_operators.register(DenseFeedForward, feed_forward.dense)
feed_forward_operators.register(MoEFeedForward, feed_forward.mixture)
feed_forward_operators.register(NoFeedForward, lambda _part, _group, _build: [])


def merge_operators(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Merge operators that have the same key. Raises TypeError for objects that do not implement `Operator`."""
    by_key: dict[Hashable, Operator] = {}
    for operator in operators:
        _require_operator(type(operator))
        key = operator.key()
        by_key[key] = by_key[key].add(operator) if key in by_key else operator
    return tuple(by_key.values())


@cache
def _require_operator(kind: type) -> None:
    lacking = [name for name in ("seconds", "cost", "key", "add") if not hasattr(kind, name)]
    if lacking:
        raise TypeError(f"{kind.__name__} is not an operator of a step: it lacks {', '.join(lacking)}")


def embedding(build: Builder) -> Iterator[Operator]:
    """Build the embedding look-up of each row, and the matrix multiplications that belong to no layer."""
    yield build.traffic(
        "embedding", kernels=1.0, bytes_per_row=2 * build.model.hidden_size * ACTIVATION_BYTES
    )
    for part in build.model.outside:  # replicated on every GPU
        if part.kind == "dense_ffn":
            yield from build.gemm("projections of inputs", part.kind, k=part.columns, n=part.rows)


def head(build: Builder) -> Iterator[Operator]:
    """Build the LM head and the sampling, for the sampled rows; embedding models have neither."""
    model, ranks = build.model, build.setting.tensor_parallel_size
    if model.task == "embed":
        return
    vocabulary = math.ceil(model.vocab_size / ranks)
    yield from build.gemm(
        "lm_head",
        "embedding" if model.tie_word_embeddings else "lm_head",
        k=model.hidden_size,
        n=vocabulary,
        rows=sampled_tokens,
    )
    if ranks > 1:
        yield Transfer(
            name="logits all-gather",
            kind="all_gather",
            count=1,
            ranks=ranks,
            bytes_per_row=(ranks - 1) * vocabulary * ACTIVATION_BYTES,
            link=build.setting.find_link(ranks),
            constants=build.lookup.nccl("all_gather"),
            rows=sampled_tokens,
        )
    yield sampling_operator(build)


def communication(build: Builder) -> Iterator[Operator]:
    """Build the all-reduces of tensor parallelism, and the sends between pipeline stages."""
    setting, model = build.setting, build.model
    if setting.tensor_parallel_size > 1:
        yield build.all_reduce(
            "all-reduce",
            count=sum(
                (1 if setting.runs_joint_steps and group.is_moe else 2) * group.num_layers
                for group in model.layer_groups
            )
            + 1,  # for the vocabulary-parallel embedding
            values_per_row=model.hidden_size,
            before_norm=True,
        )
    if setting.pipeline_parallel_size > 1:
        gpus = setting.tensor_parallel_size * setting.data_parallel_size * setting.pipeline_parallel_size
        yield Transfer(
            name="pipeline send",
            kind="send_recv",
            count=setting.pipeline_parallel_size - 1,
            ranks=2,
            bytes_per_row=2 * model.hidden_size * ACTIVATION_BYTES,  # hidden state and residual
            link=setting.find_link(gpus),
            constants=build.lookup.nccl("send_recv"),
        )


def host_products(by_cpu: list[Operator], by_gpu: list[Operator]) -> Iterator[Operator]:
    """Yield the operators of layers on the CPU. Each GEMM becomes two: one on the CPU for few rows, and one on the
    GPU, which reads the weights over PCIe, for many rows."""
    for operator in by_cpu:
        if isinstance(operator, Gemm):
            below = min(operator.below_rows, MIN_GPU_OFFLOAD_ROWS)
            operator = replace(operator, below_rows=below)
            if operator.from_rows >= below:
                continue
        yield name_as_cpu(operator)
    for operator in by_gpu:
        if isinstance(operator, Gemm):
            first = max(operator.from_rows, MIN_GPU_OFFLOAD_ROWS)
            if first < operator.below_rows:
                yield replace(operator, name=f"host {operator.name}", from_rows=first)


def name_as_cpu(operator: Operator) -> Operator:
    """Return the operator with the prefix "cpu" in its name."""
    return replace(operator, name=f"cpu {operator.name}")  # type: ignore[type-var]


def cpu_builder(build: Builder) -> Builder:
    """Return the builder for layers on the CPU: the same engine and weight formats, with the rates of the host CPU."""
    cpu = build.setting.host_cpu
    assert cpu is not None, "layers on the CPU need `StepSetting.host_cpu`"
    return Builder(replace(build.setting, profile=cpu, host_weight_share=0.0))
