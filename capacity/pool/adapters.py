"""LoRA adapters on a GPU: their bytes there, by rank."""

from capacity.model.spec import ModelSpec
from capacity.pool.weights import pipeline_layers
from capacity.step.layers.adapters import FACTOR_BYTES, packed_layers


def adapter_bytes(
    model: ModelSpec,
    rank: int,
    *,
    stage: int = 0,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
) -> int:
    """Bytes of one adapter on one GPU of a stage: rank x (inputs + outputs) of every linear layer but experts."""
    layers = set(pipeline_layers(model.num_layers, pipeline_parallel_size)[stage])
    values = sum(
        len(layers.intersection(pack.layers)) * pack.factor_values
        for pack in packed_layers(model, tensor_parallel_size)
    )
    return round(rank * values * FACTOR_BYTES)
