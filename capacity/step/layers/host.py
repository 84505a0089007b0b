"""Layers that the CPU computes, as llama.cpp's `-ngl` leaves them: few rows it does, many the GPU, which reads their
weights over PCIe.

Attention and the small kernels stay with the CPU in either case, where their KV is. Left out: hidden states that cross
PCIe twice a step (16 KiB a row), and that llama.cpp replays no CUDA graph where layers are split.
"""

from collections.abc import Iterator
from dataclasses import replace

from capacity.model.layers import LayerGroup
from capacity.step.layers.builder import Builder
from capacity.step.operators import Gemm, Operator

BY_THE_GPU_FROM_ROWS = 32.0
"""Rows from which the GPU multiplies a host's weights. Source: ggml-cuda, min_batch_size of offload_op (llama.cpp PR
6083); ik_llama.cpp's GGML_CUDA_MIN_BATCH_OFFLOAD has the same default."""


def on_the_gpu(group: LayerGroup, cpu_layers: int) -> LayerGroup | None:
    """The layers of a group that the GPU holds, which are the model's last; None: none of them."""
    return _only(group, tuple(layer for layer in group.layers if layer >= cpu_layers))


def on_the_cpu(group: LayerGroup, cpu_layers: int) -> LayerGroup | None:
    """The others."""
    return _only(group, tuple(layer for layer in group.layers if layer < cpu_layers))


def _only(group: LayerGroup, layers: tuple[int, ...]) -> LayerGroup | None:
    return replace(group, layers=layers) if layers else None


def products_of_host(by_cpu: list[Operator], by_gpu: list[Operator]) -> Iterator[Operator]:
    """The same layers' products twice: the CPU's, and the GPU's with all weights read over PCIe, each for its rows."""
    for operator in by_cpu:
        if isinstance(operator, Gemm):
            below = min(operator.below_rows, BY_THE_GPU_FROM_ROWS)
            operator = replace(operator, below_rows=below)
            if operator.from_rows >= below:
                continue
        yield of_cpu(operator)
    for operator in by_gpu:
        if isinstance(operator, Gemm):
            first = max(operator.from_rows, BY_THE_GPU_FROM_ROWS)
            if first < operator.below_rows:
                yield replace(operator, name=f"host {operator.name}", from_rows=first)


def of_cpu(operator: Operator) -> Operator:
    """The operator with a name that says where it runs."""
    return replace(operator, name=f"cpu {operator.name}")  # type: ignore[type-var]


def cpu_builder(build: Builder) -> Builder:
    """What builds the layers of the CPU: the same engine and formats, by the CPU's rates."""
    cpu = build.setting.host_cpu
    assert cpu is not None, "layers on no CPU"
    return Builder(replace(build.setting, profile=cpu, host_weight_share=0.0))


def host_reading_builder(build: Builder) -> Builder:
    """What builds products of weights that all come over PCIe."""
    return Builder(replace(build.setting, host_weight_share=1.0))
