"""The view of `compare_deployments`: the verdict, a table with sides as columns, and four charts of all sides."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from capacity.base.latency_metrics import METRICS
from capacity.report.views import units
from capacity.report.views.view import Block, Column, Curves, Stack, Table, View
from capacity.workload import parse_slos

if TYPE_CHECKING:
    from capacity.planning.evaluation.slo_evaluation import Level
    from capacity.planning.variations.deployment_comparison import ComparedSide, DeploymentComparison

LOADS = 80  # points of the chart of cost against load
MAX_LOAD = 2.0  # times the load of the question
LIMITS_SHOWN = 2.0  # times the limit, at the top of the charts of latency
MISSING = "-"


class _Row(NamedTuple):
    label: str
    texts: tuple[str, ...]


def comparison_view(answer: DeploymentComparison) -> View:
    """Return the view of deployments compared at equal served load."""
    return View(answer.verdict, _blocks(answer))


def _blocks(answer: DeploymentComparison) -> Iterator[Block]:
    yield f"{answer.workload}, within {' and '.join(answer.slos)} at {answer.confidence:.0%} confidence"
    for each in answer.differences:
        yield (
            f"{each.second} is cheaper than {each.first} in {each.cheaper_probability:.0%} of paired draws of the "
            "step-time error, which sides on the same GPU and engine share"
        )
    names = [side.name for side in answer.sides]
    columns = [
        Column("", "label"),
        *(Column(name, partial(_cell, at), units.TEXT) for at, name in enumerate(names)),
    ]
    yield Table("Sides at equal served load", _rows(answer), columns, name="sides_at_equal_load")
    yield _frontier(answer)
    yield from _levels(answer)
    if any(side.usd_per_hour_per_replica for side in answer.sides):
        yield _bills(answer)
    yield _memory(answer)


def _cell(at: int, row: _Row) -> str:
    return row.texts[at]


def _rows(answer: DeploymentComparison) -> list[_Row]:
    sides = answer.sides
    changes = {each.second: each for each in answer.differences}
    below = [changes[side.name].break_even_below_per_s if side.name in changes else None for side in sides]
    above = [changes[side.name].break_even_above_per_s if side.name in changes else None for side in sides]
    return [
        _Row("deployment", tuple(side.deployment for side in sides)),
        _Row(
            "requests/s within the SLO, one replica", tuple(f"{side.capacity_per_s:,.3g}" for side in sides)
        ),
        _Row("replicas", tuple(_text(side.replicas, "{:,}") for side in sides)),
        _Row(
            "GPUs",
            tuple(_text(side.replicas and side.replicas * side.gpus_per_replica, "{:,}") for side in sides),
        ),
        _Row("$ an hour", tuple(_text(side.usd_per_hour, "${:,.2f}") for side in sides)),
        _Row("$ a month", tuple(_text(side.usd_per_month, "${:,.0f}") for side in sides)),
        _Row("utilization", tuple(_text(side.utilization, "{:.0%}") for side in sides)),
        _Row("break-even below, requests/s", tuple(_text(each, "{:,.3g}") for each in below)),
        _Row("break-even above, requests/s", tuple(_text(each, "{:,.3g}") for each in above)),
    ]


def _text(value: float | None, form: str) -> str:
    return MISSING if value is None else form.format(value)


def _series(side: ComparedSide) -> str:
    return f"{side.name}: {side.deployment}"


def _frontier(answer: DeploymentComparison) -> Curves:
    return Curves(
        name="sides_frontier",
        title="Throughput per GPU against speed per user",
        alt="Each side at rising request rates of one replica, with predicted step times.",
        data={
            _series(side): {
                round(point.tokens_per_s_per_user, 2): point.output_tokens_per_s / side.gpus_per_replica
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
            alt="Each side at rising request rates of one replica; the line is the limit.",
            data={
                _series(side): {
                    round(point.request_rate_per_s, 3): 1e3 * value
                    for point in side.points
                    if (value := _latency_s(point.levels[index])) and math.isfinite(value)
                }
                for side in answer.sides
            },
            labels="requests/s offered to one replica",
            axis=f"{METRICS[slo.metric].label}, ms",
            reference=(slo.limit_s * 1e3, "limit"),
            linear=True,
            top=LIMITS_SHOWN * slo.limit_s * 1e3,
        )


def _latency_s(level: Level) -> float | None:
    """Return the latency at the percentile of the SLO; for a limit on each request, that of the slowest counted."""
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
                round(load, 3): math.ceil(load / side.capacity_per_s) * side.usd_per_hour_per_replica
                for load in loads
            }
            for side in answer.sides
            if side.usd_per_hour_per_replica and side.capacity_per_s
        },
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
        data={
            name.replace("_", " "): {side.name: side.memory_bytes.get(name, 0) for side in answer.sides}
            for name in parts
        },
        unit=units.GIB,
        labels="side",
        axis="{memory} on one GPU",
    )
