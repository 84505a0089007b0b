"""Verbs (commands) about deployments, and lists of models and GPUs: parse the flags, call the library, print.

The registry (`capacity/base/verbs.json`) has the help of each verb.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

import capacity
from capacity.base.errors import InvalidInput
from capacity.base.progress import progress_bar
from capacity.cli.options import (
    INTERRUPTED,
    EngineLoopOption,
    ListFormatOption,
    SchedulerOption,
    check_format,
    exit_with_message,
    refuse_alone,
    show,
    show_answer,
    with_dashes,
    write_all,
    write_chart,
)
from capacity.cli.question import Question, changed_gpu, request_of

if TYPE_CHECKING:
    from capacity.simulator.timeline import Timeline


def fit(question: Question, *, price_tier: str | None = None) -> None:
    from capacity.answers.load_point import EVERY_GPU
    from capacity.deployment.launch_command import read_launch

    named = question.from_launch is not None and read_launch(question.from_launch).gpu is not None
    if "gpu" not in question.flags and question.deployment is None and not named:
        question = replace(question, flags={**question.flags, "gpu": EVERY_GPU})
    request = request_of(question)
    if request.pools[0].gpu == EVERY_GPU:
        compared = question.ask(capacity.compare_fits, request, price_tier=price_tier or "on-demand")
        show_answer(compared, question.format)
        if not any(point.fits for point in compared.rows):
            raise typer.Exit(1)
        return
    if price_tier is not None:
        raise InvalidInput(f"--price-tier {price_tier} needs --gpu all, because it sorts several GPUs")
    answer = question.ask(capacity.fit, request)
    show_answer(answer, question.format)
    if not answer.fits:
        raise typer.Exit(1)


def estimate(question: Question, *, order: str | None = None, **keywords: Any) -> None:
    from capacity.answers.load_point import EVERY_GPU

    request = request_of(question)
    if request.pools[0].gpu == EVERY_GPU:
        if keywords.pop("grid_region", None) is not None:
            raise InvalidInput("--grid-region needs one GPU: add --gpu NAME in place of --gpu all")
        compared = capacity.compare_gpus(request, order=order, profiles=question.profiles, **keywords)
        show_answer(compared, question.format)
        return
    if order is not None:
        raise InvalidInput(f"--order {order} needs --gpu all, because it sorts several GPUs")
    answer = question.ask(capacity.estimate, request, **keywords)
    show_answer(answer, question.format, detail=question.detail)


def explain(
    question: Question,
    *,
    subject: Annotated[
        str | None, typer.Argument(help="A model; or a term, such as ttft, ridge, acceptance.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Argument(help="With a term: model whose numbers illustrate it.", show_default=False),
    ] = None,
    interval: bool = False,
    evidence: bool = False,
) -> None:
    from capacity.cli.verb_commands import explain_term
    from capacity.model import model_names
    from capacity.techniques.glossary import find_term, is_term

    if subject is not None and is_term(subject):
        of_a_deployment = model is not None or question.deployment is not None
        request = request_of(replace(question, model=model)) if of_a_deployment else None
        explain_term(subject, request, question.format)
        return
    if subject is None and question.deployment is None and question.from_launch is None:
        raise InvalidInput("name a term (`capacity explain ttft`), or a model with its GPU and load")
    if model is not None:
        raise InvalidInput(f"{subject!r} is not a term: give one model, or a term and a model")
    on_a_gpu = question.deployment or question.from_launch or "gpu" in question.flags
    if subject is not None and not on_a_gpu and subject not in model_names():
        find_term(subject)  # a term was meant
    request = request_of(replace(question, model=subject))
    answer = question.ask(partial(capacity.explain, evidence=evidence), request)
    tables = None
    if interval or evidence:
        from capacity.report.views.evidence import evidence_view
        from capacity.report.views.layout import view_parts
        from capacity.report.views.one_load import interval_view

        tables = partial(view_parts, interval_view(answer) if interval else evidence_view(answer))
    show_answer(answer, question.format, tables=tables)


def simulate(
    question: Question,
    *,
    goodput: list[str] | None = None,
    slo: list[str] | None = None,
    save_trace: str | None = None,
    save_trace_for: str | None = None,
    records: str | None = None,
    series: str | None = None,
    sample_interval: float | None = None,
    timeline: str | None = None,
    gantt: str | None = None,
    **keywords: Any,
) -> None:
    from capacity.simulator.timeline import Timeline, write_records, write_series, write_timeline

    if sample_interval is not None:
        refuse_alone("--sample-interval", ("--output series=FILE", series))
    if save_trace_for is not None:
        refuse_alone("--save-trace-for", ("--output trace=FILE", save_trace))
    observer = Timeline() if timeline or gantt else None
    request = request_of(question)
    with progress_bar() as progress:
        answer = question.ask(
            capacity.simulate,
            request,
            goodput=goodput,
            slo=slo,
            save_trace=save_trace,
            save_trace_for=save_trace_for or "vllm",
            sample_interval_s=(sample_interval or 1.0) if series else None,
            observer=observer,
            progress=progress,
            **keywords,
        )
    show_answer(answer, question.format, detail=question.detail)
    writers: list[Callable[[], object]] = []
    if records:
        writers.append(partial(write_records, answer.run, records))
    if series:
        writers.append(partial(write_series, answer.run, series))
    if observer and timeline:
        writers.append(partial(write_timeline, observer, answer.run, timeline))
    if observer and gantt:
        writers.append(partial(_write_gantt, answer, observer, gantt))
    write_all(writers)
    _exit_as(answer)


def _write_gantt(answer: capacity.Simulation, observer: "Timeline", path: str) -> None:
    from capacity.report.figures.gantt import gantt_chart

    write_chart(path, gantt_chart(answer, observer.chrome_trace(answer.run.records)["traceEvents"]))


def _exit_as(answer: capacity.Simulation) -> None:
    """Exit with code 1 if an SLO is unmet or the run stalled, and after Ctrl-C with the shell's exit code for it."""
    if not all(level.met for level in answer.slos):
        raise typer.Exit(1)
    if answer.run.status != "complete":
        stalled = answer.run.status == "stalled"
        exit_with_message(f"{answer.run.status}: {answer.run.reason}", 1 if stalled else INTERRUPTED)


def schedule(
    file: Annotated[str, typer.Argument(help="File of scenarios (JSON or JSON lines), plain or gzipped.")],
    policy: str | None = None,
    engine: str | None = None,
    format: str = "jsonl",
    engine_loop: EngineLoopOption = "auto",
    scheduler: SchedulerOption = None,
) -> None:
    import json

    from capacity.report import schedule as schedule_report
    from capacity.simulator.scenarios import read_scenarios, schedule_scenario

    check_format(format, ("jsonl", "table", "gantt"))
    for scenario in read_scenarios(file):
        answer = schedule_scenario(
            scenario, policy, engine=engine, engine_loop=engine_loop, scheduler=scheduler
        )
        if format == "jsonl":
            show(json.dumps(answer))
        elif policy == "sglang-radix":
            show(schedule_report.radix_table(answer))
        else:
            show(
                schedule_report.steps_table(answer)
                if format == "table"
                else schedule_report.text_gantt(answer)
            )


def models(
    add: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[add ORG/NAME|PATH]",
            help="Store your own model: a config.json, its folder, or a Hugging Face Hub id.",
        ),
    ] = None,
    name: str | None = None,
    format: ListFormatOption = "table",
) -> None:
    from capacity.report import tables as report

    if not add:
        if name is not None:
            raise InvalidInput("--name has no effect without `models add`: add it, or leave --name out")
        show(report.render_listing(capacity.models(), format, title="Models"))
        return
    if add[0] != "add" or len(add) != 2:
        raise InvalidInput(f"unknown command {' '.join(add)!r}: use `capacity models add ORG/NAME|PATH`")
    kept = capacity.add_model(add[1], name=name)
    read = f"{kept.model.total_params / 1e9:,.4g} B parameters, {kept.model.attention_kind}"
    print(f"{kept.name}: {read}, stored in {kept.path}")
    for note in kept.model.notes:
        print(f"note: {note}")


def gpus(
    add: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[add NAME]",
            help="Write a profile of a GPU from its datasheet and a similar GPU's profile.",
        ),
    ] = None,
    format: ListFormatOption = "table",
    profiles: str | None = None,
    support: bool = False,
    gpu: str | None = None,
    **facts: Any,
) -> None:
    from capacity.hardware import use_text
    from capacity.report import tables as report

    if add:
        if add[0] != "add" or len(add) != 2:
            raise InvalidInput(f"unknown command {' '.join(add)!r}: use `capacity gpus add NAME`")
        added = capacity.add_gpu(add[1], profiles=profiles, **facts)
        show(f"given: {', '.join(added.given)}")
        show(f"assumed equal or proportional to those of {added.like}: {', '.join(added.assumed)}")
        show(f"kernel constants: those of {added.like}, with wider intervals")
        show("intervals assume that the given values are right; run `capacity calibrate` to correct guesses")
        show(use_text(added.name, added.path))
        return
    if facts:
        flag = f"--{with_dashes(next(iter(facts)))}"
        raise InvalidInput(f"{flag} has no effect without `gpus add NAME`: add it, or leave {flag} out")
    if gpu is not None and not support:
        raise InvalidInput(f"--gpu {gpu} has no effect without --support: add it, or leave --gpu out")
    if support:
        show_answer(capacity.gpu_support(gpus=None if gpu is None else (gpu,), profiles=profiles), format)
        return
    show(report.render_listing(capacity.gpus(profiles=profiles), format, title="GPUs"))


def use_cases(format: ListFormatOption = "table") -> None:
    from capacity.report.use_cases import render_use_cases

    show(render_use_cases(capacity.use_cases(), format))


def schema(
    name: Annotated[
        str | None,
        typer.Argument(help="A verb (fit, estimate, plan, ...), deployment, gpu-profile or sweep-file."),
    ] = None,
) -> None:
    import json

    from capacity.report.schemas import json_schema, schema_names

    show("\n".join(schema_names()) if name is None else json.dumps(json_schema(name), indent=2))


def frontier(
    *,
    model: str,
    options: Mapping[str, Any],
    gpus: str | None = None,
    quantizations: str = "default",
    engines: str = "vllm",
    tensor_parallel_sizes: str = "fewest",
    loads: str | None = None,
    tpot: float = 25.0,
    chart: str | None = None,
    detail: bool,
    format: str,
    **keywords: Any,
) -> None:
    from capacity.cli.question_flags import numbers, split_list
    from capacity.report.views.frontier import frontier_view
    from capacity.report.views.layout import view_parts

    if gpus is None:
        raise InvalidInput("no GPU: add --gpus NAME,NAME (`capacity gpus` lists them)")
    if not 0 < tpot < float("inf"):
        raise InvalidInput(f"--tpot {tpot}: must be above 0 ms")
    if loads is not None:
        keywords["loads"] = [int(load) for load in numbers("--loads", loads) or ()]
    with progress_bar("deployments") as progress:
        answer = capacity.frontier(
            model,
            gpus=split_list(gpus),
            quantizations=[None if name == "default" else name for name in split_list(quantizations)],
            engines=split_list(engines),
            tensor_parallel_sizes=[_size(text) for text in split_list(tensor_parallel_sizes)],
            progress=progress,
            **keywords,
            **options,
        )
    view = frontier_view(answer, tpot / 1e3, every=detail)
    show_answer(answer, format, tables=partial(view_parts, view))
    if chart is not None:
        from capacity.report.figures.frontiers import frontier_chart

        write_chart(chart, frontier_chart(answer, tpot_limit_s=tpot / 1e3))


def _size(text: str) -> int | None:
    """Return the tensor-parallel size in a text; None for `fewest`, the smallest that fits. Raises InvalidInput."""
    if text == "fewest":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise InvalidInput(
            f"--tensor-parallel-sizes {text!r:.80}: give whole numbers such as 1,2,4, or fewest"
        )
    return int(text)


def engines(
    question: Question, *, compare: str | None = None, engines: str | None = None, claims: bool = False
) -> None:
    if compare is None and question.deployment is None and question.from_launch is None:
        idle = [*(name for name in question.flags if name != "gpu"), *(["engines"] if engines else [])]
        if idle:
            flag = f"--{with_dashes(idle[0])}"
            raise InvalidInput(f"{flag} has no effect without --compare MODEL: add it, or leave {flag} out")
        gpu = question.flags.get("gpu", "h100")
        gpu = changed_gpu(gpu, question.change) if question.change else gpu
        show_answer(capacity.engine_table(gpu, claims=claims), question.format)
        return
    if claims:
        raise InvalidInput("--claims and --compare cannot be combined: run them separately")
    from capacity.cli.question_flags import split_list

    request = request_of(replace(question, model=compare, verb="estimate"))
    which: Mapping[str, Any] = {} if engines is None else {"engines": split_list(engines)}
    show_answer(capacity.compare_engines(request, profiles=question.profiles, **which), question.format)
