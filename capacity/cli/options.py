"""What the command line's verbs share: flags made from specs, common options, printing, progress."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from capacity.base.errors import InvalidInput
from capacity.base.keywords import flags_of
from capacity.base.spec import Spec
from capacity.deployment import Pool, Service, Traffic

MODEL_HELP = "A preset (`capacity models`), a Hugging Face id, a config.json, or a folder with one."
FORMATS = ("table", "json", "csv")


def _base_type(annotation: Any) -> type[bool | int | float | str]:
    """The type that typer parses for a field: what of int, float and bool its annotation holds, else text."""
    held = {
        annotation,
        *get_args(annotation),
        *(a for inner in get_args(annotation) for a in get_args(inner)),
    }
    return next((base for base in (bool, int, float) if base in held), str)


def _option(name: str, field: Any, panel: str) -> inspect.Parameter:
    base = _base_type(field.annotation)
    flag = "--" + name.replace("_", "-")
    declared = [f"{flag}/--no-{name.replace('_', '-')}" if base is bool else flag, *flags_of(field)]
    # numbers come as text: the spec parses them, and says more when they are none
    annotation: Any = bool | None if base is bool else str | None
    info = typer.Option(
        *declared,
        help=field.description,
        rich_help_panel=panel,
        show_default=False,
        metavar=None if base is bool else base.__name__,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation, info]
    )


# flags that change nothing without another: which, and what it must be (empty: anything)
NEEDED = {
    **dict.fromkeys(("input_len_cv", "output_len_cv"), ("length_distribution", ("lognormal", "gamma"))),
    **dict.fromkeys(("num_prefixes", "prefix_zipf"), ("random_prefix_len", ())),
    **dict.fromkeys(("on_s", "off_s", "off_request_rate"), ("arrivals", ("on-off",))),
    **dict.fromkeys(("end_request_rate", "ramp_s"), ("arrivals", ("ramp",))),
    **dict.fromkeys(("day_peak_to_mean", "day_length_s"), ("arrivals", ("diurnal",))),
    **dict.fromkeys(("client_zipf", "client_length_cv"), ("clients", ())),
    "think_time_s": ("turns", ()),
    "long_requests": ("max_request_tokens", ()),
    **dict.fromkeys(
        ("decode_router", "kv_transfer_link", "kv_transfer_bytes_per_s"), ("prefill_replicas", ())
    ),
    **dict.fromkeys(("recovery_s", "requests_of_lost_replicas"), ("mean_time_between_failures_s", ())),
    **dict.fromkeys(("kv_offloading_backend", "kv_offloading_bytes_per_s"), ("kv_offloading_size", ())),
}


def refuse_idle(options: Mapping[str, Any]) -> None:
    """Raise InvalidInput for a flag that would change nothing, because the one that it belongs to is not given."""
    for name in options:
        needed, values = NEEDED.get(name, (None, ()))
        if needed is None or (options.get(needed) in values if values else needed in options):
            continue
        flag, other = (f"--{field.replace('_', '-')}" for field in (name, needed))
        which = f" {' or '.join(values)}" if values else ""
        raise InvalidInput(f"{flag} changes nothing without {other}{which}: add it, or leave {flag} out")


Register = Callable[[Callable[..., None]], None]


def verb(app: typer.Typer, *specs: type[Spec], traffic_fields: tuple[str, ...] | None = None) -> Register:
    """Register a function as a verb whose `options` argument collects the flags of `specs` that were given."""

    def register(function: Callable[..., None]) -> None:
        own = [
            p for p in inspect.signature(function, eval_str=True).parameters.values() if p.name != "options"
        ]
        generated = [
            _option(name, field, panel=spec.__name__)
            for spec in specs
            for name, field in spec.model_fields.items()
            if (spec is not Traffic or traffic_fields is None or name in traffic_fields)
            and (spec is not Pool or Service in specs or name not in ("replicas", "role"))
        ]
        names = [p.name for p in generated]

        def command(**given: Any) -> None:
            options = {name: given.pop(name) for name in names}
            options = {name: value for name, value in options.items() if value is not None}
            if given.get("deployment") is None and given.get("from_vllm") is None:  # which may say the rest
                refuse_idle(options)
            function(**given, options=options)

        command.__signature__ = inspect.Signature([*own, *generated])  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in (*own, *generated)}
        command.__doc__ = function.__doc__
        app.command(name=function.__name__.strip("_").replace("_", "-"))(command)

    return register


ModelArgument = Annotated[str, typer.Argument(help=MODEL_HELP)]
OptionalModel = Annotated[str | None, typer.Argument(help=MODEL_HELP, show_default=False)]
FormatOption = Annotated[str, typer.Option("--format", help="table, json or csv.")]
DeploymentOption = Annotated[
    str | None, typer.Option("--deployment", help="Take model, pool, traffic and cost from this TOML file.")
]
WriteOption = Annotated[
    str | None, typer.Option("--write-deployment", help="Also write this deployment to a TOML file.")
]
ProfilesOption = Annotated[str | None, typer.Option("--profiles", help="A folder of further GPU profiles.")]
VllmOption = Annotated[
    str | None, typer.Option("--from-vllm", help="Take model and engine from a pasted 'vllm serve ...'.")
]
DownloadOption = Annotated[
    bool, typer.Option("--download", help="Fetch an unknown org/name's config.json from the Hub.")
]


ReplicationsOption = Annotated[
    int,
    typer.Option(
        "--replications", help="Runs with seeds of their own, alike for all configurations; default 1."
    ),
]


def pasted_command(text: str | None) -> tuple[str | None, dict[str, Any]]:
    """Model and pool fields of a pasted `vllm serve ...`; what it says beyond them is said to be ignored."""
    if text is None:
        return None, {}
    from capacity.deployment.vllm_command import read_vllm_command

    command = read_vllm_command(text)
    if command.ignored:
        print(f"ignored: {', '.join(command.ignored)}", file=sys.stderr)
    return command.model, command.fields


def check_format(format: str) -> str:
    """The format, if there is one of that name; InvalidInput otherwise."""
    if format not in FORMATS:
        raise InvalidInput(f"--format is {format!r}: must be one of {', '.join(FORMATS)}")
    return format


def show(text: str) -> None:
    """Print with one newline at the end."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def write(path: str, text: str) -> None:
    """Write a file; one line where it cannot be."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from None


@contextmanager
def progress_bar(what: str = "requests") -> Iterator[Callable[[int, int], None]]:
    """A callback (done, total) that draws a bar on stderr once a second has passed, if somebody looks at it."""
    started = time.monotonic()
    bar: Any = None
    task: Any = None

    def update(done: int, total: int) -> None:
        nonlocal bar, task
        if bar is None:
            if time.monotonic() - started < 1.0 or not sys.stderr.isatty():
                return
            from rich.console import Console
            from rich.progress import Progress

            bar = Progress(console=Console(stderr=True), transient=True)
            task = bar.add_task(what, total=total)
            bar.start()
        bar.update(task, completed=done)

    try:
        yield update
    finally:
        if bar is not None:
            bar.stop()
