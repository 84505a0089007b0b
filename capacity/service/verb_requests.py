"""Requests of the service and of MCP tools: which verbs they can call, their JSON schemas, and the answers as JSON.

A request is a JSON object with the keywords of the verb's Python function. It may contain a model as the object of its
`config.json`, a deployment as the object of its file, and the content of result files and traces.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from types import MappingProxyType, SimpleNamespace
from typing import Any, get_args, get_type_hints

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.external_files import READABLE_VARIABLE, parse_json
from capacity.base.flags import Flag, kind_of_annotation
from capacity.base.keywords import fields_of, unknown_option
from capacity.base.record import AnswerRecord
from capacity.base.registry import BY_NAME, SHARED_OPTIONS, Verb
from capacity.report.schemas import Schema

LISTINGS = ("models", "gpus", "use-cases")
# their input or output is a file that grows, or a running server
LOCAL_VERBS = ("sweep", "watch", "cache-curve")
OBJECTS = ("workload", "observer", "other_pools", "progress")  # keywords that only Python can pass
LOCAL_OPTIONS = (
    "profiles", "download", "cluster", "scheduler", "workers", "save_trace", "save_trace_for",
)  # fmt: skip
"""Keywords that name files, programs or other machines: not accepted from clients of the service."""
FILE_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "results": ".json",
        "server_log": ".log",
        "trace": ".jsonl",
        "price_file": ".csv",
        "api_price_file": ".csv",
    }
)
"""Keywords that name a file, with the suffix of that file. A client of the service sends the content instead."""
SNAPSHOT_FIELDS = ("stage", "settled", "engines", "simulated", "objective")
CONTENT = "Content of the file: its text or, for JSON, the value itself."
MODEL = "Preset (`capacity models`), Hugging Face id, or the object of a config.json."
JSON_TYPES: Mapping[type, list[str]] = {  # numbers also as text with a suffix, such as 32k
    bool: ["boolean"],
    int: ["integer", "string"],
    float: ["number", "string"],
    str: ["string"],
}


def served_verbs() -> tuple[str, ...]:
    """Return the verbs that requests can name: those that return an answer record or a list (`models`, ...)."""
    answering = (name for name, verb in BY_NAME.items() if verb.function and verb.answers)
    return (*(name for name in answering if name not in LOCAL_VERBS), *LISTINGS)


@cache
def request_schema(verb: str, *, local: bool = False, short: bool = False) -> Schema:
    """Return the JSON schema of a verb's request. `local`: the client is on this machine and may name files.

    `short`: list only the options that `capacity VERB --help` shows first; all others are accepted too.
    """
    entry = BY_NAME[verb]
    function = resolve_name(entry.function)
    properties: Schema = {}
    required: list[str] = []
    for name, (annotation, help, needed) in _keywords(entry, function).items():
        if name not in OBJECTS and (local or name not in LOCAL_OPTIONS):
            properties[name] = _option_schema(name, annotation, help, local=local)
            required += [name] if needed else []
    if "DeploymentFile" in str(_hints(function).get("model")):  # it has a model and a GPU
        properties["deployment"] = {
            "type": "object",
            "description": "Deployment file as JSON, instead of options.",
        }
        required = []
    if short:
        first = {word.replace("-", "_") for word in entry.first.split()}
        properties = {
            name: value for name, value in properties.items() if name in {*first, *required, "model"}
        }
    closed = {} if short else {"additionalProperties": False}
    return {"type": "object", "properties": properties, "required": required, **closed}


def _keywords(entry: Verb, function: Callable[..., Any]) -> dict[str, tuple[Any, str, bool]]:
    """Return (annotation, help, whether required) of each keyword of a verb: its function's, and its specs' fields."""
    parameters = inspect.signature(function).parameters
    any_keyword = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    specs = map(resolve_name, entry.specs) if any_keyword else getattr(function, "specs", ())
    fields = {name: field for name, field in fields_of(*specs).items() if name not in entry.without}
    hints = _hints(function)
    found = {
        name: (field.annotation, field.description or "", field.is_required())
        for name, field in fields.items()
    }
    for name, parameter in parameters.items():
        if name in hints:
            flag = next((each for each in get_args(hints[name])[1:] if isinstance(each, Flag)), None)
            help = flag.help if flag else SHARED_OPTIONS.get(name, {}).get("help", "")
            found[name] = hints[name], help, parameter.default is parameter.empty
    return found


def _hints(function: Callable[..., Any]) -> Schema:
    """Return the types of a function's named keywords. (The type of its answer may not be importable at run time.)"""
    function = inspect.unwrap(function)
    own = {name: each for name, each in function.__annotations__.items() if name not in ("options", "return")}
    return get_type_hints(SimpleNamespace(__annotations__=own), function.__globals__, include_extras=True)


def _option_schema(name: str, annotation: Any, help: str, *, local: bool) -> Schema:
    """Return the JSON schema of one option, from its name and annotation."""
    if name in FILE_OPTIONS:
        one: Schema = {"type": ["string"]} if local else {"type": ["string", "object", "array"]}
        help = f"{help} {'Path of a file.' if local else CONTENT}".strip()
        return ({"type": "array", "items": one} if name == "results" else one) | {"description": help}
    kind = kind_of_annotation(annotation)
    types = list(JSON_TYPES[kind.of])
    if name in ("model", "models") or "dict" in str(annotation) or "Mapping" in str(annotation):
        types, help = [*types, "object"], help or MODEL
    one = {"type": types[0] if len(types) == 1 else types}
    one |= {"enum": list(kind.choices)} if kind.choices else {}
    if kind.many:
        one = {"anyOf": [{"type": "array", "items": one}, one]}
    return one | ({"description": help} if help else {})


def answer_json(
    verb: str, body: bytes, *, local: bool = False, progress: Callable[[Schema], None] | None = None
) -> bytes:
    """Return the answer to a request (`body`: a JSON object) as JSON in one line.

    `progress` is called with JSON objects while a long verb runs. Unless `local`, only data of the package, the user's
    profiles and models, and the content of the request are read. Raises InvalidInput and DoesNotFit as the verb does.
    """
    from capacity.report.tables import null_infinities

    answer = ask(verb, body, local=local, progress=progress)
    plain = answer.to_dict() if isinstance(answer, AnswerRecord) else answer
    return json.dumps(null_infinities(plain), separators=(",", ":"), allow_nan=False).encode()


def ask(
    verb: str, body: bytes, *, local: bool = False, progress: Callable[[Schema], None] | None = None
) -> Any:
    """Run a request's verb and return its result: an answer record or a list of rows. Arguments as in `answer_json`."""
    if verb not in served_verbs():
        raise InvalidInput(f"no verb {verb!r}: use one of {', '.join(served_verbs())}")
    try:
        given = parse_json(body.decode("utf-8-sig") or "{}", "the request")
    except UnicodeDecodeError:
        raise MalformedFile("the request", "not UTF-8 text") from None
    if not isinstance(given, dict):
        raise InvalidInput(f"the request is a JSON {type(given).__name__}: it must be an object of options")
    options = {name.replace("-", "_"): value for name, value in given.items()}
    _check_names(verb, options, local=local)
    function = resolve_name(BY_NAME[verb].function)
    if progress is not None and "progress" in inspect.signature(function).parameters:
        options["progress"] = lambda *values: progress(plain_report(*values))
    if options.keys().isdisjoint(FILE_OPTIONS):
        with nullcontext() if local else _only_readable():
            return function(**_with_objects(options))
    with TemporaryDirectory(prefix="capacity-request-") as folder:
        if local:
            return function(**_with_objects(_with_files(options, Path(folder), local=True)))
        with chdir(folder), _only_readable(folder):  # answers and errors contain names without the folder
            return function(**_with_objects(_with_files(options, Path(), local=False)))


def _check_names(verb: str, options: Mapping[str, Any], *, local: bool) -> None:
    """Raise InvalidInput for an unknown option, and for one that the service does not accept."""
    known = request_schema(verb, local=local)["properties"]
    for name in options:
        if name in known:
            continue
        if name in (*LOCAL_OPTIONS, *OBJECTS):
            raise InvalidInput(
                f"{name!r} is not accepted in a request, because it names files or programs of the server; leave it out"
            )
        raise unknown_option(name, known)


def plain_report(*values: Any) -> Schema:
    """Return a verb's progress as a JSON object: `done` and `total`, or the stage and counts of a search."""
    if len(values) > 1:
        return {"done": values[0], "total": values[1]}
    return {name: getattr(values[0], name) for name in SNAPSHOT_FIELDS}


def _with_objects(options: Schema) -> Schema:
    """Return the options with JSON objects converted to models and deployments."""
    for name in options.keys() & {"model", "models", "deployment"}:
        options[name] = _read_object(name, options[name])
    if "deployment" in options:
        if "model" in options:
            raise InvalidInput("'model' cannot be combined with 'deployment': set it in the deployment")
        options["model"] = options.pop("deployment")
    return options


def _with_files(options: Schema, folder: Path, *, local: bool) -> Schema:
    """Return the options with file contents replaced by paths; the contents are written to `folder`."""
    for name in options.keys() & FILE_OPTIONS.keys():
        value = options[name]
        if name != "results":
            options[name] = _as_file(value, folder / f"{name}{FILE_OPTIONS[name]}", local=local)
        else:
            several = value if isinstance(value, list) else [value]
            options[name] = [
                _as_file(each, folder / f"results-{number}.json", local=local)
                for number, each in enumerate(several, start=1)
            ]
    return options


def _as_file(value: Any, path: Path, *, local: bool) -> str:
    """Write the content to `path` and return that path. Text of a local client already is a path and is returned."""
    if isinstance(value, str):
        if local:
            return value
        path.write_text(value, encoding="utf-8")
    elif isinstance(value, list) and path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(each)}\n" for each in value), encoding="utf-8")
    else:
        path.write_text(json.dumps(value), encoding="utf-8")
    return str(path)


def _read_object(name: str, value: Any) -> Any:
    """Convert a JSON object to a model, or to a deployment for the option `deployment`; return text unchanged."""
    if isinstance(value, list):
        return [_read_object(name, each) for each in value]
    if not isinstance(value, dict):
        return value
    if name == "deployment":
        from capacity.deployment import DeploymentFile, build

        return build(DeploymentFile, value)
    from capacity.model.hf_config import from_hf_config

    stated = value.get("_name_or_path")
    called = stated.strip("/").rpartition("/")[2].lower() if isinstance(stated, str) else ""
    origin = "config.json of the request"
    return from_hf_config(value, name=called or "model", source=origin, origin=origin)


@contextmanager
def _only_readable(*folders: str) -> Iterator[None]:
    """Until the block ends, allow reading only files of the package, of the user's profiles and models, and in
    `folders`."""
    os.environ[READABLE_VARIABLE] = os.pathsep.join((*_own_folders(), *map(os.path.realpath, folders)))
    try:
        yield
    finally:
        del os.environ[READABLE_VARIABLE]


@cache
def _own_folders() -> Sequence[str]:
    from capacity.base.data_files import user_folder
    from capacity.hardware import PROFILES_VARIABLE
    from capacity.hardware.profile_search import bundled_directory

    chosen = [part for part in os.environ.get(PROFILES_VARIABLE, "").split(os.pathsep) if part]
    own = (
        str(Path(__file__).parents[1]),
        str(bundled_directory()),
        *map(str, map(user_folder, ("profiles", "models"))),
    )
    return [os.path.realpath(each) for each in (*own, *chosen)]
