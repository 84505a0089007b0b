"""Call library functions from a page: the task, its progress, and code snippets and downloads of the answer."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import capacity
from capacity.report.views.view import Fact, View
from capacity.service.jobs import Task
from capacity_app import parts, sides, views
from capacity_app.side import Side
from capacity_app.state import Inputs


def verb_task(verb: str, model: Any, options: Mapping[str, Any]) -> Task:
    """Return the task that calls the function `capacity.VERB`."""
    reports = "progress" in inspect.signature(getattr(capacity, verb)).parameters
    return Task(function=f"capacity:{verb}", arguments={"model": model, **options}, reports=reports)


def make_side_task(verb: str, inputs: Inputs) -> sides.Ask:
    """Return a function that returns, for a side of a comparison, the task that calls `capacity.VERB`."""

    def ask(side: Side) -> Task:
        return verb_task(verb, sides.side_model(side, inputs), {**side.options, **side.cost})

    return ask


def ask_in_background(
    verb: str,
    inputs: Inputs,
    options: Mapping[str, Any],
    *,
    doing: str,
    button: str | None = None,
    reading: parts.ReadProgress = parts.progress_fraction,
    command: str | None = "",
    typed: Mapping[str, Any] | None = None,
) -> parts.Answer:
    """Call `capacity.VERB` in the background, with a `button` if it takes long, and draw progress and downloads.

    If a side is pinned, each change of an input starts the call without a click on the button. `command`: name of the
    command, if it differs from `verb`; None if there is no command. `typed`: options of the command, if they differ
    from the keyword arguments.
    """
    task = verb_task(verb, inputs.model, options)
    if any(side.page == verb for side in sides.pinned_sides()):
        button = None
    answer = parts.run_in_background(verb, task, doing=doing, button=button, reading=reading)
    name = verb if command == "" else command
    parts.draw_code_snippets(name, inputs.model_name, options, answer.current, function=verb, typed=typed)
    return answer


def show_figures(
    verb: str,
    inputs: Inputs,
    found: parts.Answer,
    facts: Callable[..., Iterable[Fact]],
    *arguments: Any,
    slo: tuple[str, ...] = (),
) -> None:
    """Draw an answer's key metrics next to those of pinned sides; `facts(answer, *arguments)` returns the metrics."""
    side, row = sides.side_of(verb, found.arguments), views.figures_function(facts, *arguments)
    sides.draw_figures(side, found.value, ask=make_side_task(verb, inputs), row=row, slo=slo)


def show_answer(
    verb: str,
    inputs: Inputs,
    found: parts.Answer,
    facts: Callable[..., Iterable[Fact]],
    view: Callable[[Any], View],
) -> None:
    """Draw the key metrics and the view of an answer. Raises NotReady until it exists."""
    answer = found.ready_value
    show_figures(verb, inputs, found, facts)
    views.draw_view(view(answer), answer)
