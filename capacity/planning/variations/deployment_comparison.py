"""Compare two to four deployments at equal served load within the SLO: replicas, bill and break-even load.

The load is a request rate or, for a closed loop, a number of requests in flight. The replicas are those of
`replicas_needed`, as in `plan` and `cost`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from capacity.answers.engine_setup import requests_of
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.money import usd_text
from capacity.base.record import AnswerRecord
from capacity.deployment import DeploymentFile, Traffic
from capacity.deployment.use_cases import service_levels
from capacity.planning.variations.compared_side import CONFIDENCE, ComparedSide, size_side
from capacity.planning.variations.cost_difference import CostDifference, cost_difference
from capacity.planning.variations.diff import DeploymentLike, read_single_pool
from capacity.workload import Workload

LETTERS = "ABCD"
START_SHARE = 0.05  # of the requests of a closed loop, from which a note names the start


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentComparison(AnswerRecord):
    """Deployments at equal load; `differences` compare each with the first deployment that has a bill.

    The load is `requests_per_s` or, for a closed loop, `concurrency` requests in flight.
    """

    SCHEMA: ClassVar[str] = "capacity/deployment-comparison/v1"
    ROWS: ClassVar[str] = "sides"

    requests_per_s: float | None
    concurrency: int | None
    workload: str
    slos: tuple[str, ...]
    confidence: float
    sides: tuple[ComparedSide, ...]
    differences: tuple[CostDifference, ...]
    verdict: str
    warnings: tuple[str, ...]

    @property
    def load(self) -> float:
        """Return the common load in `load_unit`."""
        found = self.requests_per_s if self.concurrency is None else self.concurrency
        assert found is not None
        return found

    @property
    def load_unit(self) -> str:
        return "requests/s" if self.concurrency is None else "requests in flight"


@validate_arguments
def compare_deployments(
    deployments: Sequence[DeploymentLike],
    *,
    slo: Sequence[str] | str = (),
    progress: Callable[[int, int], None] | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
) -> DeploymentComparison:
    """Compare 2 to 4 deployments at equal load within the SLO: replicas, bill, utilization, energy and break-even.

    A deployment is a file, a DeploymentFile or its fields; its own number of replicas is not used. All must have the
    same traffic, with a request rate or a concurrency; those without traffic take that of the first. Traffic of a day
    adds the replicas by hour. The service of each deployment (router, limits, failures) applies. `slo` replaces the SLO
    of the use case. A deployment that does not fit or cannot run has a reason instead of results. Raises InvalidInput
    for different loads, sessions, users who wait for answers, or a missing SLO, and the error of the first deployment
    if none can run.
    """
    if not 2 <= len(deployments) <= len(LETTERS):
        raise InvalidInput(f"a comparison takes 2 to {len(LETTERS)} deployments, not {len(deployments)}")
    read = [read_single_pool(each) for each in deployments]
    traffic = _common_traffic(read)
    levels = service_levels(slo, traffic)
    if not levels:
        raise InvalidInput("a comparison at equal load needs an SLO: add --slo, such as ttft:p95:500ms")
    workload = requests_of(traffic, None)
    loop = None if traffic.trace or traffic.request_rate else workload.concurrency
    if loop is None and (workload.is_closed_loop or not math.isfinite(workload.offered_per_s)):
        raise InvalidInput(
            "a comparison at equal load needs either a request rate or a concurrency: set request_rate, users or "
            "concurrency, without sessions"
        )
    load = workload.offered_per_s if loop is None else loop
    sides = []
    for letter, each in zip(LETTERS, read, strict=False):
        sides.append(size_side(letter, each, traffic, levels, load, profiles=profiles, download=download))
        if progress is not None:
            progress(len(sides), len(read))
    if all(side.error for side in sides):
        raise next(side.error for side in sides if side.error)
    priced = [side for side in sides if side.found.needed and side.found.needed.usd_per_hour]
    differences = tuple(cost_difference(priced[0], each, load) for each in priced[1:])
    found = tuple(side.found for side in sides)
    at = f"{load:,.4g} requests/s" if loop is None else f"{loop:,} requests in flight"
    return DeploymentComparison(
        requests_per_s=load if loop is None else None,
        concurrency=loop,
        workload=workload.name,
        slos=tuple(levels),
        confidence=CONFIDENCE,
        sides=found,
        differences=differences,
        verdict=_verdict(found, differences, at),
        warnings=tuple(
            dict.fromkeys((*_start_note(workload), *(note for side in sides for note in side.warnings)))
        ),
    )


def _start_note(workload: Workload) -> tuple[str, ...]:
    """Return a note if the requests with which a closed loop starts are many of its requests."""
    share = (workload.concurrency or 0) / len(workload)
    if share < START_SHARE:
        return ()
    return (
        f"The closed loop starts with {workload.concurrency:,} requests at once, {share:.0%} of its requests, and TTFT "
        "percentiles include them. Increase num_prompts to measure the steady state.",
    )


def _common_traffic(deployments: Sequence[DeploymentFile]) -> Traffic:
    """Return the traffic of all deployments. Raises InvalidInput if two of them have different traffic."""
    given = {letter: each.traffic for letter, each in zip(LETTERS, deployments, strict=False)}
    known = {letter: traffic for letter, traffic in given.items() if traffic != Traffic()}
    if not known:
        raise InvalidInput(
            "no deployment has traffic: add input_len, output_len and request_rate to the first"
        )
    first = next(iter(known.values()))
    unlike = [letter for letter, traffic in known.items() if traffic != first]
    if unlike:
        raise InvalidInput(
            f"{' and '.join(unlike)}: different traffic than {next(iter(known))}, but a comparison needs equal loads; "
            "give all deployments the same traffic"
        )
    return first


def _verdict(sides: Sequence[ComparedSide], differences: Sequence[CostDifference], load: str) -> str:
    """Return one sentence: replicas and bill of each deployment, and which one is cheaper by how much."""
    text = f"At {load} within the SLO, {', '.join(map(_need, sides))}"
    changes = [each.text(each.bill) for each in differences]
    return "; ".join([text, *changes]) + "."


def _need(side: ComparedSide) -> str:
    if side.needed is None:
        return f"{side.name} is not compared: {str(side.reason).partition('. ')[0]}"
    count = f"{side.needed.replicas:,} replica{'s' * (side.needed.replicas != 1)}"
    hourly = side.needed.usd_per_hour
    return f"{side.name} needs {count}" + ("" if hourly is None else f" at {usd_text(hourly)}/h")
