"""Conditions of a measurement that are the same for all cases: harness, campaign, driver, clocks, libraries, host."""

import hashlib
import importlib.metadata
import os
import platform
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from capacity_validate.campaigns import Campaign
from capacity_validate.devices import DeviceFacts, cpu_name

_VARIABLES = (
    "CUDA_",
    "CUBLAS",
    "CUDNN",
    "NCCL_",
    "NVIDIA_TF32",
    "PYTORCH_",
    "TORCH_",
    "TRITON_",
    "OMP_",
    "MKL_",
)
# not a condition, because the UUID identifies the card
_DEVICE_ORDER_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
# paths of this machine contain user names and do not affect times
_PATH_WORDS = ("HOME", "PATH", "DIR", "CACHE", "ROOT")
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_SHORT = 12  # hexadecimal digits kept of a digest


def measurement_conditions(
    torch: Any, facts: DeviceFacts, campaign: Campaign, *, seed: int
) -> dict[str, Any]:
    """Return the conditions that must be equal for two runs to write to one measurement file."""
    return {
        "harness": harness_version(),
        "campaign": f"{campaign.name} {_digest(campaign.model_dump_json())}",
        "seed": seed,
        "threads": facts.compute_units if facts.kind == "cpu" else None,
        "driver": facts.driver_version,
        "highest SM clock, Hz": facts.sm_clock_max_hz,
        "highest memory clock, Hz": facts.memory_clock_max_hz,
        "power limit, W": facts.power_limit_watts,
        "card": None if facts.uuid is None else _digest(facts.uuid),
        "libraries": library_versions(torch, facts.kind),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_VARIABLES)
            and name not in _DEVICE_ORDER_VARIABLES
            and not any(part in name for part in _PATH_WORDS)
        },
    }


def host_facts(facts: DeviceFacts) -> dict[str, Any]:
    """Return facts of the host, because its CPU limits the launch rate. The host name is not included."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "governor": _query(lambda: GOVERNOR.read_text(encoding="utf-8").strip()),
        "system": f"{platform.system()} {platform.release()}",
        "container": Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
        "windows subsystem": "microsoft" in platform.release().lower(),
        "devices": facts.devices_in_node,
    }


@lru_cache(maxsize=1)
def harness_version() -> str:
    """Return the package's version and a digest of the harness's source; a changed kernel changes measurements."""
    version = package_version("llm-capacity") or "checkout"
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    return f"{version} {_digest(''.join(path.read_text(encoding='utf-8') for path in sources))}"


def library_versions(torch: Any, kind: str) -> dict[str, str | None]:
    if kind == "cpu":
        return {}
    return {
        "CUDA": str(torch.version.cuda),
        "cuDNN": _query(lambda: torch.backends.cudnn.version()),
        "NCCL": _query(lambda: ".".join(map(str, torch.cuda.nccl.version()))),
        "cuBLAS": package_version("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"),
        "triton": package_version("triton", "pytorch-triton"),
        "vLLM": package_version("vllm"),
    }


def _query(question: Any) -> str | None:
    try:
        answer = question()
    except (RuntimeError, AttributeError, ImportError, OSError):
        return None
    return None if answer is None else str(answer)


def package_version(*names: str) -> str | None:
    found = (_query(partial(importlib.metadata.version, name)) for name in names)
    return next(filter(None, found), None)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_SHORT]
