"""The matrix of GPUs, engines and weight formats says what the resolve step does, and how well it is known."""

from __future__ import annotations

import pytest

import capacity
from capacity.answers.support import FORMATS, SupportMatrix
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.deployment.engines import engine_names, find_engine
from capacity.hardware import profile_names
from capacity.model.quantization import FormatFamily
from capacity.pool.resolve import resolve
from capacity.step.model import StepModel


@pytest.fixture(scope="module")
def matrix() -> SupportMatrix:
    return capacity.gpu_support()


def test_every_gpu_engine_and_format_has_a_cell(matrix: SupportMatrix) -> None:
    engines = [name for name in engine_names() if not find_engine(name).baseline]
    assert matrix.gpus == profile_names()
    assert len(matrix.rows) == len(matrix.gpus) * len(engines) * len(FORMATS)
    assert {cell.status for cell in matrix.rows} == {"measured", "fitted", "assumed", "impossible"}
    assert all(cell.why for cell in matrix.rows)


@pytest.mark.parametrize(
    ("gpu", "engine", "weights", "status"),
    [
        ("h100-sxm-80gb", "vllm", "fp8", "measured"),
        ("h100-sxm-80gb", "llama.cpp", "gguf", "assumed"),
        ("h100-sxm-80gb", "tgi", "16-bit", "assumed"),  # by vLLM's kernels
        ("h100-sxm-80gb", "tensorrt-llm", "nvfp4", "impossible"),
        ("b200-sxm-180gb", "tensorrt-llm", "nvfp4", "measured"),
        ("a100-sxm-80gb", "vllm", "16-bit", "fitted"),
        ("a100-sxm-80gb", "vllm", "fp8", "assumed"),  # Marlin stands in
        ("a40-48gb", "vllm", "16-bit", "assumed"),
        ("t4-16gb", "vllm", "fp8", "impossible"),
        ("tpu-v6e-32gb", "tensorrt-llm", "16-bit", "impossible"),
        ("m4-max-128gb", "llama.cpp", "gguf", "assumed"),
    ],
)
def test_cells(matrix: SupportMatrix, gpu: str, engine: str, weights: FormatFamily, status: str) -> None:
    assert matrix.status(gpu, engine, weights) == status


@pytest.mark.parametrize("gpu", ["t4", "h100", "m4-max", "gaudi3", "mi300x", "epyc-9755"])
def test_impossible_is_what_is_refused(gpu: str) -> None:
    for cell in capacity.gpu_support(gpus=[gpu]).rows:
        pool = Pool(gpu=gpu, engine=cell.engine, quantization=FORMATS[cell.weight_format], max_model_len=1024)
        try:
            StepModel(resolve("llama-3.2-1b", pool).step_setting)
            refused = False
        except InvalidInput:
            refused = True
        assert refused == (cell.status == "impossible"), cell
