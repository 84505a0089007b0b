"""Read a pasted launch command of a supported engine as a model and a pool."""

import difflib
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.external_files import outside_path, read_text
from capacity.deployment.command_words import (
    OPTION,
    Fields,
    Flags,
    LaunchCommand,
    Line,
    NoServerError,
    flag_name,
    read_options_file,
    split_command,
    words_before_operator,
)
from capacity.deployment.file import DeploymentFile
from capacity.deployment.flag_table import FlagTable, flag_table, image_engine, split_image
from capacity.deployment.launch_dialects import DIALECTS
from capacity.deployment.manifest import Container, read_containers, whole_number
from capacity.deployment.pool import Pool

EXAMPLES = (
    "vllm serve, python -m sglang.launch_server, trtllm-serve, text-generation-launcher, llama-server, "
    "ollama run"
)
OTHER_RELEASES = ("lmcache/",)  # images with an engine whose tags are releases of something else
_MODEL = re.compile(
    r"(?!\d+$)[\w.~/$][^\s{}\[\]\"'`<>|,]*(?<!:)"
)  # not a number, a key, a flag or a template of another language
_SETTING = re.compile(r"([A-Z][A-Z0-9_]+)=(.*)", re.DOTALL)
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?)|server-(?:\w+-)?(b\d+)")  # llama.cpp has build numbers
# comment that a plan writes above the command
_PLANNED = re.compile(r"^\s*#\s*planned for (\S+) ([\w.]+)", re.MULTILINE)


@validate_arguments
def from_launch(command: str, *, gpu: str | None = None) -> DeploymentFile:
    """Return the deployment that a launch command, or a file with one, starts.

    It can be the `model` argument of any analysis. Supports vLLM, SGLang, TensorRT-LLM, TGI, llama.cpp and Ollama,
    recognised by the first words. `gpu` defaults to the GPU named in the file. Warns about flags that would change an
    answer but are not modelled. Raises InvalidInput for an unsupported command, a missing model, and a flag that the
    engine does not have.
    """
    servers = read_servers(command)
    for read in servers:
        if read.unknown:
            raise InvalidInput(f"unknown flags of this engine: {', '.join(read.unknown)}")
        if read.not_modelled:
            warnings.warn(f"not modelled: {', '.join(read.not_modelled)}", stacklevel=2)
    return launched_deployment(servers, gpu)


from_vllm = from_launch  # former name


def launched_deployment(servers: Sequence[LaunchCommand], gpu: str | None) -> DeploymentFile:
    """Return the deployment of servers of the same model, on `gpu` or on the GPUs that their file names.

    Raises InvalidInput if a GPU is missing, or if the models differ.
    """
    models = {server.model for server in servers}
    if len(models) > 1:
        raise InvalidInput(
            f"{OPTION} contains the models {', '.join(sorted(models))}: paste one of the servers"
        )
    gpus = [gpu or server.gpu for server in servers]
    if None in gpus:
        raise InvalidInput(f"{OPTION} does not contain a GPU: set gpu")
    pools = tuple(server.pool(str(each)) for server, each in zip(servers, gpus, strict=True))
    return DeploymentFile(schema="capacity/deployment/v1", model=models.pop(), pools=pools)


def read_launch(text: str) -> LaunchCommand:
    """Read the launch command of one server as `read_servers` does. Raises InvalidInput for a prefill-decode pair."""
    servers = read_servers(text)
    if len(servers) > 1:
        raise InvalidInput(
            f"{OPTION} contains a prefill and a decode server: write both with `capacity from-launch FILE --gpu GPU "
            "--output d.toml`, and give --deployment d.toml"
        )
    return servers[0]


def read_servers(text: str) -> tuple[LaunchCommand, ...]:
    """Read a launch command, or a file that contains one, as a model name and `Pool` fields.

    Reads the server and its replicas from the formats of `server_forms.toml`; a file with a prefill and a decode
    server gives two commands. Accepts continued lines, comments, environment variables before the program, containers
    and both spellings of flags. Raises InvalidInput if the command cannot be read, and for any other YAML mapping.
    """
    if _is_file(text.strip()):
        path = outside_path(text.strip())
        return parse_servers(read_text(path, "a launch file"), path.parent)
    return parse_servers(text)


def parse_servers(text: str, folder: Path | None = None) -> tuple[LaunchCommand, ...]:
    """Read the text of a launch command or file as `read_servers` does, but never as the path of a file.

    `folder`: that of the launch file; files that a command names must be below it.
    """
    containers = read_containers(text)
    if not containers:
        return (_add_planned_release(read_line(text, folder), text),)
    servers = [container for container in containers if _is_server(container, folder)]
    if not servers:
        raise NoServerError(f"{OPTION} must contain a command that launches a server, such as {EXAMPLES}")
    read = [_read_container(server, text, folder) for server in servers]
    unique = [command for place, command in enumerate(read) if command not in read[:place]]
    if len(unique) < len(read):
        same = f"{len(read)} servers, some of them identical (each is read once)"
        unique = [replace(command, not_modelled=(*command.not_modelled, same)) for command in unique]
    if len({command.fields.get("role") for command in unique}) < len(unique):
        raise InvalidInput(
            f"{OPTION} contains {len(unique)} different servers: paste one of them, or write each as a pool of a "
            "deployment file"
        )
    return tuple(unique)


def _read_container(server: Container, text: str, folder: Path | None) -> LaunchCommand:
    command = _add_planned_release(read_line(server.line, folder, server.model), text)
    own = {"replicas": server.replicas} if server.replicas != 1 else {}
    role = {"role": server.role} if server.role else {}
    ranks = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    used = math.prod(whole_number(command.fields.get(name)) or 1 for name in ranks)
    gpus = f"{server.gpu_count} GPUs of each replica (the command uses {used})"
    return replace(
        command,
        gpu=server.gpu,
        fields={**command.fields, **own, **role},
        not_modelled=(
            *command.not_modelled,
            *server.not_modelled,
            *((gpus,) if server.gpu_count not in (None, used) else ()),
        ),
    )


def _add_planned_release(command: LaunchCommand, text: str) -> LaunchCommand:
    """Return the command with the engine release from its comment `# planned for ...`, unless it names a release."""
    planned = _PLANNED.search(text)
    if planned is None or command.fields.get("engine", "vllm") != planned[1]:
        return command
    engine = f"{planned[1]}@{planned[2].removesuffix('.0')}"
    return replace(command, fields={**command.fields, "engine": engine})


def _is_server(container: Container, folder: Path | None) -> bool:
    """Return whether the container launches a server, even if the rest of its command cannot be read."""
    try:
        read_line(container.line, folder, container.model)
    except NoServerError:
        return False
    except InvalidInput:
        pass
    return True


def read_line(text: str, folder: Path | None = None, model: str = "") -> LaunchCommand:
    """Read a launch command from its text (not a path or a manifest, and without comments).

    `model`: used if the command has none or a local path. Raises InvalidInput.
    """
    words = split_command(text)
    environment = {found[1]: found[2] for word in words if (found := _SETTING.fullmatch(word))}

    def read(engine: str, start: int, release: str) -> LaunchCommand:
        arguments = words_before_operator(words[start:])
        settings = {"release": release, "model": model}
        return read_words(engine, arguments, environment=environment, folder=folder, **settings)

    image: tuple[str, str, int] | None = None  # engine, release, and index of the next word
    for place, word in enumerate(words):
        if image is None and (name := image_engine(word)):
            path, tag = split_image(word)
            image = name, "" if path.startswith(OTHER_RELEASES) else _release_in_tag(tag), place + 1
        for name in DIALECTS:
            for program in flag_table(name).started_by:
                first, *others = program.split()
                start = place + 1 + len(others)
                if fnmatchcase(word.rpartition("/")[2], first) and words[place + 1 : start] == others:
                    release = image[1] if image is not None and image[0] == name else ""
                    return read(name, start, release)
    if told := _ollama_arguments(words):
        return read_words("ollama", told, environment=environment, folder=folder)
    if image is not None:
        name, release, start = image
        return read(name, start, release)
    raise NoServerError(f"{OPTION} must contain a command that launches a server, such as {EXAMPLES}")


def read_words(
    engine: str,
    words: Sequence[str],
    *,
    release: str = "",
    environment: Mapping[str, str] = MappingProxyType({}),
    folder: Path | None = None,
    model: str = "",
) -> LaunchCommand:
    """Read the arguments after an engine's program in a command.

    `model`: used if the arguments have none or a local path. Raises InvalidInput if there is no model.
    """
    table, dialect = flag_table(engine), DIALECTS[engine]
    flags, model_in_options = _parse_flags(table, words, folder)
    line = Line(flags=flags, environment=environment, folder=folder)
    line.options.update(dialect.options(line))
    values: Fields = {}
    for row in table.rows:
        value = row.read(line)
        if row.field is not None and value is not None:
            values.setdefault(row.field, value)
    fields = dialect.fields(values, line)
    own_model = str(fields.pop("model", None) or (flags.words.pop(0) if flags.words else model_in_options))
    read = {name: value for name, value in fields.items() if name in Pool.model_fields and value is not None}
    label = f"{engine}@{release}" if release else engine
    own = {} if label == Pool.model_fields["engine"].default else {"engine": label}
    left = [(name, name.partition(".")[0], text) for name, text in flags.remaining_flags()]
    known = {"model", "quantization"}.union(*((row.name, *row.aliases) for row in table.rows))
    left += [(name, name, f"{name}={value}") for name, value in line.options.items() if name not in known]
    spelled = {
        name: text.partition(" ")[0].partition("=")[0] for name, _, text in left
    }  # a value may be a secret
    return LaunchCommand(
        model=_choose_model(own_model, model),
        fields=own | read,
        ignored=tuple(spelled[name] for name, key, _ in left if key in table.harmless),
        not_modelled=(
            *(f"{text} ({table.not_modelled[key]})" for _, key, text in left if key in table.not_modelled),
            *line.notes,
        ),
        unknown=(
            *flags.words,
            *(
                spelled[name] + (_suggest_flag(name) if table.reads_pool_fields else "")
                for name, key, _ in left
                if key not in table.harmless and key not in table.not_modelled
            ),
        ),
    )


def _choose_model(named: str, given: str) -> str:
    """Return the model `named` in a command, or `given` if that is empty or a local path. Raises InvalidInput."""
    model = given if given and (not named or named.startswith("/")) else named
    if not model:
        raise InvalidInput(f"{OPTION} does not contain a model: paste the whole command")
    if not _MODEL.fullmatch(model):
        raise InvalidInput(
            f"{OPTION} has {model!r} in place of the model: paste a command that names the model"
        )
    return model


def _parse_flags(table: FlagTable, words: Sequence[str], folder: Path | None) -> tuple[Flags, str]:
    """Return a command's flags, completed by those of its options file, and the model that this file names."""
    rows = [row for row in table.rows if row.place == "line"]
    switches = {flag_name(row.name) for row in rows if row.is_switch}
    aliases = {flag_name(alias): flag_name(row.name) for row in rows for alias in row.aliases}

    def split(words: Sequence[str]) -> Flags:
        return Flags(words, switches.union(table.switches), several=table.several, aliases=aliases)

    flags = split(words)
    if table.config_flag is None or not (file := flags.take(flag_name(table.config_flag))):
        return flags, ""
    options = read_options_file(file, folder, f"{table.config_flag} of {' '.join(table.program)}")
    model = options.pop("model", options.pop("model_tag", ""))
    flags = split([*(f"--{name}={value}" for name, value in options.items()), *words])
    flags.take(flag_name(table.config_flag))
    return flags, model


def _suggest_flag(name: str) -> str:
    """Return a suggestion with the known flag most similar to `name`; empty if none is similar."""
    close = difflib.get_close_matches(name, Pool.model_fields, n=1, cutoff=0.8)
    return f" (did you mean --{close[0].replace('_', '-')}?)" if close else ""


def _is_file(text: str) -> bool:
    """Return whether the text is the path of a file."""
    try:
        return bool(text) and "\n" not in text and (path := outside_path(text)).exists() and not path.is_dir()
    except MalformedFile:  # name too long, or with an invalid character
        return False


def _ollama_arguments(words: list[str]) -> list[str]:
    """Return the words after `ollama` in the first `run` command, or else in a `create`, `serve` or `pull` command."""
    places = [place for place, word in enumerate(words) if word.rpartition("/")[2] == "ollama"]
    for verb in ("run", "create", "serve", "pull"):
        for place in places:
            if words[place + 1 : place + 2] == [verb]:
                rest = words[place + 1 :]
                ends = [i for i, word in enumerate(rest) if word in ("&", "&&", ";", "wait")]
                return rest[: ends[0]] if ends else rest
    return []


def _release_in_tag(tag: str) -> str:
    """Return the release in an image tag such as v0.11.0 or v0.11.0-cu128; empty for a moving tag such as latest."""
    version = _VERSION.match(tag)
    return "" if version is None else (version[1] or version[2]).removesuffix(".0")
