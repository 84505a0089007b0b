"""The verbs of the registry as commands of the parser. The flags of a verb are generated when it is called."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin

import typer
import typer.core
import typer.main

from capacity.base.errors import InvalidInput
from capacity.base.plugins import plugin_names, plugin_package
from capacity.base.registry import BY_NAME, GROUPS, SHARED_OPTIONS, STORED, Verb, find_verb
from capacity.cli import options as common
from capacity.cli.help import VerbCommand
from capacity.cli.options import with_dashes
from capacity.cli.output_flag import with_output_flag
from capacity.cli.question import NO_MODEL, Question, changed_gpu, note, stored_deployment
from capacity.cli.user_defaults import applied, apply_defaults

if TYPE_CHECKING:
    from capacity.base.spec import Spec
    from capacity.cli.question_flags import Keyword

Parameter = inspect.Parameter

TEXT, TEXTS, SWITCH, COUNT = str | None, list[str] | None, bool, int | None
KINDS: Mapping[str, Any] = {"text": TEXT, "texts": TEXTS, "switch": SWITCH, "count": COUNT}
# shared options that are also parameters of verb functions, with their defaults
TYPED_OPTIONS: Mapping[str, tuple[Any, object]] = {
    "model": (common.OptionalModel, None),
    "format": (common.FormatOption, "table"),
    "cluster": (common.ClusterOption, None),
    "workers": (common.WorkersOption, 2),
    "engine_loop": (common.EngineLoopOption, "auto"),
    "scheduler": (common.SchedulerOption, None),
}
QUESTION_FIELDS = {field.name for field in fields(Question)}
CURRENCY_VERBS = SHARED_OPTIONS["currency"]["verbs"].split()  # verbs whose answers contain amounts of money
SEARCH_VERBS = ("plan", "fleet")  # these choose GPUs, parallelism and formats themselves
RESULT_VERBS = ("compare", "calibrate", "watch")  # the result files say what was sent
SEARCH_POOL_FIELDS = ("engine", "max_model_len", "gpu_memory_utilization", "language_model_only")


def register(app: typer.Typer) -> None:
    """Add every verb of the registry to the `capacity` command, in the groups of its help."""
    grouped = {name: group for group, names in GROUPS.items() for name in names}
    for name in (*grouped, *(BY_NAME.keys() - grouped.keys())):
        defer(app, BY_NAME[name], grouped.get(name))


def defer(app: typer.Typer, entry: Verb, group: str | None = None) -> None:
    """Add a verb; its command is built on first call, because building all flags takes longer than most answers."""
    kind = _deferred_command(cache(lambda: command_of(entry)))
    app.command(
        name=entry.name, help=entry.help, cls=kind, rich_help_panel=group, hidden=group == "Deprecated"
    )(lambda: None)


def _deferred_command(make: Callable[[], Any]) -> type[typer.core.TyperCommand]:
    """Return a parser command that is replaced by the one that `make` returns when it is called."""

    class Deferred(typer.core.TyperCommand):
        def make_context(self, *args: Any, **settings: Any) -> Any:
            applied.clear()
            return make().make_context(*args, **settings)

    return Deferred


class VerbGroup(typer.core.TyperGroup):
    """The verbs of the package, and those of plug-ins, which are imported when they are called."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option `--help`, hidden from the list of flags because its reader has just used it."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.hidden = True
        return option

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(name for name in plugin_names("verbs") if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in plugin_names("verbs"):
            return own
        kind = _deferred_command(lambda: command_of(cast(Verb, find_verb(cmd_name))))
        help = f"From the package {plugin_package('verbs', cmd_name)}."
        return kind(name=cmd_name, help=help, rich_help_panel="Plug-ins")


def command_of(entry: Verb) -> Any:
    """Return the parser command of a verb, with its own parameters and the flags of its specs.

    The function of the verb receives the flags that the user set in one parameter: `options`, or `question` if the
    verb has shared options of a `Question`. The other options in `entry.shared` become keywords if the user set them.
    """
    specs = tuple(map(pkgutil.resolve_name, entry.specs))
    if entry.command:
        function = _with_options(entry, pkgutil.resolve_name(entry.command))
    else:
        from capacity.cli import verb_commands

        if entry.shared:
            function = verb_commands.deployment_function(entry)
        else:
            function, specs = verb_commands.asking_function(entry)
    if specs or entry.shared or not entry.command:
        function = _with_flags(entry, function, list(_spec_flags(entry, specs)))
    declared = inspect.signature(function, eval_str=True).parameters.values()
    function = _declare(function, with_output_flag(list(declared)))
    if entry.name in CURRENCY_VERBS:
        function = _with_currency(entry.name, function)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name=entry.name, help=entry.help, cls=VerbCommand)(function)
    return typer.main.get_command(alone)


def _with_options(entry: Verb, function: Callable[..., None]) -> Callable[..., None]:
    """Return the function with parser settings for those of its parameters that have an entry in `entry.options`."""
    if not entry.options:
        return function

    def command(**values: Any) -> None:
        function(**values)

    declared = inspect.signature(function, eval_str=True).parameters
    parameters = [
        p.replace(annotation=Annotated[p.annotation, _option(name, entry.options[name])])
        if name in entry.options
        else p
        for name, p in declared.items()
    ]
    return _declare(command, parameters)


def _with_currency(verb: str, function: Callable[..., None]) -> Callable[..., None]:
    """Return the function with the flag --currency, in which its output shows amounts of money."""

    def command(**values: Any) -> None:
        flags = {"currency": chosen} if (chosen := values.pop("currency")) else {}
        apply_defaults(verb, flags, ("currency",))
        if not flags:
            function(**values)
            return
        from capacity.base.money import use_currency

        with use_currency(flags["currency"]):
            function(**values)

    declared = inspect.signature(function, eval_str=True).parameters.values()
    return _declare(command, [*declared, _shared_option("currency")])


def _declare(command: Callable[..., None], parameters: Sequence[Parameter]) -> Callable[..., None]:
    """Return the command with `parameters` as its signature, which the parser reads."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _option(name: str, row: str | Mapping[str, Any]) -> Any:
    """Return the parser settings of a flag from its entry in the registry: a help text, or a table of settings."""
    settings: Mapping[str, Any] = {"help": row} if isinstance(row, str) else row
    flags = settings.get("flags", (f"--{with_dashes(name)}",))
    return typer.Option(*flags, **{key: value for key, value in settings.items() if key != "flags"})


def _spec_flags(entry: Verb, specs: Sequence[type[Spec]]) -> Iterator[Parameter]:
    """Yield the flags of the fields of `specs`.

    Flags for several replicas or pools (replicas, role, routes) are omitted if the verb has no `Service` flags.
    """
    from capacity.deployment import Pool, Service, Traffic
    from capacity.deployment.field_flags import reading_part
    from capacity.deployment.used_fields import is_part_read

    chosen = entry.traffic_fields
    for spec in specs:
        for name, field in spec.model_fields.items():
            if name in entry.without or (spec is Traffic and chosen and name not in chosen):
                continue
            one_pool = name in ("replicas", "role") or name.startswith("route_")
            only_in_files = name in ("model", "route_escalation_rate")  # they need several pools
            if spec is Pool and (only_in_files or (one_pool and Service not in specs)):
                continue
            yield _flag(
                name, field, panel=spec.__name__, hidden=not is_part_read(entry.name, reading_part(field))
            )


def _flag(name: str, field: Any, panel: str, *, hidden: bool) -> Parameter:
    """Return the flag of a spec's field. `hidden`: the flag is accepted only to give the reason for rejecting it."""
    from capacity.base.keywords import flags_of

    base = _base_type(field.annotation)
    flag = f"--{with_dashes(name)}"
    declared = [f"{flag}/--no-{with_dashes(name)}" if base is bool else flag, *flags_of(field)]
    # numbers are passed as text: the spec parses them with better errors
    annotation: Any = bool | None if base is bool else str | None
    info = typer.Option(
        *declared,
        help=field.description,
        rich_help_panel=panel,
        show_default=False,
        metavar=None if base is bool else base.__name__,
        hidden=hidden,
    )
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation, info])


def _base_type(annotation: Any) -> type[bool | int | float | str]:
    """Return the type that typer parses for a field: int, float or bool if its annotation contains one, else text."""
    held = {
        annotation,
        *get_args(annotation),
        *(a for inner in get_args(annotation) for a in get_args(inner)),
    }
    return next((base for base in (bool, int, float) if base in held), str)


def _with_flags(
    entry: Verb, function: Callable[..., None], generated: list[Parameter]
) -> Callable[..., None]:
    """Return the function with the parser's signature: its own parameters, shared options, and flags of specs.

    A function with a parameter `model` or `models` also accepts a deployment file and a pasted launch command. A
    function with a flag --gpu also accepts --change, which changes that GPU.
    """
    declared = inspect.signature(function, eval_str=True).parameters
    own = {  # the function's parameters with parser settings
        name: p.replace(kind=Parameter.KEYWORD_ONLY)
        for name, p in declared.items()
        if get_origin(p.annotation) is Annotated
    }
    question_fields = [name for name in entry.shared if name in QUESTION_FIELDS and name not in declared]
    keywords = _flagged_keywords(entry, own)
    shared = [own.get(name) or _shared_option(name, keywords) for name in entry.shared]
    further = [_optional_model(p) for name, p in own.items() if name not in entry.shared]
    first = 1 if "model" in entry.shared else 0  # positional arguments have the order of their declaration
    stored = [_shared_option(name) for name in STORED] if _takes_model(declared) else []
    names = [p.name for p in generated]
    gpu = "gpu" if "gpu" in names else next((name for name, p in own.items() if _is_gpu(p)), None)
    parameters = [*shared[:first], *further, *shared[first:], *stored]
    if gpu is not None and not declared.keys().isdisjoint(("question", "options")):
        parameters.append(_shared_option("change"))

    def command(**values: Any) -> None:
        context = values.pop("context", None)
        flags = {name: value for name in names if (value := values.pop(name)) is not None}
        if values.get("deployment") is None and values.get("from_launch") is None:
            apply_defaults(entry.name, flags, names)
        if stored:
            _fill_from_deployment(entry.name, function, flags, values, names, context)
            for name in set(STORED).difference(declared):
                values.pop(name)
        change = tuple(values.pop("change", None) or ())
        if "question" in declared:
            shared_values = {name: values.pop(name) for name in question_fields}
            values["question"] = Question(flags=flags, verb=entry.name, change=change, **shared_values)
        elif "options" in declared:
            if change and gpu is not None:
                _change_gpus(flags if gpu in names else values, gpu, change)
            values["options"] = flags
        given = {name: value for name, value in values.items() if name in declared or value not in (None, [])}
        function(**{n: keywords[n].value(value) if n in keywords else value for n, value in given.items()})

    if stored:
        parameters.append(Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context))
    return _declare(command, [*parameters, *generated])


def _change_gpus(values: MutableMapping[str, Any], name: str, change: Sequence[str]) -> None:
    """Replace the GPU, or each GPU, in `values[name]` with the GPU changed by --change."""
    value = values.get(name)
    if isinstance(value, list):
        values[name] = [changed_gpu(each, change) for each in value]
    else:
        values[name] = changed_gpu(value, change)


def _flagged_keywords(entry: Verb, own: Mapping[str, Parameter]) -> Mapping[str, Keyword]:
    """Return the verb's shared options that are keywords of its Python function or fields of that function's specs."""
    names = [
        name for name in entry.shared if name not in own and name not in {*TYPED_OPTIONS, *SHARED_OPTIONS}
    ]
    if not names:
        return {}
    from capacity.cli.question_flags import keywords_of, keywords_of_spec

    function = pkgutil.resolve_name(entry.flags or entry.function)
    found = [each for spec in getattr(function, "specs", ()) for each in keywords_of_spec(spec)]
    known = {each.name: each for each in (*found, *keywords_of(function))}
    return {name: known[name] for name in names}


def _is_gpu(parameter: Parameter) -> bool:
    option = next(iter(get_args(parameter.annotation)[1:]), None)
    return "--gpu" in (getattr(option, "default", None), *(getattr(option, "param_decls", None) or ()))


def _takes_model(declared: Mapping[str, Parameter]) -> bool:
    return "question" not in declared and not declared.keys().isdisjoint(("model", "models"))


def _optional_model(parameter: Parameter) -> Parameter:
    """Make a required parameter `model` or `models` optional, because a deployment can name the model."""
    if parameter.name not in ("model", "models") or parameter.default is not Parameter.empty:
        return parameter
    held, argument = get_args(parameter.annotation)
    argument = typer.Argument(help=argument.help, show_default=False)
    return parameter.replace(default=None, annotation=Annotated[held | None, argument])


def _fill_from_deployment(
    verb: str,
    function: Callable[..., None],
    flags: MutableMapping[str, Any],
    values: MutableMapping[str, Any],
    names: list[str],
    context: typer.Context,
) -> None:
    """Fill in flags that the user did not set from the given deployment; report settings without effect on stderr.

    Raises InvalidInput if the verb needs a model and none is given.
    """
    from capacity.deployment.used_fields import unused_fields

    deployment, from_launch = (values[name] for name in STORED)
    key = "models" if "models" in values else "model"
    if deployment is not None or from_launch is not None:
        stored = stored_deployment(deployment, from_launch, flags)
        given = {name for name in values if _is_given(context, name)} | flags.keys()
        values[key] = values[key] or ([stored.model] if key == "models" else stored.model)
        idle = {*unused_fields(verb, stored.specs, stored.fields), *_fields_not_from_file(verb, values)}
        unused = []
        for name, value in stored.fields.items():
            axis = next((plural for plural in (name, f"{name}s") if plural in (*names, *values)), None)
            if axis is None or (name in idle and name not in given):
                unused.append(name)
            elif not {name, axis} & given:
                target = flags if axis in names else values
                target[axis] = _as_typed(value if axis == name else str(value), context, axis)
        note(f"not used by {verb}", (f"--{with_dashes(name)}" for name in unused))
    needed = inspect.signature(function).parameters[key].default is Parameter.empty
    if needed and not values[key]:
        raise InvalidInput(NO_MODEL)


def _fields_not_from_file(verb: str, values: Mapping[str, Any]) -> set[str]:
    """Return the fields that the verb determines itself and does not take from a deployment file."""
    from capacity.deployment import Cost, Pool, Service, Traffic

    if verb in SEARCH_VERBS:
        return {*Pool.model_fields, "price", "price_instance"}.difference(SEARCH_POOL_FIELDS)
    if verb in RESULT_VERBS and not values.get("suggest"):
        return {*Traffic.model_fields, *Service.model_fields, *Cost.model_fields}
    if verb == "cascade":
        from capacity.planning.cascades.cascade import PREFIX_FIELDS

        return set(PREFIX_FIELDS)
    return set()


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _as_typed(value: Any, context: typer.Context, name: str) -> Any:
    """Return a value of a deployment in the form that the parser would pass: in a list if the flag may be repeated."""
    parameter = next(p for p in context.command.params if p.name == name)
    return [value] if getattr(parameter, "multiple", False) or parameter.nargs == -1 else value


def _shared_option(name: str, keywords: Mapping[str, Keyword] = MappingProxyType({})) -> Parameter:
    if name in keywords:
        from capacity.cli.question_flags import parameter

        return parameter(keywords[name])
    keyword = name
    if name in TYPED_OPTIONS:
        annotation, default = TYPED_OPTIONS[name]
    else:
        row = dict(SHARED_OPTIONS[name])
        keyword, kind, default = row.pop("keyword", name), row.pop("kind"), row.pop("default", None)
        row.pop("verbs", None)
        annotation = Annotated[KINDS[kind], _option(name, row)]
    return Parameter(keyword, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
