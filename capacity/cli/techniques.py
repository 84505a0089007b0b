"""The techniques' verbs of the command line, made from `capacity.techniques.registry`: parse, ask, print.

A verb's flags are the keywords of its question and the fields of the question's specs. They are read when the verb is
called, so that `capacity --help` loads no technique.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capacity.base.errors import InvalidInput
from capacity.cli.options import FormatOption, ModelArgument, show, show_answer, write
from capacity.cli.question import NO_GPU
from capacity.cli.question_flags import keywords_of, option, parameter
from capacity.cli.verbs import POOL, command_of, defer, verb
from capacity.techniques.registry import TECHNIQUES, Technique

if TYPE_CHECKING:
    from capacity.base.record import AnswerRecord
    from capacity.base.spec import Spec
    from capacity.deployment import DeploymentFile


def register(app: typer.Typer) -> None:
    """Add the verbs to the `capacity` command: first those that take a pool's flags."""
    for technique in TECHNIQUES:
        if technique.of_a_pool:
            _register(app, technique)
    verb(app, POOL)(charts)
    for technique in TECHNIQUES:
        if not technique.of_a_pool and not technique.own_verb:
            _register(app, technique)


def _register(app: typer.Typer, technique: Technique) -> None:
    defer(app, technique.verb, technique.help, lambda: _command(technique))


def _command(technique: Technique) -> Any:
    """The verb with its flags."""
    module = import_module(f"capacity.techniques.{technique.module}")
    question = getattr(module, technique.by_flags or technique.question)
    specs = getattr(question, "specs", ())
    return command_of(_asking(technique, question), *specs, without=technique.without)


def _asking(technique: Technique, question: Callable[..., AnswerRecord]) -> Callable[..., None]:
    """A function of the verb's flags that asks the question and prints the answer."""
    from capacity.report.techniques import CHARTS

    keywords, specs = keywords_of(question, technique.first), getattr(question, "specs", ())
    module = sys.modules[question.__module__]

    def ask(*, options: dict[str, object], format: str, chart: str | None = None, **flags: Any) -> None:
        for other in technique.instead:
            if flags.pop(_name(other.flag)):
                return show_answer(getattr(module, other.question)(), format)
        _check_model(technique, flags)
        if specs:
            flags["model"] = _deployment(technique.verb, flags["model"], options, specs, flags)
        answer = question(**{k.name: k.value(flags[k.name]) for k in keywords if flags[k.name] is not None})
        if chart:
            write(chart, CHARTS[technique.verb](answer).html())
        return show_answer(answer, format)

    own = [parameter(keyword, optional=bool(technique.instead)) for keyword in keywords]
    own += [option(_name(flag), bool, False, flag, help=help) for flag, _, _, help in technique.instead]
    if technique.verb in CHARTS:
        own.append(option("chart", str | None, None, "--chart", help="Also write an HTML chart."))
    own.append(Parameter("format", Parameter.KEYWORD_ONLY, default="table", annotation=FormatOption))
    ask.__signature__ = Signature(own)  # type: ignore[attr-defined]
    ask.__name__, ask.__doc__ = technique.verb, technique.help
    return ask


def _name(flag: str) -> str:
    return flag.strip("-").replace("-", "_")


def _check_model(technique: Technique, flags: Mapping[str, object]) -> None:
    """Raises InvalidInput where no model is named and none of the other questions is asked."""
    if technique.instead and flags["model"] is None:
        ways = " or ".join(other.flag for other in technique.instead)
        raise InvalidInput(f"no model: name one (`capacity models` lists them), or give {ways}")


def charts(
    *,
    model: ModelArgument,
    options: dict[str, object],
    output: Annotated[str, typer.Option("--output", "-o", help="Folder for the SVG files.")] = "charts",
) -> None:
    """The handbook's charts for your model and GPU, as SVG files. Needs the charts extra."""
    from capacity.deployment import Pool
    from capacity.pool.resolve import resolve
    from capacity.report.figures.handbook import write_charts

    (pool,) = _deployment("charts", model, options, (Pool,), {}).pools
    for path in write_charts(resolve(model, pool), output):
        show(str(path))


def explain_term(term: str, request: DeploymentFile | None, format: str) -> None:
    """Print what a term means, with the numbers of a deployment where one is given."""
    from capacity.answers.estimate import estimate_of
    from capacity.hardware.pricing import price_of
    from capacity.pool.resolve import resolve
    from capacity.techniques.glossary import Situation, define

    situation = None
    if request is not None:
        pool = resolve(request.model, request.pools[0])
        price = price_of(pool.profile.name, request.cost)
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
    """The model, and each spec with its flags, beside the question's keywords.

    Raises InvalidInput in the command line's words, also for a flag that changes nothing in the verb's answer.
    """
    from capacity.base.keywords import split
    from capacity.deployment import DeploymentFile, build
    from capacity.deployment.reading import refuse_idle

    if "gpu" not in options:
        raise InvalidInput(NO_GPU)
    parts = zip(specs, split(options, *specs), strict=True)
    made = {spec.__name__.lower(): build(spec, part, flags=True) for spec, part in parts}
    refuse_idle(verb, made.values(), options, **keywords)
    return DeploymentFile.model_validate({"model": model, "pools": (made.pop("pool"),), **made})
