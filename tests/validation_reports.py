"""A validation report with next to nothing in it."""

from __future__ import annotations

from typing import Any

from capacity_validate.report_data import ValidationReport


def bare_report(**values: Any) -> ValidationReport:
    """Of a GPU whose steps were predicted well, unless told otherwise."""
    facts = {"driver_version": "580.95", "cuda_version": "13.0", "memory_total_bytes": 2**37}
    fields: dict[str, Any] = {
        "environment": {"device": "NVIDIA H200", "kind": "cuda", "date": "2026-11-22", "torch": "2.11", "facts": facts},
        "campaign": "quick", "profile": "h200-sxm-141gb", "roofs": {}, "seconds": 1.0, "cases": (), "not_timed": (),
        "left_out": (), "classes": (), "constants": (), "refused": (), "bands": {}, "host": None, "findings": (),
        "serving": (), "speculation": (), "memory": {}, "extrapolation": None, "tolerance_ttft": 0.25,
        "tolerance_tpot": 0.15, "ttft_error": 0.03, "tpot_error": 0.02, "interrupted": False, "broken": (),
        "remarks": (),
    }  # fmt: skip
    return ValidationReport(**{**fields, **values})
