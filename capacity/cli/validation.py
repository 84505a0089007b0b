"""Commands of the validation harness: parse, call `capacity_validate` (imported only when one of them runs), print."""

import json
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capacity.base.errors import InvalidInput
from capacity.base.output_files import write_file
from capacity.base.progress import progress_bar
from capacity.cli.options import (
    MODEL_HELP,
    check_format,
    command_line_text,
    print_message,
    show,
    with_dashes,
)
from capacity.cli.question import Question, StoredDeployment, note, stored_deployment

if TYPE_CHECKING:
    from capacity_validate.watch_metrics import MetricsServer
    from capacity_validate.watch_report import WatchReport
    from capacity_validate.watching import Watcher

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
    submit: bool = False,
    format: ReportFormat = "table",
    profiles: str | None = None,
    **keywords: Any,
) -> None:
    from capacity_validate import validate as run
    from capacity_validate.campaigns import parse_budget
    from capacity_validate.html_report import summary_lines
    from capacity_validate.report_data import replace_non_finite

    check_format(format, REPORT_FORMATS)
    if submit and (Path(out) / "report.json").is_file():
        _submit(Path(out))
        return
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
    if submit:
        _submit(Path(out))
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _submit(folder: Path) -> None:
    """Pack the results in `folder`, check the archive as its recipient will, and exit with code 1 if it is rejected."""
    from capacity_validate.submission import check_submission, pack_submission, submission_lines

    path = pack_submission(folder)
    checks = check_submission(path)
    show("\n".join([*submission_lines(checks), f"written: {path}"]))
    if not checks[-1].passed:
        raise typer.Exit(1)


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
            "`capacity validate`; with --suggest, the model.",
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
        if keywords.pop("overwrite", False):
            raise InvalidInput("--suggest writes no profile: leave --overwrite out")
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
    results: Annotated[
        list[str],
        typer.Argument(
            help="Benchmark results, and optionally the engine's log and scrapes of /metrics (files or http addresses)."
        ),
    ],
    *,
    options: Mapping[str, Any],
    model: Annotated[str | None, typer.Option("--model", help=MODEL_HELP)] = None,
    format: str,
    **keywords: Any,
) -> None:
    from capacity_validate import compare as run

    from capacity.report.tables import render

    _refuse_models(results)
    answer = run(results, model=model, **keywords, **options)
    show(render(answer, format, command=command_line_text()))


def watch(
    source: Annotated[
        str,
        typer.Argument(help="Address of /metrics or of Prometheus' query_range, or a file with its answer."),
    ],
    *,
    options: Mapping[str, Any],
    slo: Annotated[
        list[str] | None, typer.Option("--slo", help="SLO, such as ttft:p95:1s or tpot:p95:40ms.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help=MODEL_HELP)] = None,
    interval: str = "60s",
    once: bool = False,
    period: str | None = None,
    listen: str | None = None,
    state: str | None = None,
    changed: list[str] | None = None,
    format: str,
    profiles: str | None = None,
    download: bool = False,
    window: str = "1s",
    metrics_file: str | None = None,
    alert_rules: str | None = None,
    grafana_dashboard: str | None = None,
    report_file: str | None = None,
) -> None:
    from capacity_validate.campaigns import parse_budget
    from capacity_validate.scrape_history import read_state
    from capacity_validate.watch_metrics import MetricsServer
    from capacity_validate.watch_metrics import alert_rules as rules
    from capacity_validate.watch_metrics import grafana_dashboard as dashboard
    from capacity_validate.watching import Watcher

    from capacity.report.tables import render
    from capacity.workload import parse_slos

    pause_s = parse_budget(interval, "--interval")
    until_s = time.monotonic() + (math.inf if period is None else parse_budget(period, "--for"))
    watcher = Watcher(
        source=source,
        slos=parse_slos(slo or ()),
        model=model,
        options=dict(options),
        changed=tuple(changed or ()),
        profiles=profiles,
        download=download,
        window_s=parse_budget(window, "--window"),
        history=() if state is None else read_state(state),
    )
    for path, text in ((alert_rules, rules), (grafana_dashboard, dashboard)):
        if path is not None:
            write_file(path, text())
    server = None if listen is None else MetricsServer(listen)
    publish = partial(_publish, server=server, metrics_file=metrics_file, report_file=report_file)
    if once or "://" not in source:
        until_s = -math.inf
    report = _follow(watcher, publish, state, pause_s=pause_s, until_s=until_s)
    show(watcher.missing if report is None else render(report, format, command=command_line_text()))
    if report is not None and not report.healthy:
        raise typer.Exit(1)


def _follow(
    watcher: "Watcher",
    publish: Callable[["WatchReport"], None],
    state: str | None,
    *,
    pause_s: float,
    until_s: float,
) -> "WatchReport | None":
    """Scrape the server every `pause_s` seconds, at least once, and publish and return its latest report.

    `until_s`: value of `time.monotonic` at which to stop. Returns None if there are too few scrapes for a report.
    """
    from capacity_validate.watch_report import status_line

    watcher.scrape(state)
    while True:
        report = watcher.report()
        if report is not None:
            publish(report)
        if time.monotonic() + pause_s > until_s:
            return report
        show(watcher.missing.partition(";")[0] if report is None else status_line(report))
        time.sleep(pause_s)
        try:
            watcher.scrape(state)
        except InvalidInput as error:  # the server restarts
            print_message(str(error))


def _publish(
    report: "WatchReport",
    *,
    server: "MetricsServer | None",
    metrics_file: str | None,
    report_file: str | None,
) -> None:
    """Write a report to the metrics endpoint, the metrics file and the HTML file that the user requested."""
    from capacity_validate.watch_metrics import prometheus_text

    from capacity.report.tables import render

    if server is not None:
        server.text = prometheus_text(report)
    if metrics_file is not None:
        write_file(metrics_file, prometheus_text(report))
    if report_file is not None:
        write_file(report_file, render(report, "html", command=command_line_text()))
