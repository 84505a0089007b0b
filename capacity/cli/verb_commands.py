"""Verbs whose commands are generated from the registry and their Python function: parse, call the library, print.

A verb's flags are the keywords of its Python function and the fields of the function's specs. They are read when the
verb is called, so that `capacity --help` does not import the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from inspect import Parameter, Signature
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import typer

from capacity.base.errors import InvalidInput
from capacity.base.progress import progress_bar
from capacity.base.registry import Verb
from capacity.cli.options import FormatOption, ModelArgument, show, show_answer, write_chart
from capacity.cli.question import NO_GPU, Question, note, request_of
from capacity.cli.question_flags import keywords_of, option, parameter

if TYPE_CHECKING:
    from capacity.base.spec import Spec
    from capacity.deployment import DeploymentFile

VERBS_WITH_CHART = ("batching",)  # verbs that write a chart


def asking_function(entry: Verb) -> tuple[Callable[..., None], tuple[type[Spec], ...]]:
    """Return the command function of a verb, and the specs whose fields are its flags.

    The command function takes the flags, calls the verb's Python function and prints the answer.
    """
    question = resolve_name(entry.flags or entry.function)
    keywords, specs = keywords_of(question), getattr(question, "specs", ())

    def ask(*, options: Mapping[str, object], format: str, **flags: Any) -> None:
        chart_file = flags.pop("chart", None)
        for other in entry.alternatives:
            if flags.pop(_name(other.flag)):
                show_answer(resolve_name(other.function)(), format)
                return
        _check_model(entry, flags)
        if specs:
            flags["model"] = _deployment(entry.name, flags["model"], options, specs, flags)
        answer = question(**{k.name: k.value(flags[k.name]) for k in keywords if flags[k.name] is not None})
        show_answer(answer, format)
        if chart_file:
            from capacity.report.figures.answer_charts import answer_charts

            write_chart(chart_file, answer_charts(answer)[0])

    own = [parameter(keyword, optional=bool(entry.alternatives)) for keyword in keywords]
    own += [
        option(_name(other.flag), bool, False, other.flag, help=other.help) for other in entry.alternatives
    ]
    if entry.name in VERBS_WITH_CHART:
        flags = ("--output", "--chart")
        own.append(
            option(
                "chart",
                str | None,
                None,
                *flags,
                help="Also write the chart to this file (.html, .svg or .png).",
            )
        )
    own.append(Parameter("format", Parameter.KEYWORD_ONLY, default="table", annotation=FormatOption))
    own.append(Parameter("options", Parameter.KEYWORD_ONLY))
    ask.__signature__ = Signature(own)  # type: ignore[attr-defined]
    return ask, specs


def deployment_function(entry: Verb) -> Callable[..., None]:
    """Return a command function that calls a verb's function with the user's deployment and prints the answer."""

    def answer_question(question: Question, *, replicas: int | None = None, **keywords: Any) -> None:
        request = deployment_request(question, replicas)
        keywords |= question.billing
        with progress_bar(entry.progress) if entry.progress else nullcontext() as progress:
            if entry.progress:
                keywords["progress"] = progress
            answer = resolve_name(entry.function)(
                request, profiles=question.profiles, download=question.download, **keywords
            )
        show_answer(answer, question.format)
        if entry.unmet and not getattr(answer, entry.unmet):
            raise typer.Exit(1)

    return answer_question


def deployment_request(
    question: Question, replicas: int | None = None, **other_keywords: object
) -> DeploymentFile:
    """Return the deployment that the user describes, with `replicas` if given; report unused settings on stderr."""
    if replicas is not None:
        question = replace(question, flags={**question.flags, "replicas": replicas})
    request = request_of(question, as_flags=False, **other_keywords)
    note("not used", sorted(request.service.model_fields_set))
    return request


def _name(flag: str) -> str:
    return flag.strip("-").replace("-", "_")


def _check_model(entry: Verb, flags: Mapping[str, object]) -> None:
    """Raise InvalidInput if no model is given, unless a given switch selects a function without a model."""
    if entry.alternatives and flags["model"] is None:
        ways = " or ".join(other.flag for other in entry.alternatives)
        raise InvalidInput(f"no model: name one (`capacity models` lists them), or give {ways}")


def charts(*, model: ModelArgument, options: dict[str, object], output: str = "charts") -> None:
    """Write the handbook's charts for your model and GPU as SVG files. Needs the charts extra."""
    from capacity.deployment import Pool
    from capacity.pool.resolve import resolve
    from capacity.report.figures.handbook import write_charts

    (pool,) = _deployment("charts", model, options, (Pool,), {}).pools
    for path in write_charts(resolve(model, pool), output):
        show(str(path))


def explain_term(term: str, request: DeploymentFile | None, format: str) -> None:
    """Print the meaning of a term, with the numbers of a deployment if one is given."""
    from capacity.answers.estimate import estimate_of
    from capacity.hardware.pricing import find_price_for_cost
    from capacity.pool.resolve import resolve
    from capacity.techniques.glossary import Situation, define

    situation = None
    if request is not None:
        pool = resolve(request.model, request.pools[0])
        price = find_price_for_cost(pool.profile.name, request.cost)
        situation = Situation(pool=pool, estimate=estimate_of(pool, request.traffic, price))
    definition = define(term, situation)
    if format != "table":
        show_answer(definition, format)
        return
    show(f"{definition.term}: {definition.definition}")
    if definition.yours is not None:
        show(f"Yours: {definition.yours}")


def _deployment(
    verb: str,
    model: str,
    options: Mapping[str, object],
    specs: Sequence[type[Spec]],
    keywords: Mapping[str, object],
) -> DeploymentFile:
    """Return the deployment of a model and of the flags in `options`, which are fields of `specs`.

    Raises InvalidInput with command-line names, also for a flag that does not change the answer.
    """
    from capacity.base.keywords import split
    from capacity.deployment import DeploymentFile, build
    from capacity.deployment.used_fields import reject_unused_fields

    if "gpu" not in options:
        raise InvalidInput(NO_GPU)
    parts = zip(specs, split(options, *specs), strict=True)
    made = {spec.__name__.lower(): build(spec, part, flags=True) for spec, part in parts}
    reject_unused_fields(verb, made.values(), options, **keywords)
    return DeploymentFile.model_validate({"model": model, "pools": (made.pop("pool"),), **made})
