"""The view of `compare_deployments`: the verdict, a table with sides as columns, and four charts of all sides."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from capacity.base.latency_metrics import METRICS
from capacity.report.views import units
from capacity.report.views.units import Unit
from capacity.report.views.view import Block, Curves, Stack, View, side_by_side_table
from capacity.workload import parse_slos

if TYPE_CHECKING:
    from capacity.planning.evaluation.slo_evaluation import Level
    from capacity.planning.variations.deployment_comparison import ComparedSide, DeploymentComparison

LOADS = 80  # points of the chart of cost against load
MAX_LOAD = 2.0  # times the load of the question
LIMITS_SHOWN = 2.0  # times the limit, at the top of the charts of latency


THREE_DIGITS = Unit(significant=3)
ROWS = (  # heading, path in a side and its difference, unit
    ("deployment", "side.deployment", units.TEXT),
    ("not compared", "side.reason", units.TEXT),
    ("replicas", "side.needed.replicas", units.COUNT),
    ("highest requests/s of these replicas within the SLO", "side.carried_per_s", THREE_DIGITS),
    ("GPUs", "side.needed.num_gpus", units.COUNT),
    ("$ an hour", "side.needed.usd_per_hour", units.dollars(2)),
    ("$ a month", "side.needed.usd_per_month", units.dollars(0)),
    ("$ per 1,000 requests at full load", "full", units.usd(significant=3)),
    ("utilization", "side.utilization", units.PERCENT_0),
    ("break-even below, requests/s", "change.break_even_below_per_s", THREE_DIGITS),
    ("break-even above, requests/s", "change.break_even_above_per_s", THREE_DIGITS),
)


def comparison_view(answer: DeploymentComparison) -> View:
    """Return the view of deployments compared at equal served load."""
    return View(answer.verdict, _blocks(answer))


def _blocks(answer: DeploymentComparison) -> Iterator[Block]:
    yield f"{answer.workload}, within {' and '.join(answer.slos)} at {answer.confidence:.0%} confidence"
    if answer.differences:
        yield "Bills change by whole replicas, so their intervals are wide."
    for each in answer.differences:
        yield (
            f"in random draws of the step-time errors, the bill of {each.second} is lower than that of {each.first} in "
            f"{each.cheaper_probability:.0%}, and the same in {each.equal_probability:.0%}; per request at full load, "
            f"{each.text(each.per_request)}"
        )
    changes = {each.second: each for each in answer.differences}
    records = {
        side.name: {"side": side, "change": changes.get(side.name), "full": _usd_per_1000(side)}
        for side in answer.sides
    }
    yield side_by_side_table("Sides at equal served load", ROWS, records, units.WORDS, "sides_at_equal_load")
    yield _frontier(answer)
    yield from _levels(answer)
    if any(side.needed and side.price for side in answer.sides):
        yield _bills(answer)
    yield _memory(answer)


def _usd_per_1000(side: ComparedSide) -> float | None:
    return 1000 * float(side.usd_per_request_at()) if side.needed and side.price else None


def _series(side: ComparedSide) -> str:
    return f"{side.name}: {side.deployment}"


def _frontier(answer: DeploymentComparison) -> Curves:
    return Curves(
        name="sides_frontier",
        title="Throughput per GPU against speed per user",
        alt="Each side at rising request rates, with predicted step times.",
        data={
            _series(side): {
                round(point.tokens_per_s_per_user, 2): point.output_tokens_per_s
                / (side.simulated_replicas * side.gpus_per_replica)
                for point in side.points
                if point.tokens_per_s_per_user
            }
            for side in answer.sides
        },
        labels="tokens/s per user",
        axis="output tokens/s per GPU",
        linear=True,
    )


def _levels(answer: DeploymentComparison) -> Iterator[Curves]:
    for index, slo in enumerate(parse_slos(answer.slos)):
        yield Curves(
            name=f"sides_level_{index + 1}",
            title=f"{answer.slos[index]} against load",
            alt="Each side at rising request rates; the line is the limit.",
            data={
                _series(side): {
                    round(point.request_rate_per_s / side.simulated_replicas, 3): 1e3 * value
                    for point in side.points
                    if (value := _latency_s(point.levels[index])) and math.isfinite(value)
                }
                for side in answer.sides
            },
            labels="requests/s offered to each replica",
            axis=f"{METRICS[slo.metric].label}, ms",
            reference=(slo.limit_s * 1e3, "limit"),
            linear=True,
            top=LIMITS_SHOWN * slo.limit_s * 1e3,
        )


def _latency_s(level: Level) -> float | None:
    """Return the latency in s that the SLO limits: at its percentile, or of the slowest request that has to meet it."""
    return level.ratio * level.limit_s if level.value_s is None else level.value_s


def _bills(answer: DeploymentComparison) -> Curves:
    loads = [answer.requests_per_s * MAX_LOAD * (step + 1) / LOADS for step in range(LOADS)]
    marks = {"this load": answer.requests_per_s}
    for each in answer.differences:
        ends = (each.break_even_below_per_s, each.break_even_above_per_s)
        found = next((end for end in ends if end is not None and end <= loads[-1]), None)
        if found is not None:
            marks[f"break-even {each.first}, {each.second}"] = found
    return Curves(
        name="sides_cost",
        title="Cost against load",
        alt="Bill of the replicas that serve each load within the SLO.",
        data={
            _series(side): {
                round(load, 3): float(side.usd_per_hour_at(load, side.capacity_per_s)) for load in loads
            }
            for side in answer.sides
            if side.needed and side.price
        },
        unit=units.USD_2,
        labels="requests/s",
        axis="$ an hour",
        linear=True,
        marks=marks,
    )


def _memory(answer: DeploymentComparison) -> Stack:
    parts = dict.fromkeys(name for side in answer.sides for name in side.memory_bytes)
    return Stack(
        name="sides_memory",
        title="Memory of one GPU",
        alt="Bytes of one GPU by use, for each side.",
        data=units.read_series(
            answer.sides, "name", {name.replace("_", " "): f"memory_bytes.{name}" for name in parts}
        ),
        unit=units.GIB,
        labels="side",
        axis="{memory} on one GPU",
    )
