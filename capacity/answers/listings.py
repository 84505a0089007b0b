"""What there is to ask about: the model presets and the GPU profiles."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from capacity.base.checked import checked
from capacity.hardware import load_profile, profile_names
from capacity.model import load_model, model_names


class ModelListing(TypedDict):
    """A model preset; KV bytes per token at 16 bit."""

    name: str
    hf_id: str | None
    total_params: int
    active_params: int
    kv_bytes_per_token: int


class GpuListing(TypedDict):
    """A GPU profile: memory as the engine sees it, HBM bandwidth, dense rates, link per direction, power."""

    name: str
    memory_bytes: int
    hbm_bytes_per_s: float
    dense_flops_per_s: dict[str, float]
    link_bytes_per_s: float
    tdp_watts: float


def models() -> list[ModelListing]:
    """Every model preset: name, Hugging Face id, parameters, KV bytes per token at 16 bit."""
    return [
        {
            "name": spec.name,
            "hf_id": spec.hf_id,
            "total_params": spec.total_params,
            "active_params": spec.active_params,
            "kv_bytes_per_token": int(spec.kv_bytes_per_token("bf16")),
        }
        for spec in map(load_model, model_names())
    ]


@checked
def gpus(*, profiles: str | Path | None = None) -> list[GpuListing]:
    """Every GPU profile: memory as the engine sees it, HBM bandwidth, dense rates, link per direction, power."""
    directories = [profiles] if profiles else []
    return [
        {
            "name": profile.name,
            "memory_bytes": profile.memory_engine_bytes,
            "hbm_bytes_per_s": profile.hbm_bytes_per_s,
            "dense_flops_per_s": profile.dense_flops_per_s,
            "link_bytes_per_s": profile.scale_up.bytes_per_s,
            "tdp_watts": profile.tdp_watts,
        }
        for profile in (load_profile(name, directories) for name in profile_names(directories))
    ]
