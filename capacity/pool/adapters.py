"""LoRA adapters on a GPU: their bytes there, by rank, and what it takes to bring one there."""

from __future__ import annotations

from capacity.model.spec import ModelSpec
from capacity.pool.weights import pipeline_layers

ADAPTED = ("attention", "linear_attention", "dense_ffn", "shared_expert")
VALUE_BYTES = 2  # vLLM: --lora-dtype auto is the model's, 16 bit


def adapter_bytes(
    model: ModelSpec,
    rank: int,
    *,
    stage: int = 0,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
) -> int:
    """Bytes of one adapter on one GPU of a stage: rank x (inputs + outputs) of every linear layer but experts.

    Of the two factors the one at the matrix's divided side is divided as well, the other is whole on every GPU
    (vLLM without --fully-sharded-loras: lora/layers/column_parallel_linear.py, row_parallel_linear.py).
    """
    layers = set(pipeline_layers(model.num_layers, pipeline_parallel_size)[stage])
    values = 0.0
    for part in model.parameter_parts():
        if part.kind not in ADAPTED or part.columns == 1:
            continue
        ranks = 1 if part.sharding == "replicated" else min(tensor_parallel_size, part.shard_limit or 1 << 20)
        divided = part.rows if part.columns == model.hidden_size else part.columns
        whole = part.rows + part.columns - divided
        count = part.matrices_per_layer * len(layers.intersection(part.layers))
        values += count * rank * (whole + divided / ranks)
    return round(values * VALUE_BYTES)
