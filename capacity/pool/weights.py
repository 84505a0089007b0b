"""Weight bytes of one GPU under pipeline, tensor, expert and data parallelism."""

import math
from dataclasses import replace

from capacity.model.parameter_part import ParameterPart
from capacity.pool.settings import PoolSettings

VOCABULARY_PADDING = 64  # vLLM pads embedding and LM head to this: vocab_parallel_embedding.py


def pipeline_layers(num_layers: int, stages: int) -> tuple[range, ...]:
    """Return the layers of each pipeline stage; as in vLLM, a remainder goes to the stages before the last."""
    sizes = [num_layers // stages] * stages
    for offset in range(num_layers % stages):
        sizes[-2 - offset] += 1
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


def stage_weights(settings: PoolSettings, stage: int, *, host_layers: int = 0, ends: bool = True) -> float:
    """Return the weight bytes on each GPU of one pipeline stage; data-parallel ranks divide only experts.

    Excludes the model's first `host_layers` layers and, if `ends` is false, the embedding, LM head and last norm. Does
    not count the absorbed copies of MLA's up-projections (0.5 GiB per GPU for DeepSeek-V3 at TP4).
    """
    model, stages = settings.model, settings.pool.pipeline_parallel_size
    last = stages - 1
    layers = set(pipeline_layers(model.num_layers, stages)[stage]) - set(range(host_layers))
    parts = list(model.parameter_parts())
    held = [_on_stage(part, layers, first=ends and stage == 0, last=ends and stage == last) for part in parts]
    if ends and model.tie_word_embeddings and stage == last > 0:
        held.append(next(part for part in parts if part.kind == "embedding"))
    return sum(_bytes_on_rank(part, settings) for part in held if part is not None)


def _on_stage(part: ParameterPart, layers: set[int], *, first: bool, last: bool) -> ParameterPart | None:
    if not part.layers:
        on_this = first if part.kind == "embedding" else last
        return part if on_this else None
    own = tuple(layer for layer in part.layers if layer in layers)
    if len(own) == len(part.layers):
        return part
    return replace(part, layers=own) if own else None


def _bytes_on_rank(part: ParameterPart, settings: PoolSettings) -> float:
    scheme, tp = settings.scheme, settings.pool.tensor_parallel_size
    if part.sharding == "replicated":
        return scheme.part_bytes(part)
    if part.sharding == "vocabulary":
        return scheme.part_bytes(replace(part, rows=_round_up(part.rows, VOCABULARY_PADDING))) / tp
    if part.sharding == "kv_heads":
        heads = part.shard_limit or tp
        return scheme.part_bytes(part) * math.ceil(heads / tp) / heads
    if part.sharding == "experts":
        return _expert_bytes_on_rank(part, settings)
    return scheme.part_bytes(part) / tp


def _expert_bytes_on_rank(part: ParameterPart, settings: PoolSettings) -> float:
    """Return the bytes of whole experts or expert slices on one GPU, padded as the engine's kernels require."""
    scheme, ranks = settings.scheme, settings.pool.tensor_parallel_size * settings.lockstep_ranks
    if part.columns == 1:  # biases
        return scheme.part_bytes(part) / ranks
    down = part.name.endswith("down_proj")
    width, hidden = (part.columns, part.rows) if down else (part.rows, part.columns)
    experts = part.matrices_per_layer
    if settings.expert_parallel:
        experts = math.ceil(experts / ranks)
    else:
        width = math.ceil(width / ranks)
    padded_values, architecture = 0.0, settings.profile.architecture
    fitting = (
        rule
        for rule in settings.engine.expert_padding
        if rule.weight_format == scheme.experts.name
        and (not rule.architectures or architecture in rule.architectures)
    )
    if (padding := next(fitting, None)) is not None:
        width = _round_up(width, padding.intermediate_multiple)
        added = _round_up(hidden, padding.hidden_multiple) - hidden
        if padding.pads_scales:
            hidden, added = hidden + added, 0
        padded_values = added * width * experts * len(part.layers) * scheme.experts.value_bits / 8
    rows, columns = (hidden, width) if down else (width, hidden)
    held = replace(part, rows=rows, columns=columns, matrices_per_layer=experts)
    return scheme.part_bytes(held) + padded_values


def _round_up(value: int, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple
