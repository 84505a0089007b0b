"""The planner's verbs of the command line: parse, ask the library, print or write files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from capacity.base.errors import InvalidInput
from capacity.cli.options import (
    DeploymentOption,
    DownloadOption,
    FormatOption,
    ModelArgument,
    OptionalModel,
    ProfilesOption,
    ReplicationsOption,
    VllmOption,
    check_format,
    pasted_command,
    progress_bar,
    show,
    verb,
    write,
)
from capacity.deployment import Billing, Cost, Pool, Traffic
from capacity.planning.space import Search

ARRIVALS = tuple(name for name in Traffic.model_fields if name not in ("batch_size", "scheduling"))

SloOption = Annotated[
    list[str] | None,
    typer.Option("--slo", help="Service levels: ttft:p95:500ms tpot:p99:50ms, ttft:500 (each)."),
]
ReplicasOption = Annotated[
    int | None, typer.Option("--replicas", help="Engines of this kind, fed round robin; default 1.")
]
WorkersOption = Annotated[int, typer.Option("--workers", help="Processes that simulate side by side.")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the `capacity` command."""
    verb(app, Search, Traffic, Cost, traffic_fields=ARRIVALS)(plan)
    verb(app, Pool, Traffic, Cost, Billing, traffic_fields=ARRIVALS)(cost)
    verb(app, Pool, Traffic, Cost, traffic_fields=ARRIVALS)(curve)
    verb(app, Pool, Traffic, Cost, traffic_fields=ARRIVALS)(tornado)
    verb(app, Pool, Traffic, Cost, traffic_fields=ARRIVALS)(advise)
    app.command(name="diff")(diff)
    app.command(name="sweep")(sweep)
    app.command(name="from-vllm")(from_vllm)


def plan(
    *,
    model: ModelArgument,
    options: dict[str, Any],
    slo: SloOption = None,
    workers: WorkersOption = 2,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", help="A folder for the report, the launch command, the manifest and the benchmark."
        ),
    ] = None,
    format: FormatOption = "table",
    profiles: ProfilesOption = None,
    download: DownloadOption = False,
) -> None:
    """What to rent? The cheapest deployments that meet a service level on real traffic, with proof and price."""
    from capacity.planning import plan as api_planning
    from capacity.report import tables as report

    check_format(format)
    with _bar() as progress:
        answer = api_planning.plan(
            model,
            slo=slo or (),
            workers=workers,
            profiles=profiles,
            download=download,
            progress=progress,
            **options,
        )
    show(report.render(answer, format))
    if output is not None:
        from capacity.report.plan_files import write_plan_files

        arrivals = Traffic(**{name: value for name, value in options.items() if name in Traffic.model_fields})
        written = write_plan_files(answer, Path(output), model=model, traffic=arrivals)
        print(f"written: {', '.join(str(path) for path in written)}", file=sys.stderr)
    if not answer.ranked:
        raise typer.Exit(1)


def _asked(
    model: str | None, options: dict[str, Any], pasted: str | None, deployment: str | None
) -> tuple[str, dict[str, Any]]:
    """Model and options: flags over a pasted `vllm serve` over a deployment file; on stderr, what is not used."""
    stored, kept = _stored(deployment)
    named, fields = pasted_command(pasted)
    model = model or named or stored
    if model is None:
        raise InvalidInput(
            "no model: name one (`capacity models` lists them), or give --deployment FILE.toml "
            "or --from-vllm 'vllm serve ...'"
        )
    given = {name: value for name, value in options.items() if value is not None}
    found = {**kept, **fields, **given}
    if "gpu" not in found:
        raise InvalidInput("no GPU: add --gpu NAME (`capacity gpus` lists them)")
    return model, found


def _stored(path: str | None) -> tuple[str | None, dict[str, Any]]:
    """Model and options of a deployment file of one pool."""
    if path is None:
        return None, {}
    from capacity.deployment import read_deployment

    file = read_deployment(path)
    if len(file.pools) > 1:
        raise InvalidInput(
            f"{path} has {len(file.pools)} pools, and this is a question about one: `capacity simulate` and `diff` "
            "answer for all, or keep one pool in the file"
        )
    if file.service.model_fields_set:
        print(f"not used: {', '.join(sorted(file.service.model_fields_set))}", file=sys.stderr)
    specs = (file.pools[0], file.traffic, file.cost)
    return file.model, {name: getattr(spec, name) for spec in specs for name in spec.model_fields_set}


def cost(
    *,
    model: OptionalModel = None,
    options: dict[str, Any],
    deployment: DeploymentOption = None,
    from_vllm: VllmOption = None,
    format: FormatOption = "table",
    profiles: ProfilesOption = None,
    download: DownloadOption = False,
) -> None:
    """What does it cost? The bill at the served and at full load; against an API, on spot, by a deadline."""
    import capacity
    from capacity.report import tables as report

    check_format(format)
    name, fields = _asked(model, options, from_vllm, deployment)
    show(report.render(capacity.cost(name, profiles=profiles, download=download, **fields), format))


def curve(
    *,
    model: OptionalModel = None,
    options: dict[str, Any],
    slo: SloOption = None,
    replicas: ReplicasOption = None,
    confidence: Annotated[float, typer.Option("--confidence", help="By the error of the step model.")] = 0.9,
    rates: Annotated[str | None, typer.Option("--rates", help="Requests/s to look at: 1,2,5,10.")] = None,
    requests_per_user_hour: Annotated[
        float | None, typer.Option("--requests-per-user-hour", help="To count users.")
    ] = None,
    peak_rate: Annotated[
        float | None, typer.Option("--peak-rate", help="Requests/s at noon: asks for replicas by the hour.")
    ] = None,
    peak_to_mean: Annotated[float, typer.Option("--peak-to-mean", help="Of that day's rates.")] = 1.6,
    hourly_rates: Annotated[
        str | None, typer.Option("--hourly-rates", help="24 rates in place of a peak.")
    ] = None,
    replications: Annotated[
        int, typer.Option("--replications", help="Draws of generated traffic, for the interval of sampling.")
    ] = 3,
    output: Annotated[str | None, typer.Option("--output", help="An HTML file with the chart.")] = None,
    deployment: DeploymentOption = None,
    from_vllm: VllmOption = None,
    format: FormatOption = "table",
    profiles: ProfilesOption = None,
    download: DownloadOption = False,
) -> None:
    """How much can it take? Latency against load, the knee, the highest rate in the SLO, users, replicas by hour."""
    from capacity.planning import curve as api_curve
    from capacity.report import tables as report

    check_format(format)
    name, fields = _asked(model, options | {"replicas": replicas}, from_vllm, deployment)
    with progress_bar("simulations") as progress:
        answer = api_curve.curve(
            name,
            slo=slo or (),
            confidence=confidence,
            rates=numbers("--rates", rates),
            requests_per_user_hour=requests_per_user_hour,
            peak_rate=peak_rate,
            peak_to_mean=peak_to_mean,
            hourly_rates=numbers("--hourly-rates", hourly_rates),
            replications=replications,
            profiles=profiles,
            download=download,
            progress=progress,
            **fields,
        )
    show(report.render(answer, format))
    if output is not None:
        from capacity.report.plan_html import curve_html

        write(output, curve_html(answer))


def tornado(
    *,
    model: OptionalModel = None,
    options: dict[str, Any],
    replicas: ReplicasOption = None,
    deployment: DeploymentOption = None,
    from_vllm: VllmOption = None,
    format: FormatOption = "table",
    profiles: ProfilesOption = None,
    download: DownloadOption = False,
) -> None:
    """What does the answer hang on? Cost and p95 when each input is wrong by 20 %."""
    import capacity
    from capacity.report import tables as report

    check_format(format)
    name, fields = _asked(model, options | {"replicas": replicas}, from_vllm, deployment)
    with progress_bar("inputs") as progress:
        answer = capacity.tornado(name, profiles=profiles, download=download, progress=progress, **fields)
    show(report.render(answer, format))


def advise(
    *,
    model: OptionalModel = None,
    options: dict[str, Any],
    replicas: ReplicasOption = None,
    deployment: DeploymentOption = None,
    from_vllm: VllmOption = None,
    format: FormatOption = "table",
    profiles: ProfilesOption = None,
    download: DownloadOption = False,
) -> None:
    """What would help here? The optimisation checklist, each line simulated for this deployment."""
    import capacity
    from capacity.report import tables as report

    check_format(format)
    name, fields = _asked(model, options | {"replicas": replicas}, from_vllm, deployment)
    with progress_bar("changes") as progress:
        answer = capacity.advise(name, profiles=profiles, download=download, progress=progress, **fields)
    show(report.render(answer, format))


def diff(
    first: Annotated[str, typer.Argument(help="A deployment file (--write-deployment makes one).")],
    second: Annotated[str, typer.Argument(help="Another; the traffic is the first one's.")],
    replications: ReplicationsOption = 1,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of the traffic, in place of the file's.", min=0)
    ] = None,
    format: FormatOption = "table",
    profiles: ProfilesOption = None,
    download: DownloadOption = False,
) -> None:
    """What is the difference? Two deployments on the same arrivals, request by request, with confidence."""
    import capacity
    from capacity.report import tables as report

    check_format(format)
    answer = capacity.diff(
        first, second, replications=replications, seed=seed, profiles=profiles, download=download
    )
    show(report.render(answer, format))


def sweep(
    spec: Annotated[str, typer.Argument(help="A sweep file (TOML).")],
    store: Annotated[
        str, typer.Option("--store", help="The SQLite file that keeps every point.")
    ] = "sweep.sqlite",
    workers: WorkersOption = 2,
    scheduler: Annotated[
        str | None,
        typer.Option("--scheduler", help="A Dask scheduler, tcp://host:port, in place of local workers."),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try failed points again.")] = False,
    export: Annotated[
        str | None, typer.Option("--export", help="Also write the rows: FILE.csv, .parquet or .html.")
    ] = None,
    format: FormatOption = "table",
) -> None:
    """Many points: a grid, zipped or random axes, over processes or a cluster, resumed where it was stopped."""
    from capacity.planning.sweeping.run import sweep as run

    check_format(format)
    with progress_bar("points") as progress:
        swept = run(
            spec,
            store,
            workers=workers,
            scheduler=scheduler,
            retry_failed=retry_failed,
            export_to=export,
            progress=progress,
        )
    if format != "table":
        from capacity.report import tables as report

        show(report.render(swept, format))
        return
    told = f"{swept.done:,} done, {swept.failed:,} failed, {swept.skipped:,} were there"
    show(f"{swept.points:,} points: {told}; in {store}")
    if swept.first_failure is not None:
        print(f"the first that failed: {swept.first_failure}", file=sys.stderr)


def from_vllm(
    command: Annotated[str, typer.Argument(help="A pasted 'vllm serve ...', in quotes.")],
    gpu: Annotated[str, typer.Option("--gpu", help="The GPU that it runs on.")],
    output: Annotated[str | None, typer.Option("--output", help="Write the deployment file here.")] = None,
) -> None:
    """Read a pasted `vllm serve ...` as a deployment file, which every verb takes by --deployment."""
    from capacity.deployment import DeploymentFile, to_toml
    from capacity.deployment.vllm_command import read_vllm_command

    read = read_vllm_command(command)
    deployment = DeploymentFile(schema="capacity/deployment/v1", model=read.model, pools=(read.pool(gpu),))
    if read.ignored:
        print(f"ignored: {', '.join(read.ignored)}", file=sys.stderr)
    if output is None:
        show(to_toml(deployment))
    else:
        write(output, to_toml(deployment))


@contextmanager
def _bar() -> Iterator[Callable[[Any], None] | None]:
    """A progress bar on stderr with the best answer so far; None where nobody is watching."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[best]}"), console=Console(stderr=True)) as progress:
        task = progress.add_task("survey", total=None, best="")

        def update(snapshot: Any) -> None:
            best = "" if snapshot.best is None else f"so far: {snapshot.best.label}"
            progress.update(
                task,
                description=snapshot.stage,
                completed=snapshot.settled,
                total=snapshot.engines,
                best=best,
            )

        yield update


def numbers(flag: str, text: str | None) -> list[float] | None:
    """A list of numbers as `1,2,5`; InvalidInput for anything else."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(f"{flag} is {text!r}: give numbers, as 1,2,5") from None
