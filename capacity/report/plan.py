"""What `plan` answers, as tables: the ranking, its service levels, the fronts, and what was turned down and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from capacity.answers.records import Quantity
from capacity.base.latency_metrics import METRICS
from capacity.report.display import shown, text_and_interval
from capacity.report.layout import Part, facts, grid, listed, notes
from capacity.workload.windows import clock_text

if TYPE_CHECKING:
    from capacity.planning.evaluation.slo_evaluation import Evaluation, Level, WindowLevels
    from capacity.planning.fleets.fleet_records import FleetPlan
    from capacity.planning.records import Conditional, Plan, Point, Ranked
    from capacity.planning.space import Objective

CONDITIONAL = "Not recommended unless you accept what it depends on (ask for it by name to plan with it)"
OF_MONEY = {
    "cost": "${:,.2f}/h",
    "gpus": "{:g} GPUs",
    "energy": "{:,.0f} W provisioned",
    "latency": "{:.2f} of the limits",
}


def plan_tables(plan: Plan) -> list[Part]:
    """The answer, how sure it is, what stands in the way, and what was turned down."""
    parts: list[Part] = [header(plan)]
    if not plan.proved:
        rest = "better ones may exist" if plan.ranked else "what they would have done is not known"
        parts.append(f"[yellow]not proved:[/yellow] {plan.proof}; {rest}")
    if plan.ranked:
        parts += [
            _ranked_table(plan.ranked),
            "\n".join(_launch_lines(plan.ranked[0])),
            _levels_table(plan.ranked),
            windows_table(plan.ranked[0].trial.windows),
            _quality_table(plan.ranked),
            _front_table("Fastest per user against most per GPU, of what was simulated", plan.speed_front),
            _front_table("Price against margin, of what was simulated", plan.cost_front),
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


def header(plan: Plan) -> str:
    """The question, in two lines."""
    return (
        f"[bold]{plan.model}[/bold], {plan.workload}: {plan.requests:,} requests, {arrivals_text(plan)}, "
        f"{plan.input_tokens:,.0f} tokens in and {plan.output_tokens:,.0f} out on average\n"
        f"SLO {' and '.join(plan.slos)}, {plan.confidence:.0%} confidence in the step times; least {plan.objective}"
        f"{window_line(plan)}"
    )


def window_line(plan: Plan | FleetPlan) -> str:
    """The time in which the SLO must hold, where it is less than all of the traffic."""
    return "" if plan.busiest_window is None else f"\nSLO window {window_text(plan)}"


def window_text(plan: Plan | FleetPlan) -> str:
    """The length of the window, and when the busiest one is."""
    busiest = plan.busiest_window
    if busiest is None:
        return "all requests together"
    return f"{plan.slo_window}; the busiest: {busiest.text}"


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


def arrivals_text(plan: Plan) -> str:
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


def _ranked_table(ranked: Sequence[Ranked]) -> Part:
    return listed(
        "Deployments that meet the SLO, best first",
        enumerate(ranked, start=1),
        ("deployment", "left", lambda each: f"{each[0]}. {each[1].label}"),
        ("GPUs", "right", lambda each: gpus_text(each[1])),
        ("$/h", "right", lambda each: cost_text(each[1], "usd_per_hour", ",.2f")),
        ("$/month", "right", lambda each: cost_text(each[1], "usd_per_month", ",.0f")),
        ("$/1M out", "right", lambda each: cost_text(each[1], "usd_per_million_output_tokens", ",.3f")),
        ("provisioned J/out", "right", lambda each: shown(each[1].joules_per_output_token, ",.1f")),
        ("busiest level", "right", lambda each: f"{each[1].trial.ratio:.0%} of limit"),
        ("confidence", "right", lambda each: confidence_text(each[1])),
        ("quality loss", "right", lambda each: quality_text(each[1])),
    )


def _launch_lines(best: Ranked) -> list[str]:
    from rich.markup import escape

    lines = list[str]()
    for line in best.launch:
        role = f" ({line.role})" if line.role != "both" else ""
        lines += [*(f"# {note}" for note in line.notes), f"the first is launched by{role}: {line.command}"]
    return [escape(line) for line in lines]


def cost_text(answer: Ranked, name: str, form: str) -> str:
    """A figure of the bill; "-" without a price."""
    return "-" if answer.cost is None else format(getattr(answer.cost, name), form)


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


def _levels_table(ranked: Sequence[Ranked]) -> Part:
    slos = [level.slo for level in ranked[0].trial.levels]
    heads = [f"{slo}{when}" for slo in slos for when in (", as predicted", ", at confidence")]
    table = grid(
        "Service levels (90 % interval of sampling)",
        ("", "left"),
        *((head, "right") for head in (*heads, "tok/s/user")),
    )
    for number, answer in enumerate(ranked, start=1):
        cells = []
        for place in range(len(slos)):
            cells += [level_text(_level(answer.predicted, place)), level_text(_level(answer.trial, place))]
        table.add_row(f"{number}.", *cells, shown(answer.trial.tokens_per_s_per_user, ",.1f"))
    return table


def _level(trial: Evaluation | None, place: int) -> Level | None:
    return None if trial is None else trial.levels[place]


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
    if not plan.misses:
        return title
    return listed(
        title,
        plan.misses,
        ("part", "left", lambda miss: miss.slo),
        ("limit", "right", lambda miss: miss.limit),
        ("best found", "left", lambda miss: miss.best),
        (
            "times the limit",
            "right",
            lambda miss: "-" if miss.factor == float("inf") else f"{miss.factor:,.2f}",
        ),
        ("on", "left", lambda miss: miss.candidate),
    )


def _front_table(title: str, points: Sequence[Point]) -> Part:
    return listed(
        title,
        points,
        ("", "left", lambda point: point.label + ("" if point.met else " (misses the SLO)")),
        ("GPUs", "right", lambda point: str(point.num_gpus)),
        ("$/h", "right", lambda point: shown(point.usd_per_hour, ",.2f")),
        ("tok/s/user", "right", lambda point: shown(point.tokens_per_s_per_user, ",.1f")),
        ("tok/s/GPU", "right", lambda point: f"{point.tokens_per_s_per_gpu:,.0f}"),
        ("worst level", "right", lambda point: f"{point.worst_ratio:.2f} of limit"),
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
