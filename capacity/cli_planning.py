"""The planner's verbs of the command line: parse, ask the library, print or write files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from capacity.deployment import Cost, Traffic
from capacity.errors import InvalidInput
from capacity.planning.space import Search

FORMATS = ("table", "json", "csv")
ARRIVALS = tuple(name for name in Traffic.model_fields if name not in ("batch_size", "scheduling"))

Verb = Callable[..., Callable[[Callable[..., None]], None]]
ModelArgument = Annotated[
    str, typer.Argument(help="A preset, a Hugging Face id, a config.json, or a folder with one.")
]
FormatOption = Annotated[str, typer.Option("--format", help="table, json or csv.")]
ProfilesOption = Annotated[str | None, typer.Option("--profiles", help="A folder of further GPU profiles.")]
DownloadOption = Annotated[
    bool, typer.Option("--download", help="Fetch an unknown org/name's config.json from the Hub.")
]
SloOption = Annotated[
    list[str] | None,
    typer.Option("--slo", help="Service levels: ttft:p95:500ms tpot:p99:50ms, ttft:500 (each)."),
]
FactorOption = Annotated[float, typer.Option("--rate-factor", help="Arrivals so many times as fast.")]
WorkersOption = Annotated[int, typer.Option("--workers", help="Processes that simulate side by side.")]


def register(app: typer.Typer, verb: Verb) -> None:
    """Add the verbs to the `capacity` command; `verb` makes flags of a spec's fields."""
    del app
    verb(Search, Traffic, Cost, traffic_fields=ARRIVALS)(plan)


def plan(
    *,
    model: ModelArgument,
    options: dict[str, Any],
    slo: SloOption = None,
    rate_factor: FactorOption = 1.0,
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
    from capacity import api_planning, report_planning

    check_format(format)
    answer = api_planning.plan(
        model,
        slo=slo or (),
        rate_factor=rate_factor,
        workers=workers,
        profiles=profiles,
        download=download,
        progress=_said() if sys.stderr.isatty() else None,
        **options,
    )
    show(report_planning.render(answer, format))
    if output is not None:
        from capacity.plan_files import write_plan_files

        arrivals = Traffic(**{name: value for name, value in options.items() if name in Traffic.model_fields})
        written = write_plan_files(
            answer, Path(output), model=model, traffic=arrivals, rate_factor=rate_factor
        )
        print(f"written: {', '.join(str(path) for path in written)}", file=sys.stderr)
    if not answer.ranked:
        raise typer.Exit(1)


def _said() -> Callable[[Any], None]:
    """A callback that says on stderr when the answer improves."""
    last: list[Any] = [None]

    def update(snapshot: Any) -> None:
        if snapshot.best is not None and snapshot.best != last[0]:
            last[0] = snapshot.best
            print(
                f"{snapshot.elapsed_s:6.1f} s, {snapshot.simulated} simulated: {snapshot.best.label}",
                file=sys.stderr,
            )

    return update


def check_format(format: str) -> None:
    """InvalidInput for a format that there is not."""
    if format not in FORMATS:
        raise InvalidInput(f"--format is {format!r}: must be one of {', '.join(FORMATS)}")


def show(text: str) -> None:
    """Print with one newline at the end."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
