"""Verbs of the validation harness: parse, call `capacity_validate` (imported only when one of them runs), print."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from capacity.base.errors import InvalidInput
from capacity.cli.options import MODEL_HELP, check_format, command_line_text, progress_bar, show, with_dashes
from capacity.cli.question import Question, StoredDeployment, note, stored_deployment

NOT_LAUNCHED = ("gpu", "engine", "model", "replicas", "role", "route_up_to_tokens", "route_up_to_requests")
REPORT_FORMATS = ("table", "json")
ReportFormat = Annotated[str, typer.Option("--format", help="Output format: table or json.")]


def validate(
    question: Question,
    *,
    budget: str | None = None,
    out: str,
    gpu: str | None = None,
    engine: str | None = None,
    model: str | None = None,
    format: ReportFormat = "table",
    profiles: str | None = None,
    **keywords: Any,
) -> None:
    from capacity_validate import validate as run
    from capacity_validate.campaigns import parse_budget
    from capacity_validate.html_report import summary_lines
    from capacity_validate.report_data import replace_non_finite

    check_format(format, REPORT_FORMATS)
    served: Mapping[str, Any] = {} if model is None else {"model": model}
    if question.deployment is not None or question.from_launch is not None:
        stored = stored_deployment(question.deployment, question.from_launch, {})
        gpu = gpu or stored.fields.get("gpu")
        served = {**_launch_settings(stored, serving=engine is not None), **served}
    with progress_bar() as progress:
        report = run(
            budget_s=parse_budget(budget) if budget else None,
            out=out,
            gpu=gpu,
            profiles=(profiles,) if profiles else (),
            engine=engine,
            **keywords,
            **served,
            progress=lambda done, total, _: progress(done, total) if total else None,
        )
    show(
        json.dumps(replace_non_finite(report.to_dict()), indent=2)
        if format == "json"
        else "\n".join(summary_lines(report, out))
    )
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _launch_settings(stored: StoredDeployment, *, serving: bool) -> Mapping[str, Any]:
    """Return the model and settings with which to launch a real engine; report unused settings on stderr."""
    from capacity.deployment import Pool
    from capacity.model import load_model

    settings = {
        name: value
        for name, value in stored.fields.items()
        if serving and name in Pool.model_fields and name not in NOT_LAUNCHED
    }
    unused = stored.fields.keys() - settings.keys() - {"gpu"}
    note("not used by validate", (f"--{with_dashes(name)}" for name in stored.fields if name in unused))
    if not serving or stored.model is None:
        return {}
    return {"model": load_model(stored.model).hf_id or stored.model, "engine_settings": settings}


def calibrate(
    results: Annotated[
        list[str] | None,
        typer.Argument(
            help="Benchmark results, engine logs, scrapes of /metrics (files or http addresses), or measurements of "
            "`capacity validate`; with --suggest the MODEL.",
            show_default=False,
        ),
    ] = None,
    *,
    options: Mapping[str, Any],
    model: Annotated[str | None, typer.Option("--model", help=MODEL_HELP)] = None,
    suggest: bool = False,
    deployment: str | None = None,
    format: ReportFormat = "table",
    **keywords: Any,
) -> None:
    from capacity_validate import calibrate as run
    from capacity_validate import suggest_runs

    check_format(format, REPORT_FORMATS)
    results = results or []
    if suggest:
        named = results or ([] if model is None else [model])
        if len(named) != 1:
            raise InvalidInput(f"--suggest takes one MODEL and its load, not {len(named)} arguments")
        answer = suggest_runs(named[0], deployment=deployment, **keywords, **options)
    else:
        _refuse_models(results)
        answer = run(results, model=model, **keywords, **options)
    show(json.dumps(answer.to_dict(), indent=2) if format == "json" else "\n".join(answer.lines()))


def _refuse_models(results: list[str]) -> None:
    """Raise InvalidInput if a result file is in fact the name of a model."""
    from capacity.base.external_files import outside_path
    from capacity.model import is_known

    for word in results:
        if is_known(word) and not outside_path(word).exists():
            raise InvalidInput(f"{word!r} is a model, not a result file: give it with --model {word}")


def compare(
    results: Annotated[list[str], typer.Argument(help="Result files of a benchmark client.")],
    *,
    options: Mapping[str, Any],
    model: Annotated[str | None, typer.Option("--model", help=MODEL_HELP)] = None,
    format: str,
    **keywords: Any,
) -> None:
    from capacity_validate import compare as run

    from capacity.report.tables import render

    check_format(format)
    _refuse_models(results)
    answer = run(results, model=model, **keywords, **options)
    show(render(answer, format, command=command_line_text()))
