"""Pools with their defaults filled in, of objects that need not have a name."""

from __future__ import annotations

from capacity.deployment import Pool, build
from capacity.deployment.engines import EngineSpec, find_engine
from capacity.hardware import HardwareProfile, load_profile
from capacity.model import ModelSpec
from capacity.model.quantization import QuantizationScheme
from capacity.pool.memory import MemoryPlan
from capacity.pool.resolve import ResolvedPool, with_defaults

GIB = 2**30
H100 = load_profile("h100-sxm-80gb")
A100 = load_profile("a100-sxm-80gb")
B200 = load_profile("b200-sxm-180gb")
H200 = load_profile("h200-sxm-141gb")
VLLM = find_engine("vllm@0.33")
VLLM_011 = find_engine("vllm@0.11")
MODELS = [
    "llama-3.1-8b",
    "gpt-oss-20b",
    "gemma-3-27b",
    "deepseek-v2-lite",
    "qwen3-next-80b-a3b",
    "mixtral-8x7b",
    "phi-4",
]


def pool_of(
    model: ModelSpec,
    profile: HardwareProfile,
    engine: EngineSpec,
    scheme: QuantizationScheme | None = None,
    **fields: object,
) -> ResolvedPool:
    """One engine of a pool, on this GPU and with this engine."""
    pool = build(Pool, {"gpu": profile.name, **fields}, flags=True)
    return with_defaults(pool, model, profile=profile, engine=engine, scheme=scheme)


def plan_of(
    model: ModelSpec,
    profile: HardwareProfile,
    engine: EngineSpec,
    scheme: QuantizationScheme | None = None,
    **fields: object,
) -> MemoryPlan:
    """Its memory."""
    return pool_of(model, profile, engine, scheme, **fields).memory
