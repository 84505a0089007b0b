"""Planning commands: parse the flags, call the library, print or write the answer."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

import typer

import capacity
from capacity.base.errors import InvalidInput
from capacity.base.flags import CLUSTER
from capacity.base.mappings import omit, select
from capacity.base.progress import progress_bar
from capacity.base.quantity import size_text
from capacity.base.registry import BY_NAME
from capacity.cli.options import (
    INTERRUPTED,
    FormatOption,
    WorkersOption,
    command_line_text,
    print_message,
    refuse_alone,
    show,
    show_answer,
    with_dashes,
    write_chart,
    write_output,
)
from capacity.cli.question import (
    NO_GPU,
    Question,
    changed_gpu,
    merge_flags,
    note,
    note_command,
    request_of,
    stored_deployment,
)
from capacity.cli.question_flags import split_list
from capacity.cli.search_progress import search_progress
from capacity.cli.verb_commands import deployment_request

if TYPE_CHECKING:
    from capacity.deployment import DeploymentFile
    from capacity.planning.sweeps.sweep_spec import SweepSpec

PEAK_TO_MEAN = 1.6


def plan(
    *,
    model: str,
    options: Mapping[str, Any],
    power_budget: str | None = None,
    output: str | None = None,
    detail: bool,
    format: str,
    **keywords: Any,
) -> None:
    if power_budget is not None:
        _plan_hall(model, power_budget, options, output=output, format=format, **keywords)
        return
    if model.endswith(".toml"):
        raise InvalidInput(f"{model}: a data hall needs its power budget: add --power-budget, such as 2MW")
    _refuse_idle("plan", options)
    if output is not None:
        from capacity.deployment.launch_writers import is_launched

        for engine in split_list(options.get("engines")):
            if not is_launched(engine):
                print_message(f"note: {engine} has no launch command: writing only the report and plan.json")
    with search_progress() as progress:
        answer = capacity.plan(model, progress=progress, **keywords, **options)
    show_answer(answer, format, detail=detail)
    if output is not None:
        from capacity.deployment import Traffic
        from capacity.report.plan_files import write_plan_files

        arrivals = Traffic(**select(options, Traffic.model_fields))
        written = write_plan_files(answer, Path(output), model=model, traffic=arrivals)
        sizes = dict[Path, int]()  # bytes of each file, and of each folder in the folder
        for path in written:
            shown = path if path.parent == Path(output) else path.parent
            sizes[shown] = sizes.get(shown, 0) + path.stat().st_size
        files = (f"{path} ({size_text(size)})" for path, size in sizes.items())
        print_message(f"written, {size_text(sum(sizes.values()))}: {', '.join(files)}")
    if answer.ended == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if not answer.ranked:
        raise typer.Exit(1)


def _plan_hall(
    model: str,
    power_budget: str,
    options: Mapping[str, Any],
    *,
    output: str | None,
    format: str,
    workers: int,
    cluster: str | None = None,
    **keywords: Any,
) -> None:
    """Print the plan of a data hall with a power budget, for the models in its file or for one model.

    Exits with code 1 if part of the requests is not served.
    """
    for flag, given in (("--output", output), ("--cluster", cluster)):
        if given is not None:
            raise InvalidInput(f"{flag} has no effect with --power-budget: remove it")
    models = model if model.endswith(".toml") else [{"model": model}]
    del workers  # each option is a small search in this process
    with progress_bar("options") as progress:
        answer = capacity.plan_hall(
            models, power_budget=power_budget, progress=progress, **keywords, **options
        )
    show_answer(answer, format)
    if answer.limit is not None:
        raise typer.Exit(1)


def fleet(
    *,
    model: str,
    options: Mapping[str, Any],
    output: str | None = None,
    detail: bool,
    format: str,
    **keywords: Any,
) -> None:
    from capacity.report.views.fleet import fleet_view
    from capacity.report.views.layout import view_parts

    _refuse_idle("fleet", options)
    with search_progress(every_better=False) as progress:
        answer = capacity.fleet(model, progress=progress, **keywords, **options)
    view = fleet_view(answer, detail=detail or format == "html")
    show_answer(answer, format, tables=partial(view_parts, view))
    if answer.best is None:
        raise typer.Exit(1)
    if output is not None:
        from capacity.deployment import to_toml
        from capacity.planning.fleets.fleet_records import deployment_of_fleet

        write_output(output, to_toml(deployment_of_fleet(answer, model, options)))


def _refuse_idle(verb: str, options: Mapping[str, Any]) -> None:
    """Raise InvalidInput for a flag in `options` that has no effect on the search."""
    from capacity.base.keywords import split
    from capacity.deployment import build
    from capacity.deployment.used_fields import reject_unused_fields

    specs = tuple(map(resolve_name, BY_NAME[verb].specs))
    made = [build(spec, part) for spec, part in zip(specs, split(options, *specs), strict=True)]
    reject_unused_fields(verb, made, options)


def curve(question: Question, *, output: str | None = None, **keywords: Any) -> None:
    day = {name: keywords.get(name) for name in ("peak_rate", "hourly_rates")}
    if keywords["peak_to_mean"] != PEAK_TO_MEAN:
        refuse_alone("--peak-to-mean", ("--peak-rate", day["peak_rate"]))
    request = deployment_request(question, keywords.pop("replicas", None), **day, request_rate=1.0)
    with progress_bar("simulations") as progress:
        answer = question.ask(capacity.curve, request, progress=progress, **keywords)
    show_answer(answer, question.format)
    if output is not None:
        from capacity.report.tables import render

        write_output(output, render(answer, "html", command=command_line_text()))


def diff(
    question: Question,
    *,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Two deployment files (--output FILE.toml writes one); both get the traffic of the first. "
            "--deployment or --from-launch replaces the first file; engine flags such as -q fp8 replace the second.",
            show_default=False,
        ),
    ] = None,
    **keywords: Any,
) -> None:
    first, second = _two_deployments(question, files or [])
    with progress_bar("pairs of runs") as progress:
        answer = question.ask(capacity.diff, first, second, progress=progress, **keywords)
    show_answer(answer, question.format)


def compare_deployments(
    question: Question,
    *,
    files: Annotated[
        list[str],
        typer.Argument(help="2 to 4 deployment files; those without traffic take that of the first."),
    ],
    output: str | None = None,
    **keywords: Any,
) -> None:
    with progress_bar("deployments") as progress:
        answer = question.ask(capacity.compare_deployments, files, progress=progress, **keywords)
    show_answer(answer, question.format)
    if output is not None:
        from capacity.report.figures.interactive import interactive_page

        write_output(output, interactive_page(answer, command=command_line_text()))


def _two_deployments(question: Question, files: list[str]) -> "tuple[DeploymentFile, DeploymentFile | str]":
    """Return the two deployments that `diff` compares; the flags of traffic and cost apply to the first.

    Raises InvalidInput unless exactly two are given.
    """
    from capacity.deployment import Pool, Service
    from capacity.deployment.launch_command import read_launch
    from capacity.deployment.used_fields import reject_unused_fields

    line = question.from_launch
    stored = question.deployment is not None or line is not None
    places = [question.deployment, *files] if stored else files
    pool, service = dict(question.flags_of(Pool)), question.flags_of(Service)
    common = omit(question.flags, *pool, *service)
    if line is not None and question.deployment is None and read_launch(line).gpu is None and "gpu" in pool:
        common["gpu"] = pool.pop("gpu")  # a launch command has no GPU: both use this one
    changed = [*pool, *service, *(("change",) if question.change else ())]
    if len(places) + bool(changed) != 2:
        given = [*(["--deployment or --from-launch"] if stored else []), *files]
        changes = f" and the change --{with_dashes(changed[0])}" if changed else ""
        raise InvalidInput(
            f"diff needs two deployments, not {', '.join(given) or 'none'}{changes}: give two files, or one file (or "
            "--deployment FILE, --from-launch 'vllm serve ...') and the flags to change, such as -q fp8"
        )
    first = request_of(replace(question, deployment=places[0], flags=common, change=()), as_flags=False)
    if not changed:
        return first, str(places[1])
    if question.change:
        pool["gpu"] = changed_gpu(pool.get("gpu", first.pools[0].gpu), question.change)
    if len(first.pools) > 1:
        return first, first  # `capacity.diff` rejects this
    second = first.model_copy(
        update={
            "pools": (merge_flags(Pool, first.pools[0], pool, as_flags=False),),
            "service": merge_flags(Service, first.service, service, as_flags=False),
        }
    )
    reject_unused_fields(
        "diff", (*second.pools, second.traffic, second.service, second.cost), [*pool, *service]
    )
    return first, second


def sweep(
    question: Question,
    *,
    spec: Annotated[str, typer.Argument(help="A sweep file (TOML).")],
    store: str = "sweep.sqlite",
    workers: WorkersOption = 2,
    cluster: Annotated[str | None, typer.Option(CLUSTER.spelled, "--scheduler", help=CLUSTER.help)] = None,
    retry_failed: bool = False,
    export: str | None = None,
    format: FormatOption = "table",
) -> None:
    with progress_bar("points") as progress:
        swept = capacity.sweep(
            _over_deployment(question, spec),
            store,
            workers=workers,
            cluster=cluster,
            retry_failed=retry_failed,
            export_to=export,
            progress=progress,
        )
    show_answer(swept, format)
    if format == "table":
        show(f"stored in {store}")
    if swept.first_failure is not None:
        print_message(f"first failed point: {swept.first_failure}")
    if swept.failed and swept.failed == swept.points:
        raise typer.Exit(2)


def _over_deployment(question: Question, path: str) -> "SweepSpec":
    """Return the spec of a sweep file. A given deployment sets all fields that the file neither fixes nor varies."""
    from capacity.deployment.used_fields import unused_fields
    from capacity.planning.sweeps.sweep_spec import read_sweep

    spec = read_sweep(path)
    if question.deployment is None and question.from_launch is None:
        return spec
    stored = stored_deployment(question.deployment, question.from_launch, {})
    unused = list(unused_fields(spec.question, stored.specs, stored.fields))
    note("not used by sweep", (f"--{with_dashes(name)}" for name in unused))
    fields = {**({"model": stored.model} if stored.model else {}), **stored.fields}
    fixed = {
        name: json.dumps(value) if isinstance(value, Mapping) else value
        for name, value in fields.items()
        if name not in (*unused, *spec.vary)
    }
    return spec.model_copy(update={"fixed": {**fixed, **spec.fixed}})


def from_launch(
    command: Annotated[
        str, typer.Argument(help="Launch command of a server in quotes, or a file that contains it.")
    ],
    gpu: str | None = None,
    output: str | None = None,
) -> None:
    from capacity.deployment import to_toml
    from capacity.deployment.launch_command import launched_deployment, read_servers
    from capacity.deployment.used_fields import unused_fields
    from capacity.hardware import load_profile

    servers = read_servers(command)
    for read in servers:
        note_command(read)
        if gpu is None and read.gpu is None:
            raise InvalidInput(f"the launch command has {NO_GPU}")
        load_profile(str(gpu or read.gpu))  # raises UnknownName
    deployment = launched_deployment(servers, gpu)
    for pool, read in zip(deployment.pools, servers, strict=True):
        note(
            "not used", (f"--{with_dashes(name)}" for name in unused_fields("simulate", (pool,), read.fields))
        )
    if output is None:
        show(to_toml(deployment))
    else:
        write_output(output, to_toml(deployment))


def cascade(
    *, model: str, options: Mapping[str, Any], chart: str | None = None, format: str, **keywords: Any
) -> None:
    if chart is not None:
        refuse_alone("--output", ("--small", options.get("small")))
    answer = capacity.cascade(model, **keywords, **options)
    show_answer(answer, format)
    if chart is not None:
        from capacity.report.figures.drawing import draw_chart
        from capacity.report.views.cascade import escalation_chart

        write_chart(chart, draw_chart(escalation_chart(answer), answer))
