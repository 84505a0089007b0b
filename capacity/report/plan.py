"""What `plan` answers, as tables: the ranking, its service levels, the fronts, and what was turned down and why."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from capacity.answers.records import Quantity
from capacity.base.latency_metrics import METRICS
from capacity.report.display import text_and_interval
from capacity.report.layout import Part, facts, grid, listed, notes
from capacity.report.views import units
from capacity.report.views.layout import draw_table
from capacity.report.views.units import Unit, value_at
from capacity.report.views.view import Column, Table
from capacity.workload.windows import clock_text

if TYPE_CHECKING:
    from capacity.planning.evaluation.slo_evaluation import Level, WindowLevels
    from capacity.planning.fleets.fleet_records import FleetPlan
    from capacity.planning.records import Conditional, LaunchLine, Plan, Ranked
    from capacity.planning.space import Objective

CONDITIONAL = "Not recommended unless you accept what it depends on (ask for it by name to plan with it)"
COMMAND_WIDTH = 96
OF_MONEY = {
    "cost": "${:,.2f}/h",
    "gpus": "{:g} GPUs",
    "energy": "{:,.0f} W provisioned",
    "latency": "{:.2f} of the limits",
}


def plan_tables(plan: Plan) -> list[Part]:
    """The answer, how sure it is, what stands in the way, and what was turned down."""
    parts = header(plan)
    fronts = {
        "Fastest per user against most per GPU, of what was simulated": plan.speed_front,
        "Price against margin, of what was simulated": plan.cost_front,
    }
    if plan.ranked:
        parts += [
            draw_table(ranked_table(plan)),
            "\n".join(launch_lines(plan.ranked[0])),
            draw_table(levels_table(plan)),
            windows_table(plan.ranked[0].trial.windows),
            _quality_table(plan.ranked),
            *(draw_table(Table(title, points, FRONT)) for title, points in fronts.items()),
        ]
    else:
        parts.append(misses_table(plan))
    return [
        *parts,
        *([f"{CONDITIONAL}:"] if plan.conditional else []),
        *(f"  {text}" for text in conditional_texts(plan)),
        _rejected_table(plan),
        search_text(plan),
        *(f"price of {price}" for price in plan.prices),
        f"not searched: {'; '.join(plan.not_searched)}",
        *notes(plan.warnings),
    ]


def header(plan: Plan) -> list[Part]:
    """The question, in two lines, and what is not proved."""
    question = (
        f"[bold]{plan.model}[/bold], {plan.workload}: {plan.requests:,} requests, {_arrivals_text(plan)}, "
        f"{plan.input_tokens:,.0f} tokens in and {plan.output_tokens:,.0f} out on average\n"
        f"SLO {' and '.join(plan.slos)}, {plan.confidence:.0%} confidence in the step times; least {plan.objective}"
        f"{window_line(plan)}"
    )
    rest = "better ones may exist" if plan.ranked else "what they would have done is not known"
    return [question] if plan.proved else [question, f"[yellow]not proved:[/yellow] {plan.proof}; {rest}"]


def window_line(plan: Plan | FleetPlan) -> str:
    """The time in which the SLO must hold and the busiest such window, where it is less than all of the traffic."""
    busiest = plan.busiest_window
    return "" if busiest is None else f"\nSLO window {plan.slo_window}; the busiest: {busiest.text}"


HOURS_SHOWN = 24  # rows of windows


def window_rows(windows: Sequence[WindowLevels]) -> list[tuple[float, float, tuple[Level, ...], bool]]:
    """By the hour, or by so much that there are `HOURS_SHOWN`: start, requests/s, the worst window's levels, judged."""
    if not windows:
        return []
    first_s, last_s = windows[0].window.start_s, windows[-1].window.end_s
    each_s = max((last_s - first_s) / HOURS_SHOWN, 1.0)
    rows: dict[int, list[WindowLevels]] = {}
    for each in windows:
        rows.setdefault(int((each.window.start_s - first_s) / each_s), []).append(each)
    found = []
    for group in rows.values():
        worst = max(group, key=lambda each: each.ratio)
        seconds = sum(each.window.end_s - each.window.start_s for each in group)
        rate = sum(each.window.requests for each in group) / seconds
        found.append((group[0].window.start_s, rate, worst.levels, any(each.judged for each in group)))
    return found


def windows_table(windows: Sequence[WindowLevels]) -> Part:
    """The service levels over time; nothing where traffic was not judged by window."""
    rows = window_rows(windows)
    if not rows:
        return ""
    slos = [level.slo for level in rows[0][2]]
    table = grid(
        "Service levels over time: the worst window of each row (*: too little work to be judged)",
        ("from", "left"),
        *((head, "right") for head in ("requests/s", *slos, "of limit")),
    )
    for start_s, rate, levels, judged in rows:
        ratio = max((level.ratio for level in levels), default=0.0)
        start = clock_text(start_s) + ("" if judged else " *")
        table.add_row(start, f"{rate:,.2f}", *(level_text(level) for level in levels), f"{ratio:.0%}")
    return table


def _arrivals_text(plan: Plan) -> str:
    """How the requests come."""
    at_most = "" if plan.concurrency is None else f"{plan.concurrency:,} in flight"
    if not math.isinf(plan.requests_per_s):
        return f"{plan.requests_per_s:,.2f} requests/s" + (at_most and f", at most {at_most}")
    return at_most or "all at once"


def search_text(plan: Plan) -> str:
    """How far the search went."""
    counts = plan.counts
    first = "" if plan.first_answer_s is None else f", first answer after {plan.first_answer_s:.1f} s"
    return (
        f"{counts.points:,} deployments ({counts.engines:,} engines): {counts.simulated:,} simulated "
        f"({counts.simulated_fraction:.1%}), {plan.proof}; {plan.elapsed_s:.1f} s{first}"
    )


def ranked_table(plan: Plan) -> Table:
    """Return the deployments that meet the service levels, best first, by their numbers."""
    whole = any(each.billed_gpus > each.num_gpus for each in plan.ranked)
    columns = (
        Column("", _place_in(plan), units.COUNT),
        Column("deployment", "label"),
        Column("GPUs", "num_gpus", units.COUNT),
        *([Column("in whole instances", "billed_gpus", units.COUNT)] if whole else []),
        Column("$/h", "cost.usd_per_hour", Unit(2)),
        Column("$/month", "cost.usd_per_month", units.COUNT),
        Column("$/1M out", "cost.usd_per_million_output_tokens", units.USD_3),
        Column("provisioned J/out", "joules_per_output_token", Unit(1)),
        Column("of the limit", "trial.ratio", units.PERCENT_0),
        Column("confidence", confidence_text, units.TEXT),
        Column("quality loss", quality_text, units.TEXT),
    )
    return Table("Deployments that meet the SLO, best first", plan.ranked, columns)


def _place_in(plan: Plan) -> Callable[[Ranked], int]:
    return lambda answer: plan.ranked.index(answer) + 1


def launch_lines(best: Ranked) -> Iterator[str]:
    """What starts it, copied as it stands; a line breaks where a shell allows it to."""
    from rich.markup import escape

    if not best.launch:
        yield "\nnothing launches this engine: it is a baseline"
        return
    for line in best.launch:
        yield f"\n{started_by(line)}:" if line.replicas > 1 or line.role != "both" else ""
        yield from (escape(f"  # {note}") for note in line.notes)
        yield escape("\n".join(wrapped(line.command)))
        if line.files:
            yield f"  # --output FOLDER writes {' and '.join(line.files)}"
    if best.candidate.prefill is not None:
        yield "  # requests go to a proxy in front of both: --output FOLDER writes its command"


def started_by(line: LaunchLine) -> str:
    """Which replicas a command starts."""
    role = "" if line.role == "both" else f" to {line.role}"
    return f"each of {line.replicas} replicas{role}" if line.replicas > 1 else f"1 replica{role}"


def wrapped(command: str) -> list[str]:
    """A shell command in lines of at most `COMMAND_WIDTH`, where its words allow that; a flag keeps its value."""
    groups: list[str] = []
    for word in shlex.split(command):
        text = shlex.quote(word)
        alone = not groups or word.startswith("-") or not groups[-1].startswith("-") or " " in groups[-1]
        groups = [*groups, text] if alone else [*groups[:-1], f"{groups[-1]} {text}"]
    lines: list[str] = []
    for group in groups:
        if lines and len(lines[-1]) + len(group) + 3 <= COMMAND_WIDTH:
            lines[-1] += f" {group}"
        else:
            lines.append(f"  {group}" if not lines else f"    {group}")
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def gpus_text(answer: Ranked) -> str:
    """GPUs in use, and those of whole instances where they are more."""
    whole = f" of {answer.billed_gpus}" if answer.billed_gpus > answer.num_gpus else ""
    return f"{answer.num_gpus}{whole}"


def confidence_text(answer: Ranked) -> str:
    """The highest confidence at which the SLO held, and whether one replica stood for all."""
    return f"{answer.confidence:.0%}" + ("" if answer.trial.seen == "all" else " (1 replica)")


def quality_text(answer: Ranked) -> str:
    """The published loss: typical, and at worst."""
    quality = answer.quality
    if quality.worst_loss_fraction is None or quality.typical_loss_fraction is None:
        return "unknown"
    if not quality.worst_loss_fraction:
        return "none"
    text = f"{quality.typical_loss_fraction:.1%}, up to {quality.worst_loss_fraction:.1%}"
    return f"{text} (within noise)" if quality.lossless else text


def saved(minimised: Objective, less: float, more: float) -> tuple[str, float]:
    """The difference of two objectives in words, and as a share of the larger one."""
    return OF_MONEY[minimised].format(more - less), 1 - less / more


def conditional_texts(plan: Plan) -> list[str]:
    """The deployments that are not recommended, a line each."""
    best = None if plan.best is None else plan.best.objective
    return [conditional_text(plan.objective, best, each) for each in plan.conditional]


def conditional_text(minimised: Objective, best: float | None, each: Conditional) -> str:
    """One deployment that is not recommended: its conditions, price, saving over `best` and loss of quality."""
    answer = each.answer
    price = OF_MONEY[minimised].format(answer.objective)
    saving = ""
    if best:
        more, share = saved(minimised, answer.objective, best)
        saving = f", saves {more} ({share:.0%})"
    loss = "" if answer.quality.lossless else f"; loss of quality: {quality_text(answer)}"
    return f"with {' and '.join(each.conditions)}: {price}{saving}: {answer.label}{loss}"


def level_name(level: Level) -> str:
    """`p95 TTFT` of ttft:p95:1s."""
    metric, *percentile, _ = level.slo.split(":")
    return " ".join((*percentile, METRICS[metric].label))


def level_text(level: Level | None) -> str:
    """A level's value, with its interval where it has one."""
    if level is None:
        return "-"
    if level.value_s is None:
        return f"{level.good_fraction:.2%}"
    spread = Quantity(value=level.value_s, low=level.low_s, high=level.high_s)
    value, interval = text_and_interval(spread, 1e3, 0)
    return f"{value} ms ({interval})" if interval else f"{value} ms"


def level_value(level: Level) -> Quantity | str:
    """A level's seconds with their interval, or the share of good requests in words."""
    if level.value_s is None:
        return level_text(level)
    return Quantity(value=level.value_s, low=level.low_s, high=level.high_s)


def share_of_limit(level: Level) -> Quantity:
    """How much of its limit a level takes, with the interval of sampling where there is one."""
    if not level.value_s or level.low_s is None or level.high_s is None:
        return Quantity(value=level.ratio)
    return Quantity(value=level.ratio, low=level.low_s / level.limit_s, high=level.high_s / level.limit_s)


def levels_table(plan: Plan) -> Table:
    """Return each service level of the ranking, as predicted and at the confidence."""
    columns = [Column("", _place_in(plan), units.COUNT)]
    for place, level in enumerate(plan.ranked[0].trial.levels):
        columns += [
            Column(f"{level.slo}, as predicted", _level_at("predicted", place), units.TEXT),
            Column(f"{level.slo}, at confidence", _level_at("trial", place), units.TEXT),
        ]
    columns.append(Column("tok/s/user", "trial.tokens_per_s_per_user", Unit(1)))
    return Table("Service levels (90 % interval of sampling)", plan.ranked, columns)


def _level_at(run: str, place: int) -> Callable[[Ranked], str]:
    return lambda answer: level_text(value_at(answer, f"{run}.levels.{place}"))


def _quality_table(ranked: Sequence[Ranked]) -> Part:
    sources = quality_sources(ranked)
    if not sources:
        return ""
    rows = [(what, "", source) for what, source in sources.items()]
    return facts("Published quality of the formats", rows)


def quality_sources(ranked: Sequence[Ranked]) -> dict[str, str]:
    """What is published of the formats that may lose anything, and where."""
    return {a.quality.what: a.quality.source for a in ranked if a.quality.worst_loss_fraction != 0}


def misses_table(plan: Plan) -> Part:
    """The parts of the SLO that nothing meets."""
    title = (
        f"[red]Nothing {'in the space' if plan.proved else 'that was simulated'} meets the SLO"
        f"{' without what is listed below' if plan.conditional else ''}[/red]"
    )
    return draw_table(Table(title, plan.misses, MISSES)) if plan.misses else title


MISSES = (
    Column("part", "slo"),
    Column("limit", "limit", units.TEXT),
    Column("best found", "best"),
    Column("times the limit", lambda miss: None if math.isinf(miss.factor) else miss.factor, Unit(2)),
    Column("on", "candidate"),
)


FRONT = (
    Column("", lambda point: point.label + ("" if point.met else " (misses the SLO)")),
    Column("GPUs", "num_gpus", units.COUNT),
    Column("$/h", "usd_per_hour", Unit(2)),
    Column("tok/s/user", "tokens_per_s_per_user", Unit(1)),
    Column("tok/s/GPU", "tokens_per_s_per_gpu", units.COUNT),
    Column("worst level", "worst_ratio", Unit(2, after=" of limit")),
)


def turned_down(plan: Plan) -> list[tuple[int, str, str]]:
    """How many engines for which reason, most first, and one of them."""
    from capacity.planning.records import KINDS

    rows = []
    for kind, count in sorted(plan.reasons.items(), key=lambda item: -item[1]):
        example = next(rejection for rejection in plan.rejected if rejection.kind == kind)
        rows.append((count, KINDS[kind], f"{example.engine}: {example.reason}"))
    return rows


def _rejected_table(plan: Plan) -> Part:
    return listed(
        "Turned down",
        turned_down(plan),
        ("engines", "right", lambda row: f"{row[0]:,}"),
        ("why", "left", lambda row: row[1]),
        ("for one", "left", lambda row: row[2]),
    )


def rejected_table(plan: Plan) -> Table:
    """Return every candidate that is no answer, with its reason."""
    from capacity.planning.records import KINDS

    columns = [
        Column("GPU", "pool.gpu"),
        Column("TP", "pool.tensor_parallel_size", units.COUNT),
        Column("weights", lambda each: each.pool.quantization or "as published"),
        Column("KV cache", "pool.kv_cache_dtype"),
        Column("replicas", "replicas", units.COUNT),
        Column("kind", lambda each: KINDS[each.kind]),
        Column("reason", "reason"),
    ]
    return Table("Turned down, and why", plan.rejected, columns)
