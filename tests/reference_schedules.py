"""Schedules that real engines' scheduler code made, and how ours are held against them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

NAMED = Path(__file__).parent / "data" / "oracle"
POLICIES = {"v1": "vllm-v1", "v1async": "vllm-v1-async", "v0": "vllm-v0"}  # of ours, by the file of an engine
TIME_TOLERANCE_S = 1e-9  # the reference adds up seconds in binary floating point, we in whole picoseconds


def lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def differs(ours: dict[str, Any], reference: dict[str, Any]) -> str | None:
    """The first difference, or None."""
    for field in ("status", "rejected"):
        if ours[field] != reference[field]:
            return f"{field}: {ours[field]} for {reference[field]}"
    for index, (got, want) in enumerate(zip(ours["steps"], reference["steps"])):
        if abs(got[0] - want[0]) > TIME_TOLERANCE_S or abs(got[1] - want[1]) > TIME_TOLERANCE_S:
            return f"step {index}: time {got[:2]} for {want[:2]}"
        if got[2:] != want[2:]:
            return f"step {index}: {got[2:]} for {want[2:]}"
    if len(ours["steps"]) != len(reference["steps"]):
        return f"{len(ours['steps'])} steps for {len(reference['steps'])}"
    return None
