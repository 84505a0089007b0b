"""Tables of `plan`: the ranking, its service levels, the Pareto fronts, and the rejected candidates with reasons."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import NamedTuple

from capacity.answers.records import Quantity
from capacity.base.latency_metrics import METRICS
from capacity.deployment.command_words import wrap_command
from capacity.planning.evaluation.slo_evaluation import FAILED_LATENCY_S, Evaluation, Level, WindowLevels
from capacity.planning.fleets.fleet_records import FleetPlan
from capacity.planning.records import KINDS, Conditional, LaunchLine, Plan, Ranked, Remedy
from capacity.planning.space import Objective
from capacity.report.display import count_noun, money_phrase, phrase, text_and_interval
from capacity.report.replicas import replica_noun
from capacity.report.subject import describe_answer
from capacity.report.views import units
from capacity.report.views.units import Unit, mark_unless, value_at
from capacity.report.views.view import Block, Column, CustomChart, Fact, Facts, Table, list_with_heading
from capacity.workload.windows import clock_text

CONDITIONAL_HEADING = (
    "Cheaper, but only under the conditions shown (name an option explicitly to search with it)"
)
REMEDIES_HEADING = "Changes that suffice"
OBJECTIVE_FORMATS: Mapping[str, Callable[[float], str]] = {
    "cost": partial(money_phrase, "{}/h"),
    "gpus": "{:g} GPUs".format,
    "energy": "{:,.3f} J/output token drawn".format,
    "carbon": "{:,.1f} g CO2/1M output tokens".format,
    "latency": "{:.2f} of the limits".format,
}
DRAWN_JOULES = Column("drawn J/out", "drawn.joules_per_output_token.value", Unit(2))


def plan_blocks(plan: Plan) -> Iterator[Block]:
    """Return the blocks of the full report: proof of the best, ranking or missed limits, rejections, and charts."""
    from capacity.report.figures.planning import front_chart, speed_chart, windows_chart

    yield from unproved_note(plan)
    windows = () if plan.best is None else plan.best.trial.windows
    if windows:
        yield CustomChart(partial(windows_chart, windows, subject=describe_answer(plan)), fixed=True)
    if plan.speed_front:
        yield CustomChart(partial(speed_chart, plan), fixed=True)
    if plan.cost_front:
        yield CustomChart(partial(front_chart, plan), fixed=True)
    if plan.ranked:
        yield ranked_table(plan)
        yield from launch_lines(plan.ranked[0])
        yield levels_table(plan)
        yield windows_table(windows)
        sources = [Fact(what, "", note=source) for what, source in quality_sources(plan.ranked).items()]
        yield Facts("Published quality of the formats", sources)
        yield Table("Speed per user against throughput per GPU (simulated)", plan.speed_front, FRONT_COLUMNS)
        yield Table("Price against SLO headroom (simulated)", plan.cost_front, FRONT_COLUMNS)
    else:
        yield from missed_levels(plan)
    yield from list_with_heading(f"{CONDITIONAL_HEADING}:", conditional_texts(plan))
    yield Table("Rejected", rejection_rows(plan), REJECTION_COLUMNS, numbered=True, wrap=True)
    yield search_text(plan)
    yield from (f"price of {price}" for price in plan.prices)
    yield f"not searched: {'; '.join(plan.not_searched)}"


def question_text(plan: Plan | FleetPlan, lengths: str = "") -> str:
    """Return model, traffic and SLO in two lines; if the SLO applies to windows, add the busiest window."""
    window = phrase("\nSLO window {}; busiest: {.text}", plan.slo_window, plan.busiest_window)
    return (
        f"[bold]{plan.model}[/bold], {plan.workload}: {plan.requests:,} requests, {_arrivals_text(plan)}{lengths}\n"
        f"SLO {' and '.join(plan.slos)}, {plan.confidence:.0%} confidence in the step times; minimize {plan.objective}"
        f"{window}"
    )


def unproved_note(plan: Plan) -> Iterator[str]:
    """Return a note if the search ended without proof that its answer is the best."""
    if not plan.proved:
        rest = (
            "better deployments may exist"
            if plan.ranked
            else "deployments that were not simulated may meet the SLO"
        )
        yield f"[yellow]not proved:[/yellow] {plan.proof}; {rest}"


PERIODS_SHOWN = 24  # rows of the table of service levels over time


class WindowRow(NamedTuple):
    """SLO results of one period; `levels` are those of its worst window, `judged`: its load is high enough to judge."""

    start_s: float
    requests_per_s: float
    levels: tuple[Level, ...]
    judged: bool

    @property
    def start(self) -> str:
        """Return the time of day at which the period begins."""
        return clock_text(self.start_s)

    @property
    def highest_ratio(self) -> float:
        """Return the highest service level as a share of its limit."""
        return max(level.ratio for level in self.levels)


def window_rows(windows: Sequence[WindowLevels]) -> list[WindowRow]:
    """Return a row for each period in which a window begins, for at most `PERIODS_SHOWN` periods of equal length."""
    if not windows:
        return []
    first_s, last_s = windows[0].window.start_s, windows[-1].window.end_s
    each_s = max((last_s - first_s) / PERIODS_SHOWN, 1.0)
    found = []
    for _, each in groupby(windows, key=lambda each: int((each.window.start_s - first_s) / each_s)):
        group = list(each)
        seconds = sum(each.window.end_s - each.window.start_s for each in group)
        rate = sum(each.window.requests for each in group) / seconds
        worst, judged = max(group, key=attrgetter("ratio")), any(each.judged for each in group)
        found.append(WindowRow(group[0].window.start_s, rate, worst.levels, judged))
    return found


def windows_table(windows: Sequence[WindowLevels]) -> Table:
    """Return the service levels over time; the table is empty if the SLO was not checked by window."""
    rows = window_rows(windows)
    levels = [level for row in rows[:1] for level in row.levels]
    columns = [
        Column("start", mark_unless("start", "judged", " *")),
        Column("requests/s", "requests_per_s", Unit(2)),
        *(Column(level.slo, level_text_path(f"levels.{i}"), units.TEXT) for i, level in enumerate(levels)),
        Column("% of limit", "highest_ratio", units.PERCENT_0),
    ]
    title = "Service levels over time: worst window of each period (*: load too low to judge)"
    return Table(title, rows, columns)


def _arrivals_text(plan: Plan | FleetPlan) -> str:
    """Return the request rate and the limit on requests in flight as text."""
    at_most = phrase("{:,} in flight", getattr(plan, "concurrency", None))
    if math.isinf(plan.requests_per_s):
        return at_most or "all at once"
    return f"{plan.requests_per_s:,.2f} requests/s{phrase(', at most {}', at_most)}"


def search_text(plan: Plan) -> str:
    """Return a line on the search: how many candidates were simulated, whether the best is proved, and the duration."""
    counts = plan.counts
    first = phrase(", first answer after {:.1f} s", plan.first_answer_s)
    return (
        f"{counts.points:,} deployments ({counts.engines:,} engines): {counts.simulated:,} simulated "
        f"({counts.simulated_fraction:.1%}), {plan.proof}; {plan.elapsed_s:.1f} s{first}"
    )


def ranked_table(plan: Plan) -> Table:
    """Return the deployments that meet the service levels, best first."""
    whole = any(each.billed_gpus > each.num_gpus for each in plan.ranked)
    columns = (
        Column("", _rank_path(plan), units.COUNT),
        Column("deployment", "label"),
        Column("GPUs", "num_gpus", units.COUNT),
        *([Column("GPUs billed", "billed_gpus", units.COUNT)] if whole else []),
        Column("$/h", "cost.usd_per_hour", units.USD_2),
        Column("$/month", "cost.usd_per_month", units.USD_0),
        Column("$/1M out", "cost.usd_per_million_output_tokens", units.USD_3),
        Column("provisioned J/out", "joules_per_output_token", Unit(1)),
        DRAWN_JOULES,
        Column("% of limit", "trial.ratio", units.PERCENT_0),
        Column("confidence", confidence_text, units.TEXT),
        Column("quality loss", quality_text, units.TEXT),
    )
    return Table("Deployments that meet the SLO, best first", plan.ranked, columns)


def _rank_path(plan: Plan) -> Callable[[Ranked], int]:
    return lambda answer: plan.ranked.index(answer) + 1


def launch_lines(best: Ranked) -> Iterator[str]:
    """Return the launch commands, ready to copy; lines break where a shell allows it."""
    from rich.markup import escape

    if not best.launch:
        yield "\nthis engine is a baseline and has no launch command"
        return
    for line in best.launch:
        alone = line.replicas == 1 and line.role == "both"
        heading = "" if alone else f"{launch_scope_text(line)}:\n"
        notes = "".join(f"  # {note}\n" for note in line.notes)
        first, *further = wrap_command(line.command)
        yield escape("\n".join([f"\n{heading}{notes}{first}", *further]))
        yield phrase("  # --output FOLDER writes {}", " and ".join(line.files))
    if best.candidate.prefill is not None:
        yield "  # send requests to the proxy of both pools; --output FOLDER writes the proxy's command"


def launch_scope_text(line: LaunchLine) -> str:
    """Return which replicas start with this command: `each of 4 decode replicas`."""
    replicas = count_noun(line.replicas, replica_noun(line.role))
    return f"each of {replicas}" if line.replicas > 1 else replicas


def confidence_text(answer: Ranked) -> str:
    """Return the highest confidence at which the SLO is met; `(1 replica)` if only one replica was simulated."""
    return f"{answer.confidence:.0%}" + ("" if answer.trial.seen == "all" else " (1 replica)")


def quality_text(answer: Ranked) -> str:
    """Return the published quality loss as text: typical and worst."""
    quality = answer.quality
    if quality.worst_loss_fraction is None or quality.typical_loss_fraction is None:
        return "unknown"
    if not quality.worst_loss_fraction:
        return "none"
    text = f"{100 * quality.typical_loss_fraction:.1f} to {quality.worst_loss_fraction:.1%}"
    return f"{text} (noise)" if quality.lossless else text


def describe_saving(minimised: Objective, less: float, more: float) -> tuple[str, float]:
    """Return the saving `more - less` as text, and as a fraction of `more`; both are values of the objective."""
    return OBJECTIVE_FORMATS[minimised](more - less), 1 - less / more


def conditional_texts(plan: Plan) -> list[str]:
    """Return a line for each deployment that is recommended only under conditions."""
    best = None if plan.best is None else plan.best.objective
    return [conditional_text(plan.objective, best, each) for each in plan.conditional]


def conditional_text(minimised: Objective, best: float | None, each: Conditional) -> str:
    """Return a line on a deployment with quality loss or unmeasured drafts: these conditions, price, and saving.

    The saving is relative to `best`, the objective of the recommended deployment; None: no saving.
    """
    answer = each.answer
    price = OBJECTIVE_FORMATS[minimised](answer.objective)
    saving = ""
    if best:
        more, share = describe_saving(minimised, answer.objective, best)
        saving = f", saves {more} ({share:.0%})"
    loss = "" if answer.quality.lossless else f"; quality loss: {quality_text(answer)}"
    return f"with {' and '.join(each.conditions)}: {price}{saving}: {answer.label}{loss}"


def level_name(level: Level) -> str:
    """Return the name of a service level: `p95 TTFT` for `ttft:p95:1s`."""
    metric, *percentile, _ = level.slo.split(":")
    return " ".join((*percentile, METRICS[metric].label))


def level_text(level: Level | None) -> str:
    """Return the value of a service level as text, with its interval if it has one."""
    if level is None:
        return "-"
    if (level.value_s or 0.0) >= FAILED_LATENCY_S:
        return "requests fail"
    spread = level_value(level)
    if isinstance(spread, str):
        return spread
    value, interval = text_and_interval(spread, 1e3, 0)
    return f"{value} ms{phrase(' ({})', interval)}"


def level_value(level: Level) -> Quantity | str:
    """Return a latency in s with interval; for an SLO on each request, the share of requests that meet it as text."""
    if level.value_s is None:
        return f"{level.good_fraction:.2%}"
    return Quantity(value=level.value_s, low=level.low_s, high=level.high_s)


def share_of_limit(level: Level) -> Quantity:
    """Return a level's value divided by its limit, with its sampling interval if it has one."""
    if not level.value_s or level.low_s is None or level.high_s is None:
        return Quantity(value=level.ratio)
    return Quantity(value=level.ratio, low=level.low_s / level.limit_s, high=level.high_s / level.limit_s)


def levels_table(plan: Plan) -> Table:
    """Return the ranked deployments' service levels, with step times as predicted and at the plan's confidence."""
    columns = [Column("", _rank_path(plan), units.COUNT)]
    for place, level in enumerate(plan.ranked[0].trial.levels):
        columns += [
            Column(f"{level.slo}, as predicted", level_text_path(f"predicted.levels.{place}"), units.TEXT),
            Column(f"{level.slo}, at confidence", level_text_path(f"trial.levels.{place}"), units.TEXT),
        ]
    columns.append(Column("tok/s/user", "trial.tokens_per_s_per_user", Unit(1)))
    return Table("Service levels (90 % sampling interval)", plan.ranked, columns)


def level_text_path(path: str) -> Callable[[object], str]:
    """Return a function from a record to the text of the service level at `path` in the record."""
    return lambda record: level_text(value_at(record, path))


def quality_sources(ranked: Sequence[Ranked]) -> dict[str, str]:
    """Return a dict from published quality result to its source, for formats that may lose quality."""
    return {a.quality.what: a.quality.source for a in ranked if a.quality.worst_loss_fraction != 0}


def missed_levels(plan: Plan) -> Iterator[Block]:
    """Return the blocks for a plan without an answer: the missed service levels or the nearest deployment."""
    title = (
        f"[red]No {'deployment in the search space' if plan.proved else 'simulated deployment'} meets the SLO"
        f"{' without the conditions listed below' if plan.conditional else ''}[/red]"
    )
    if plan.nearest is None:
        yield Table(title, plan.misses, MISS_COLUMNS) if plan.misses else title
    else:
        near = plan.nearest
        yield title
        yield f"\n[bold]Nearest: {near.label}[/bold]{money_phrase(', {}/h', near.usd_per_hour)}"
        yield from level_lines(near.trial, near.predicted, plan.confidence)
        yield phrase("  {}", near.reason)
    yield from list_with_heading(f"{REMEDIES_HEADING}:", (remedy_text(plan, each) for each in plan.remedies))


def remedy_text(plan: Plan, remedy: Remedy) -> str:
    """Return a line on a change with which the SLO is met: flags with new values, deployment and price."""
    texts = {n: v if isinstance(v, str) else f"{v:.10g}" for n, v in remedy.change.items()}
    flags = " ".join(f"--{name.replace('_', '-')} {text}" for name, text in texts.items())
    gpus = f", {remedy.num_gpus} GPUs" if "max_gpus" in remedy.change else ""
    asked = f" (instead of {plan.requests_per_s:,.3g})" if "request_rate" in remedy.change else ""
    return f"with {flags}{asked}: {remedy.label}{gpus}{money_phrase(', {}/h', remedy.usd_per_hour)}"


def level_lines(trial: Evaluation, predicted: Evaluation | None, confidence: float) -> Iterator[str]:
    """Return a line for each service level: its value as predicted and at the plan's confidence."""
    for place, level in enumerate(trial.levels):
        expected = "" if predicted is None else f"{level_text(predicted.levels[place])} as predicted, "
        yield f"  {level.slo}: {expected}{level_text(level)} at {confidence:.0%} confidence"


REJECTION_COLUMNS = (
    Column("engines", itemgetter(0), units.COUNT),
    Column("reason", itemgetter(1)),
    Column("example", itemgetter(2)),
)
MISS_COLUMNS = (
    Column("service level", "slo"),
    Column("limit", "limit", units.TEXT),
    Column("best found", "best"),
    Column("times the limit", lambda miss: None if math.isinf(miss.factor) else miss.factor, Unit(2)),
    Column("deployment", "candidate"),
)


FRONT_COLUMNS = (
    Column("", mark_unless("label", "met", " (misses the SLO)")),
    Column("GPUs", "num_gpus", units.COUNT),
    Column("$/h", "usd_per_hour", units.USD_2),
    Column("tok/s/user", "tokens_per_s_per_user", Unit(1)),
    Column("tok/s/GPU", "tokens_per_s_per_gpu", units.COUNT),
    Column("worst level", "worst_ratio", Unit(2, after=" of limit")),
)


def rejection_rows(plan: Plan) -> list[tuple[int, str, str]]:
    """Return for each reason the number of rejected engine setups and one example, the most frequent first."""
    rows = []
    for kind, count in sorted(plan.reasons.items(), key=itemgetter(1), reverse=True):
        example = next(rejection for rejection in plan.rejected if rejection.kind == kind)
        rows.append((count, KINDS[kind], f"{example.engine}: {example.reason}"))
    return rows


def rejected_table(plan: Plan) -> Table:
    """Return every rejected candidate with its reason."""
    columns = [
        Column("GPU", "pool.gpu"),
        Column("TP", "pool.tensor_parallel_size", units.COUNT),
        Column("weights", "pool.quantization", Unit(left=True, none="as published")),
        Column("KV cache", "pool.kv_cache_dtype"),
        Column("replicas", "replicas", units.COUNT),
        Column("kind", lambda each: KINDS[each.kind]),
        Column("reason", "reason"),
    ]
    return Table("Rejected candidates", plan.rejected, columns)
