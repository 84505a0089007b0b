"""The command line: parse, call the library, print. No arithmetic lives here.

Exit codes: 0 answered, 1 does not fit or SLO unmet, 2 bad input.
"""

from __future__ import annotations

import difflib
import sys
from itertools import pairwise
from typing import Annotated, Any, NoReturn

import typer

from capacity.base.errors import CapacityError, InvalidInput
from capacity.base.keywords import split
from capacity.base.spec import Spec
from capacity.cli.dashboard import register as register_dashboard
from capacity.cli.options import (
    DeploymentOption,
    DownloadOption,
    FormatOption,
    OptionalModel,
    ProfilesOption,
    ReplicationsOption,
    VllmOption,
    WriteOption,
    check_format,
    pasted_command,
    progress_bar,
    show,
    verb,
)
from capacity.cli.planning import register as register_planning
from capacity.cli.techniques import register as register_techniques
from capacity.cli.validation import register as register_validation
from capacity.deployment import (
    Cost,
    DeploymentFile,
    Pool,
    Service,
    Traffic,
    build,
    check_deployment,
    read_deployment_fields,
)
from capacity.deployment import write_deployment as write_deployment_file

app = typer.Typer(
    name="capacity",
    help="Capacity planning for LLM inference: which GPUs, how many, configured how, at what cost, and how sure.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _request(
    model: str | None,
    options: dict[str, Any],
    deployment: str | None,
    write_deployment: str | None,
    from_vllm: str | None,
) -> DeploymentFile:
    """Flags over a pasted command over the deployment file, checked; also written to a file when asked."""
    fields: dict[str, Any] = {} if deployment is None else read_deployment_fields(deployment)
    if deployment is not None:
        check_deployment(fields, deployment)
    pools = [dict(pool) for pool in fields.get("pools", [{}])]
    pool, traffic, service, cost = split(options, Pool, Traffic, Service, Cost)
    named, pasted = pasted_command(from_vllm)
    pool = pasted | pool
    if pool and len(pools) > 1:
        raise InvalidInput(
            f"{deployment} has {len(pools)} pools: change them there, not by --{_dashed(next(iter(pool)))}"
        )
    pools[0] |= pool
    if "gpu" not in pools[0]:
        raise InvalidInput("no GPU: add --gpu NAME (`capacity gpus` lists them)")
    name = model or named or fields.get("model")
    if name is None:
        raise InvalidInput(
            "no model: name one (`capacity models` lists them), or give --deployment FILE.toml "
            "or --from-vllm 'vllm serve ...'"
        )
    request: DeploymentFile = build(
        DeploymentFile,
        {
            "model": name,
            "pools": [build(Pool, pool, flags=True) for pool in pools],
            "traffic": build(Traffic, fields.get("traffic", {}) | traffic, flags=True),
            "service": build(Service, fields.get("service", {}) | service, flags=True),
            "cost": build(Cost, fields.get("cost", {}) | cost, flags=True),
        },
    )
    if write_deployment:
        write_deployment_file(request, write_deployment)
    return request


def _only_pool(request: DeploymentFile) -> dict[str, Any]:
    """The pool of a question about one engine. Raises InvalidInput where there are several."""
    if len(request.pools) > 1:
        raise InvalidInput(
            f"the deployment has {len(request.pools)} pools, and this is a question about one: `capacity simulate` "
            "answers for all, or keep one pool in the file"
        )
    return _given(request.pools[0])


def _dashed(name: str) -> str:
    return name.replace("_", "-")


@verb(app, Pool)
def fit(
    *,
    model: OptionalModel = None,
    options: dict[str, Any],
    format: FormatOption = "table",
    deployment: DeploymentOption = None,
    from_vllm: VllmOption = None,
    write_deployment: WriteOption = None,
    profiles: ProfilesOption = None,
    download: DownloadOption = False,
) -> None:
    """Does it fit? Memory per GPU, KV capacity, longest context, most concurrent requests."""
    from capacity.answers import questions as api

    request = _request(model, options, deployment, write_deployment, from_vllm)
    answer = api.fit(request.model, **_only_pool(request), profiles=profiles, download=download)
    _show(answer, format)
    if not answer.fits:
        raise typer.Exit(1)


@verb(app, Pool, Traffic, Cost, traffic_fields=("input_len", "output_len", "batch_size", "concurrency"))
def estimate(
    *,
    model: OptionalModel = None,
    options: dict[str, Any],
    format: FormatOption = "table",
    deployment: DeploymentOption = None,
    from_vllm: VllmOption = None,
    write_deployment: WriteOption = None,
    profiles: ProfilesOption = None,
    download: DownloadOption = False,
) -> None:
    """How fast, and at what cost? TTFT, TPOT, throughput at a batch size or a concurrency, in closed form."""
    from capacity.answers import questions as api

    request = _request(model, options, deployment, write_deployment, from_vllm)
    traffic = {name: value for name, value in _given(request.traffic).items() if name in api.ESTIMATE_TRAFFIC}
    answer = api.estimate(
        request.model,
        **_only_pool(request),
        **traffic,
        **_given(request.cost),
        profiles=profiles,
        download=download,
    )
    _show(answer, format)


@verb(app, Pool, Traffic, traffic_fields=("input_len", "output_len", "batch_size", "concurrency"))
def explain(
    *,
    subject: Annotated[
        str | None, typer.Argument(help="A model; or a term, such as ttft, ridge, acceptance.")
    ] = None,
    model: Annotated[
        str | None, typer.Argument(help="With a term: the model whose numbers to put in.", show_default=False)
    ] = None,
    options: dict[str, Any],
    format: FormatOption = "table",
    deployment: DeploymentOption = None,
    from_vllm: VllmOption = None,
    write_deployment: WriteOption = None,
    profiles: ProfilesOption = None,
    download: DownloadOption = False,
) -> None:
    """Where does the time go, and what would help? Shares by bound, and what +10 % of each does. Or: what is TTFT?"""
    from capacity.answers import questions as api
    from capacity.cli.techniques import explain_term
    from capacity.model import model_names
    from capacity.techniques.glossary import find_term, is_term

    if subject is not None and is_term(subject):
        request_of = None
        if model is not None or deployment is not None:
            request_of = _request(model, options, deployment, write_deployment, from_vllm)
        explain_term(subject, request_of, format)
        return
    if model is not None:
        raise InvalidInput(f"{subject!r} is no term, so {model!r} has no place: name one model")
    on_a_gpu = deployment or from_vllm or "gpu" in options
    if subject is not None and not on_a_gpu and subject not in model_names():
        find_term(subject)  # a term was meant
    request = _request(subject, options, deployment, write_deployment, from_vllm)
    traffic = {name: value for name, value in _given(request.traffic).items() if name in api.ESTIMATE_TRAFFIC}
    pool = _only_pool(request)
    _show(api.explain(request.model, **pool, **traffic, profiles=profiles, download=download), format)


@verb(app, Pool, Traffic, Service)
def simulate(
    *,
    model: OptionalModel = None,
    options: dict[str, Any],
    goodput: Annotated[
        list[str] | None, typer.Option("--goodput", help="SLOs per request in ms: ttft:500 tpot:50.")
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option("--slo", help="SLOs of the run: ttft:p95:500ms; exit code 1 where one is unmet."),
    ] = None,
    replications: ReplicationsOption = 1,
    save_trace: Annotated[
        str | None,
        typer.Option("--save-trace", help="Write the requests as a trace that `vllm bench serve` replays."),
    ] = None,
    records: Annotated[
        str | None, typer.Option("--records", help="Write every request to this CSV file.")
    ] = None,
    series: Annotated[
        str | None, typer.Option("--series", help="Write batch, queue and KV use over time to this CSV file.")
    ] = None,
    sample_interval: Annotated[
        float | None,
        typer.Option("--sample-interval", help="Seconds between samples of --series; default 1.", min=1e-6),
    ] = None,
    timeline: Annotated[
        str | None,
        typer.Option("--timeline", help="Write every step as a Chrome trace (Perfetto) to this file."),
    ] = None,
    format: FormatOption = "table",
    deployment: DeploymentOption = None,
    from_vllm: VllmOption = None,
    write_deployment: WriteOption = None,
    profiles: ProfilesOption = None,
    download: DownloadOption = False,
) -> None:
    """What would users see? Replays a trace or generated arrivals through the engine's scheduler, step by step."""
    from capacity.answers import questions as api
    from capacity.simulator import exports
    from capacity.simulator.timeline import Timeline

    request = _request(model, options, deployment, write_deployment, from_vllm)
    observer = Timeline() if timeline else None
    with progress_bar() as progress:
        answer = api.simulate(
            request.model,
            **_given(request.pools[0]),
            **_given(request.traffic),
            **_given(request.service),
            other_pools=request.pools[1:],
            goodput=goodput,
            slo=slo,
            replications=replications,
            save_trace=save_trace,
            sample_interval_s=(sample_interval or 1.0) if series else None,
            observer=observer,
            profiles=profiles,
            download=download,
            progress=progress,
        )
    if records:
        exports.write_records(answer.run, records)
    if series:
        exports.write_series(answer.run, series)
    if observer and timeline:
        exports.write_timeline(observer, answer.run, timeline)
    _show(answer, format)
    if not all(level.met for level in answer.slos):
        raise typer.Exit(1)
    if answer.run.status != "complete":
        _fail(
            f"{answer.run.status}: {answer.run.reason}", 1 if answer.run.status == "stalled" else INTERRUPTED
        )


@app.command()
def schedule(
    file: Annotated[str, typer.Argument(help="A scenario (JSON), or many (JSON lines), plain or gzipped.")],
    policy: Annotated[
        str, typer.Option("--policy", help="vllm-v1, vllm-v1-async, vllm-v0, sglang-radix.")
    ] = "vllm-v1",
    format: Annotated[str, typer.Option("--format", help="jsonl, table or gantt.")] = "jsonl",
) -> None:
    """What does the scheduler decide, step by step? Written scenarios in, the reference schedules' format out."""
    import json

    from capacity.report import schedule as schedule_report
    from capacity.simulator.scenarios import read_scenarios, schedule_scenario

    if format not in ("jsonl", "table", "gantt"):
        raise InvalidInput(f"--format is {format!r}: must be one of jsonl, table, gantt")
    for scenario in read_scenarios(file):
        answer = schedule_scenario(scenario, policy)
        if format == "jsonl":
            show(json.dumps(answer))
        elif policy == "sglang-radix":
            show(schedule_report.radix_table(answer))
        else:
            show(schedule_report.table(answer) if format == "table" else schedule_report.gantt(answer))


@app.command()
def models(format: FormatOption = "table") -> None:
    """The model presets, with parameters and KV bytes per token."""
    from capacity.answers import questions as api
    from capacity.report import tables as report

    show(report.listing(api.models(), check_format(format), title="Models"))


@app.command()
def gpus(format: FormatOption = "table", profiles: ProfilesOption = None) -> None:
    """The GPU profiles, with memory, bandwidth and dense compute rates."""
    from capacity.answers import questions as api
    from capacity.report import tables as report

    show(report.listing(api.gpus(profiles=profiles), check_format(format), title="GPUs"))


@app.command()
def schema(
    name: Annotated[
        str | None, typer.Argument(help="A verb (fit, estimate, plan, cost, ...), deployment or sweep-file.")
    ] = None,
) -> None:
    """The JSON schema of a verb's answer, or of a file; without a name, which there are."""
    import json

    from capacity.report.schemas import json_schema, schema_names

    show("\n".join(schema_names()) if name is None else json.dumps(json_schema(name), indent=2))


register_techniques(app)
register_planning(app)
register_validation(app)
register_dashboard(app)


def _given(spec: Spec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.model_fields_set}


def _show(answer: Any, format: str) -> None:
    from capacity.report import tables as report

    show(report.render(answer, check_format(format)))


VALUE_LISTS = ("--goodput", "--slo")
INTERRUPTED = 130  # exit code of what Ctrl-C ended, as shells have it


def _normalized(arguments: list[str]) -> list[str]:
    """vLLM's spellings in ours: `--max_num_seqs`, and `--goodput ttft:500 tpot:50` with several values."""
    result: list[str] = []
    repeating: str | None = None
    for before, argument in pairwise(("", *arguments)):
        if not argument and before.startswith("--"):
            raise InvalidInput(f"{before} is empty: give it a value, or leave it out")
        if argument.startswith("--"):
            name, separator, value = argument.partition("=")
            if separator and not value:
                raise InvalidInput(f"{name} is empty: give it a value, or leave it out")
            argument = name.replace("_", "-") + separator + value
            repeating = None
        elif argument.startswith("-") and argument != "-":
            repeating = None
        elif repeating and ":" in argument and result[-1] not in VALUE_LISTS:
            result.append(repeating)
        result.append(argument)
        if argument in VALUE_LISTS:
            repeating = argument
    return result


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        show(f"llm-capacity {installed('llm-capacity')}")
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        show(context.get_help())
        raise typer.Exit(2)


def main() -> None:
    """The `capacity` command."""
    try:
        code = app(args=_normalized(sys.argv[1:]), prog_name="capacity", standalone_mode=False)
        if code == INTERRUPTED:  # the parser turns Ctrl-C into a code
            raise KeyboardInterrupt
        sys.stdout.flush()
    except CapacityError as error:
        _fail(f"{type(error).__name__}: {error}", error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        if not error.format_message():  # the help is printed already
            sys.exit(2)
        _fail(_usage(error), 2)
    sys.exit(code if isinstance(code, int) else 0)


def _usage(error: Any) -> str:
    """A parser's complaint in one line, with the nearest flag that exists."""
    message = str(error.format_message()).rstrip(".")
    option = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    if option and context is not None:
        known = [
            flag
            for parameter in context.command.params
            for flag in (*parameter.opts, *parameter.secondary_opts)
        ]
        if close := difflib.get_close_matches(option, known, n=1):
            message += f"; did you mean {close[0]}?"
    verb = context.command_path if context is not None else "capacity"
    return f"{message} (`{verb} --help` lists what there is)"


def _fail(message: str, exit_code: int) -> NoReturn:
    print(message.replace("\n", " "), file=sys.stderr)
    sys.exit(exit_code)
