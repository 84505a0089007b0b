"""Lists of model presets, GPU profiles and use cases."""

from pathlib import Path
from typing import TypedDict

from capacity.base.checked import validate_arguments
from capacity.base.plugins import plugin_names
from capacity.deployment.use_cases import use_cases as known_use_cases
from capacity.hardware import load_profile, profile_names
from capacity.model import load_model, model_names, user_model_names


class ModelListing(TypedDict):
    """A model preset; `kv_bytes_per_token` is for a KV cache in 16 bit."""

    name: str
    hf_id: str | None
    total_params: int
    active_params: int
    kv_bytes_per_token: int


class GpuListing(TypedDict):
    """A GPU profile: memory that the engine sees, HBM bandwidth, dense FLOP/s, link bandwidth per direction, power."""

    name: str
    memory_bytes: int
    hbm_bytes_per_s: float
    dense_flops_per_s: dict[str, float]
    link_bytes_per_s: float
    tdp_watts: float


def models() -> list[ModelListing]:
    """Return every model (bundled, added by the user, or of a plug-in) with its parameters and KV bytes per token."""
    return [
        {
            "name": spec.name,
            "hf_id": spec.hf_id,
            "total_params": spec.total_params,
            "active_params": spec.active_params,
            "kv_bytes_per_token": int(spec.kv_bytes_per_token("bf16")),
        }
        for spec in map(load_model, (*model_names(), *user_model_names(), *plugin_names("models")))
    ]


class UseCaseListing(TypedDict):
    """A use case: mean tokens and their coefficients of variation, SLOs in the form of `--slo`, think time in seconds,
    and the sources of these numbers."""

    name: str
    title: str
    about: str
    input_len: int
    input_len_cv: float
    output_len: int
    output_len_cv: float
    slo: list[str]
    think_time_s: float
    sources: dict[str, str]


def use_cases() -> list[UseCaseListing]:
    """Return every use case that `use_case=` accepts."""
    known = ("input_len", "output_len", "slo", "think_time_s")
    return [
        {
            "name": case.name,
            "title": case.title,
            "about": case.about,
            "input_len": case.input_len.mean,
            "input_len_cv": case.input_len.cv,
            "output_len": case.output_len.mean,
            "output_len_cv": case.output_len.cv,
            "slo": list(case.slo.limits),
            "think_time_s": case.think_time_s.mean,
            "sources": {name: getattr(case, name).origin for name in known},
        }
        for case in known_use_cases()
    ]


@validate_arguments
def gpus(*, profiles: str | Path | None = None) -> list[GpuListing]:
    """Return every GPU profile with memory, bandwidths, compute rates and power, in the units of `GpuListing`."""
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
