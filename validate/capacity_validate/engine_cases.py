"""Cases that time the operators of an installed engine, next to the harness's own kernels of the same shapes."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from capacity.hardware import HardwareProfile
from capacity_validate.cases import Case
from capacity_validate.environment import package_version
from capacity_validate.predictions import is_calibration_case

QUANTIZED_EXPERTS = ("fp8", "fp8_block", "w4a16")
"""Experts of vLLM that the harness has not itself; they are timed with the shapes of its experts in 16 bit."""

VLLM_KERNELS = {
    "gemm": ("fp8", "fp8_block", "w4a16", "nvfp4"),
    "prefill_attention": ("bf16", "fp16"),
    "decode_attention": ("bf16", "fp16"),
    "moe": ("bf16", "fp16"),
    "elementwise": ("bf16", "fp16"),
}
"""Kernels of `kernels/vllm_operators.py` by operator. Unquantized matrix multiplications are left out, because vLLM and
the harness call the same library."""


def installed_engine() -> str:
    """Return the installed vLLM as `vllm@0.33` (without zeros at the end of its version); empty without one."""
    version = package_version("vllm")
    if version is None:
        return ""
    from packaging.version import Version

    major, minor, *patch = Version(version).release
    return "vllm@" + ".".join(map(str, (major, minor, *(patch if any(patch) else ()))))


def add_engine_cases(cases: Iterable[Case], engine: str, profile: HardwareProfile) -> Iterator[Case]:
    """Yield all cases; after each that calibrates a kernel of `engine`, yield it as run by this engine."""
    for case in cases:
        yield case
        if (
            engine
            and is_calibration_case(case, profile)
            and case.kernel in VLLM_KERNELS.get(case.operator, ())
        ):
            yield replace(case, variant=engine)
            if case.operator == "moe":
                yield from (replace(case, kernel=kernel, variant=engine) for kernel in QUANTIZED_EXPERTS)
