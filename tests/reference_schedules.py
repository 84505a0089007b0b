"""Schedules that real engines' scheduler code made, and how ours are held against them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMED = Path(__file__).parent / "data" / "oracle"
POLICIES = {"v1": "vllm-v1", "v1async": "vllm-v1-async", "v0": "vllm-v0"}  # of ours, by the file of an engine
RELEASES = ("0.32", "0.30", "0.27", "0.25", "0.24", "0.23", "0.22", "0.18")  # the last of each generation
WITHOUT_LOOKAHEAD = RELEASES[
    2:
]  # in the library these ran without the lookahead slots that scenarios ask for
# an arrival in these is the end of a step, which the reference's floating-point sum puts 14 as earlier
JUST_AFTER_A_STEP = ("ext159", "fuzz159")
# the library ran this one asynchronously with two stages, by the rules of Model Runner V1
WITHOUT_ENGINE = {"v1async": "51_pp2"}
PICOSECOND_S = 1e-12
TIME_TOLERANCE_S = 1e-9  # the reference adds up seconds in binary floating point, we in whole picoseconds


def lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        found = [json.loads(line) for line in file]
    left_out = WITHOUT_ENGINE.get(path.name.split("_")[0].split(".")[0])
    return [line for line in found if left_out is None or scenario_name(line) != left_out]


def scenario_name(line: dict[str, Any]) -> str | None:
    scenario = line.get("scenario")
    return scenario["name"] if isinstance(scenario, dict) else scenario


def release_lines(path: Path, scenarios: dict[str, Any], release: str) -> Iterator[dict[str, Any]]:
    """The reference schedules of one release, in a file that names scenarios and says which are as in vLLM 0.33.

    `scenarios`: lines of 0.33 by the scenario's name. A line of the file may have a whole scenario in place of a name.
    """
    for line in lines(path):
        if line.get("release", release) == release:
            known = scenarios.get(line["scenario"]) if isinstance(line["scenario"], str) else line
            assert known is not None, line["scenario"]
            yield known if line.get("same") else {**line, "scenario": known["scenario"]}


def library_lines(library: Path, engine: str, release: str) -> Iterator[dict[str, Any]]:
    """The reference schedules of a release in the library, with the scenarios that were run."""
    known = {line["scenario"]["name"]: line for line in lines(library / f"{engine}.jsonl.gz")}
    for line in release_lines(library / "releases" / f"{engine}_{release}.jsonl.gz", known, release):
        scenario = line["scenario"]
        if "spec" in scenario and release in WITHOUT_LOOKAHEAD:
            scenario = {**scenario, "spec": {**scenario["spec"], "lookahead": False}}
        if scenario["name"] in JUST_AFTER_A_STEP and line is not known[scenario["name"]]:
            first, *others = scenario["requests"]
            later = [{**r, "arrival": r["arrival"] + PICOSECOND_S} for r in others]
            scenario = {**scenario, "requests": [first, *later]}
        yield {**line, "scenario": scenario}


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
