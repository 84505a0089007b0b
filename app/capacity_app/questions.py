"""A page's question to a verb: the task that asks it, with its progress and the copies of its answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import capacity
from capacity.report.views.view import Fact, View
from capacity_app import parts, sides, views
from capacity_app.jobs import Task
from capacity_app.side import Side
from capacity_app.state import Inputs


def task_of(verb: str, model: Any, options: Mapping[str, Any]) -> Task:
    """Return the task that asks a function of `capacity`."""
    reports = "progress" in inspect.signature(getattr(capacity, verb)).parameters
    return Task(function=f"capacity:{verb}", arguments={"model": model, **options}, reports=reports)


def asker(verb: str, inputs: Inputs) -> sides.Ask:
    """Return the function that makes the task of a side: this verb, of the side's model and options."""

    def ask(side: Side) -> Task:
        return task_of(verb, sides.model_of(side, inputs), {**side.options, **side.cost})

    return ask


def ask_in_background(
    verb: str,
    inputs: Inputs,
    options: Mapping[str, Any],
    *,
    doing: str,
    button: str | None = None,
    reading: parts.Reading = parts.progress_fraction,
    command: str | None = "",
    typed: Mapping[str, Any] | None = None,
) -> parts.Answer:
    """Ask a verb in the background, by a `button` where it takes long, and draw progress and copies.

    A page that has a side pinned asks at every change. `command` is the verb on the command line, where it is
    another or none; `typed` has the options as flags, where they are not the keywords.
    """
    task = task_of(verb, inputs.model, options)
    if any(side.page == verb for side in sides.pinned_sides()):
        button = None
    answer = parts.background(verb, task, doing=doing, button=button, reading=reading)
    name = verb if command == "" else command
    parts.copies(name, inputs.model_name, options, answer.current, function=verb, typed=typed)
    return answer


def show_figures(
    verb: str,
    inputs: Inputs,
    found: parts.Answer,
    facts: Callable[..., Iterable[Fact]],
    *arguments: Any,
    slo: tuple[str, ...] = (),
) -> None:
    """Draw the figures of merit of an answer, beside those of what is pinned; `arguments` go on to `facts`."""
    side, row = sides.side_of(verb, found.arguments), views.merits_of(facts, *arguments)
    sides.figures(side, found.value, ask=asker(verb, inputs), row=row, slo=slo)


def show_answer(
    verb: str,
    inputs: Inputs,
    found: parts.Answer,
    facts: Callable[..., Iterable[Fact]],
    view: Callable[[Any], View],
) -> None:
    """Draw an answer, once there is one: its figures of merit and its view."""
    if found.value is not None:
        show_figures(verb, inputs, found, facts)
        views.show(view(found.value), found.value)
