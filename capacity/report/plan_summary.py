"""What `plan` answers, on one screen: what to rent, how it is started, what it saves, what else there is, why not more.

Everything else, level by level and reason by reason, is `capacity.report.plan.plan_tables` (`--detail`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from capacity.report.layout import Part, listed, notes
from capacity.report.plan import (
    CONDITIONAL,
    conditional_texts,
    confidence_text,
    cost_text,
    gpus_text,
    header,
    level_text,
    misses_table,
    quality_text,
    saved,
    search_text,
    turned_down,
)

if TYPE_CHECKING:
    from capacity.planning.records import Plan, Ranked

ALTERNATIVES = 5
REASONS = 4  # kinds of reasons for which engines were turned down
REASON_LENGTH = 88
COMMAND_WIDTH = 96


def plan_summary(plan: Plan) -> list[Part]:
    """The answer in short."""
    parts: list[Part] = [header(plan)]
    if not plan.proved:
        rest = "better ones may exist" if plan.ranked else "what they would have done is not known"
        parts.append(f"[yellow]not proved:[/yellow] {plan.proof}; {rest}")
    if plan.best is None:
        parts.append(misses_table(plan))
    else:
        parts += ["\n".join(_winner(plan, plan.best)), "\n".join(_commands(plan.best))]
        if len(plan.ranked) > 1:
            parts.append(_alternatives(plan))
    if plan.conditional:
        texts = (f"  {text}" for text in conditional_texts(plan))
        parts.append("\n".join([f"\n{CONDITIONAL}:", *texts]))
    parts.append("\n".join(_turned_down(plan)))
    price = next(
        (text for text in plan.prices if plan.best and text.startswith(f"{plan.best.pool.gpu}:")), None
    )
    if price is not None:
        parts.append(f"price of {price}")
    return [*parts, *notes(plan.warnings), "--detail has every level, front, reason and source"]


def _winner(plan: Plan, best: Ranked) -> Iterator[str]:
    cost = f": ${cost_text(best, 'usd_per_hour', ',.2f')}/h" if best.cost else f": {gpus_text(best)} GPUs"
    if best.cost:
        cost += f", ${cost_text(best, 'usd_per_month', ',.0f')} a month, "
        cost += f"${cost_text(best, 'usd_per_million_output_tokens', ',.3f')} per 1M output tokens"
    yield f"\n[bold]Rent {best.label}[/bold]{cost}"
    worst = best.trial.window
    if worst is not None:
        yield f"  worst window: {worst.text}"
    for place, level in enumerate(best.trial.levels):
        predicted = level_text(best.predicted.levels[place]) + " as predicted, " if best.predicted else ""
        yield f"  {level.slo}: {predicted}{level_text(level)} at {plan.confidence:.0%} confidence"
    yield f"  holds up to {confidence_text(best)} confidence; loss of quality: {quality_text(best)}"
    saving = _saving(plan, best)
    if saving:
        yield f"  {saving}"


def _saving(plan: Plan, best: Ranked) -> str | None:
    """What the next deployment costs more; where it costs as much, that and what the first more expensive one does."""
    following = next((other for other in plan.ranked if other.objective > best.objective), None)
    if plan.objective == "latency" or not best.objective or len(plan.ranked) < 2:
        return None
    equal = sum(other.objective == best.objective for other in plan.ranked[1:])
    same = (
        f"the next, {plan.ranked[1].label}, {'costs' if plan.objective == 'cost' else 'needs'} the same"
        if equal
        else ""
    )
    if following is None:
        return same
    more, share = saved(plan.objective, best.objective, following.objective)
    dearer = "more expensive" if plan.objective == "cost" else "larger"
    place = f"the next {dearer}" if equal else "the next"
    return f"{same and same + '; '}saves {more} ({share:.0%}) over {place}, {following.label}"


def _commands(best: Ranked) -> Iterator[str]:
    """What starts it, copied as it stands; a line breaks where a shell allows it to."""
    from rich.markup import escape

    if not best.launch:
        yield "\nnothing launches this engine: it is a baseline"
        return
    for line in best.launch:
        role = "" if line.role == "both" else f" to {line.role}"
        yield f"\n{_count(line.replicas)}{role}:" if line.replicas > 1 or role else ""
        yield from (escape(f"  # {note}") for note in line.notes)
        yield escape("\n".join(wrapped(line.command)))
        if line.files:
            yield f"  # --output FOLDER writes {' and '.join(line.files)}"
    if best.candidate.prefill is not None:
        yield "  # requests go to a proxy in front of both: --output FOLDER writes its command"


def _count(replicas: int) -> str:
    return f"each of {replicas} replicas" if replicas > 1 else "1 replica"


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


def _alternatives(plan: Plan) -> Part:
    return listed(
        "Alternatives: the best of other GPUs and formats",
        plan.ranked[1 : 1 + ALTERNATIVES],
        ("deployment", "left", lambda each: each.label),
        ("GPUs", "right", gpus_text),
        ("$/h", "right", lambda each: cost_text(each, "usd_per_hour", ",.2f")),
        ("busiest level", "right", lambda each: f"{each.trial.ratio:.0%}"),
        ("loss", "right", quality_text),
    )


def _turned_down(plan: Plan) -> Iterator[str]:
    """How many engines for which reason, the first reasons with one of them."""
    for count, why, example in turned_down(plan)[:REASONS]:
        text = f"{count:,} turned down: {why}"
        if len(text) + len(example) + 11 <= REASON_LENGTH:
            text += f" (as {example})"
        yield text
    yield search_text(plan)
