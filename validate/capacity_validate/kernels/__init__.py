"""Real kernels, one builder for each operator: inputs, the call to time, and a check against higher precision."""

from __future__ import annotations

from capacity_validate.kernels.prepared import Bench, Prepared, Unsupported, prepare, supported_operators

__all__ = ["Bench", "Prepared", "Unsupported", "prepare", "supported_operators"]
