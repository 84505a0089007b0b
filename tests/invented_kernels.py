"""Measurements of kernels whose constants are known."""

import math
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from capacity_validate.cases import Case, MeasuredCase, MeasurementLog, make_case
from capacity_validate.predictions import formula, profile_lookup
from capacity_validate.timing import How, summarise_samples

from capacity.hardware import load_profile

H200 = load_profile("h200")

BASE_GEMM = profile_lookup(H200).kernel("gemm", "bf16")

TRUE_GEMM = SimpleNamespace(  # what is not fitted is as in the profile
    compute_fraction=0.7,
    bandwidth_fraction=0.8,
    sharpness=3.0,
    fixed_s=4e-6,
    per_k_s=6e-10,
    quantize_fraction=None,
)

BASE_DECODE = profile_lookup(H200).kernel("decode_attention", "16bit")

TRUE_DECODE = SimpleNamespace(
    compute_fraction=BASE_DECODE.compute_fraction,
    bandwidth_fraction=0.9,
    sharpness=min(4.0, BASE_DECODE.sharpness),
    fixed_s=1.2e-5,
    occupancy_s=2e-6,
    per_doubling_s=BASE_DECODE.per_doubling_s,
    per_token_s=BASE_DECODE.per_token_s,
)


HEADS = {"heads": 32, "kv_heads": 8, "head_dim": 128}


def gemm_cases() -> list[Case]:
    shapes = [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336)]
    return [
        make_case("gemm", "bf16", m=m, n=n, k=k)
        for m in (1, 8, 64, 256, 512, 1024, 2048, 8192)
        for n, k in shapes
    ]


def decode_cases() -> list[Case]:
    return [
        make_case("decode_attention", "bf16", variant="paged", batch=b, context=c, **HEADS)
        for b in (1, 4, 16, 64, 128)
        for c in (512, 2048, 8192, 16384)
    ]


def measured_case(case: Case, seconds: float, how: How = "graph", **values: Any) -> MeasuredCase:
    """A case whose samples all took `seconds`; `values` are further fields of it."""
    return MeasuredCase(case=case, status="ok", timing=summarise_samples([seconds] * 3, how), **values)


def write_log(path: Path, cases: Iterable[MeasuredCase], **header: Any) -> Path:
    """A measurement file with these cases; `header` in place of an H200's."""
    environment = {"device": "NVIDIA H200", "torch": "2.13.0", "kind": "cuda"}
    log = MeasurementLog(path, {"environment": environment, "profile": H200.name, **header})
    for case in cases:
        log.add(case)
    return path


def timed(case: Case, constants: Any, *, noise: float = 0.0, rng: Any = None) -> MeasuredCase:
    function = formula(case, H200)
    assert function is not None
    seconds = function(constants) * (math.exp(noise * rng.normal()) if noise else 1.0)
    return measured_case(case, seconds, flops=case.get("m", 1) * 1.0, bytes=1.0)


def evidence(noise: float = 0.0, seed: int = 0) -> list[MeasuredCase]:
    rng = np.random.default_rng(seed)
    return [
        *(timed(case, TRUE_GEMM, noise=noise, rng=rng) for case in gemm_cases()),
        *(timed(case, TRUE_DECODE, noise=noise, rng=rng) for case in decode_cases()),
    ]
