"""The view of `compare_deployments`: the verdict, a table with sides as columns, and charts of all sides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from capacity.base.latency_metrics import METRICS
from capacity.report.plan import level_text_path
from capacity.report.views import units
from capacity.report.views.rising_load import day_blocks
from capacity.report.views.units import Path, Unit
from capacity.report.views.view import Block, Curves, Stack, View, side_by_side_table
from capacity.workload import Slo, parse_slos

if TYPE_CHECKING:
    from capacity.planning.evaluation.slo_evaluation import Level
    from capacity.planning.variations.compared_side import ComparedSide
    from capacity.planning.variations.deployment_comparison import DeploymentComparison

LOADS = 80  # points of the chart of cost against load
MAX_LOAD = 2.0  # times the load of the question
LIMITS_SHOWN = 2.0  # times the limit, at the top of the charts of latency

THREE_DIGITS = Unit(significant=3)
USD_A_MONTH = units.dollars(0)
KILOWATTS, JOULES = Unit(2, 1e-3), Unit(2)


def comparison_view(answer: DeploymentComparison) -> View:
    """Return the view of deployments compared at equal served load."""
    return View(answer.verdict, _blocks(answer))


def _blocks(answer: DeploymentComparison) -> Iterator[Block]:
    yield f"Workload: {answer.workload}, within {' and '.join(answer.slos)} at {answer.confidence:.0%} confidence"
    if answer.differences:
        yield "Bills change by whole replicas, so their intervals are wide."
    full = " at full load" if answer.concurrency is None else ""
    for each in answer.differences:
        yield (
            f"In random draws of the step-time errors, the bill of {each.second} is lower than that of {each.first} in "
            f"{each.cheaper_probability:.0%}, and the same in {each.equal_probability:.0%}; per request{full}, "
            f"{each.text(each.per_request)}"
        )
    changes = {each.second: each for each in answer.differences}
    sides = {side.name: {"side": side, "change": changes.get(side.name)} for side in answer.sides}
    yield side_by_side_table(
        "Sides at equal load", _rows(answer), sides, units.WORDS, name="sides_at_equal_load"
    )
    yield _frontier(answer)
    yield from _levels(answer)
    yield _bills(answer)
    days = {f"replicas of {side.name}": side.day for side in answer.sides if side.day is not None}
    yield from day_blocks(days) if days else ()
    yield _memory(answer)


def _rows(answer: DeploymentComparison) -> Iterator[tuple[str, Path, Unit]]:
    """Yield the rows of the table: heading, path in a side and its difference, and unit."""
    unit = answer.load_unit
    at_full_load = " at full load" if answer.concurrency is None else ""
    yield "deployment", "side.deployment", units.TEXT
    yield "not compared", "side.reason", units.TEXT
    yield "replicas", "side.needed.replicas", units.COUNT
    yield f"highest {unit} of these replicas within the SLO", "side.carried_load", THREE_DIGITS
    if answer.concurrency is not None:
        yield "requests/s served", "side.served_per_s", THREE_DIGITS
    for index, slo in enumerate(answer.slos):
        yield (
            f"{slo} at {answer.confidence:.0%} confidence",
            level_text_path(f"side.levels.{index}"),
            units.TEXT,
        )
    yield "worst SLO window", "side.window.text", units.TEXT
    yield "GPUs", "side.needed.num_gpus", units.COUNT
    yield "$ an hour", "side.needed.usd_per_hour", units.dollars(2)
    yield "$ a month", "side.needed.usd_per_month", USD_A_MONTH
    yield "$ a month with replicas by the hour", "side.day.autoscaled_usd_per_month", USD_A_MONTH
    yield f"$ per 1,000 requests{at_full_load}", _usd_per_1000, units.usd(significant=3)
    yield "utilization", "side.utilization", units.PERCENT_0
    yield "drawn kW, GPUs only", "side.drawn.gpu_watts", KILOWATTS
    yield "drawn kW, whole facility", "side.drawn.facility_watts", KILOWATTS
    yield "drawn J per output token, GPUs only", "side.drawn.joules_per_output_token", JOULES
    yield "drawn J per output token, whole facility", "side.drawn.facility_joules_per_output_token", JOULES
    yield f"break-even below, {unit}", "change.break_even_below", THREE_DIGITS
    yield f"break-even above, {unit}", "change.break_even_above", THREE_DIGITS


def _usd_per_1000(record: Mapping[str, Any]) -> float | None:
    side: ComparedSide = record["side"]
    if not (side.needed and side.price and side.costed_per_s):
        return None
    return 1000 * float(side.usd_per_request_at(side.costed_per_s))


def _series(side: ComparedSide) -> str:
    return f"{side.name}: {side.deployment}"


def _frontier(answer: DeploymentComparison) -> Curves:
    return Curves(
        name="sides_frontier",
        title="Throughput per GPU against speed per user",
        alt="Each side at rising request rates, with predicted step times.",
        data={
            _series(side): {
                round(point.tokens_per_s_per_user, 2): point.output_tokens_per_s_per_gpu
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
            title=f"{_slo_words(slo)} against load",
            alt="Each side at rising request rates; the line is the limit.",
            data={
                _series(side): {
                    round(point.load_per_replica, 3): 1e3 * value
                    for point in side.points
                    if (value := _latency_s(point.levels[index])) and math.isfinite(value)
                }
                for side in answer.sides
            },
            labels=f"{answer.load_unit} of each replica",
            axis=f"{METRICS[slo.metric].label}, ms",
            reference=(slo.limit_s * 1e3, "limit"),
            linear=True,
            top=LIMITS_SHOWN * slo.limit_s * 1e3,
        )


def _slo_words(slo: Slo) -> str:
    """Return the percentile and the metric of an SLO: `p95 TTFT`."""
    return f"{'slowest' if slo.percentile is None else f'p{slo.percentile:g}'} {METRICS[slo.metric].label}"


def _latency_s(level: Level) -> float | None:
    """Return the latency in s that the SLO limits: at its percentile, or of the slowest request that has to meet it."""
    return level.ratio * level.limit_s if level.value_s is None else level.value_s


def _bills(answer: DeploymentComparison) -> Curves:
    loads = [answer.load * MAX_LOAD * (step + 1) / LOADS for step in range(LOADS)]
    marks = {"this load": answer.load}
    for each in answer.differences:
        ends = (each.break_even_below, each.break_even_above)
        found = next((end for end in ends if end is not None and end <= loads[-1]), None)
        if found is not None:
            marks[f"break-even {each.first}, {each.second}"] = found
    return Curves(
        name="sides_cost",
        title="Cost against load",
        alt="Bill of the replicas that serve each load within the SLO.",
        data={
            _series(side): {
                round(load, 3): float(side.usd_per_hour_at(load, side.load_per_replica)) for load in loads
            }
            for side in answer.sides
            if side.needed and side.price
        },
        unit=units.USD_2,
        labels=answer.load_unit,
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
        data={
            name.replace("_", " ").replace("kv", "KV"): {
                side.name: side.memory_bytes.get(name, 0) for side in answer.sides
            }
            for name in parts
        },
        unit=units.GIB,
        labels="side",
        axis="{memory} on one GPU",
    )
