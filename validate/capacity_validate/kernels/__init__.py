"""Real kernels, one builder for each operator: inputs, the call to time, and a check against higher precision."""

from __future__ import annotations

from capacity_validate.kernels.prepared import (
    KernelBench,
    Prepared,
    Unsupported,
    prepare,
    supported_operators,
)

__all__ = ["KernelBench", "Prepared", "Unsupported", "prepare", "supported_operators"]
