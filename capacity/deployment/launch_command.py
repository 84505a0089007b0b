"""Read a pasted launch command of a supported engine as a model and a pool."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
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
from capacity.deployment.flag_table import FlagTable, flag_table
from capacity.deployment.launch_dialects import DIALECTS
from capacity.deployment.manifest import read_containers, reject_manifest, require_one_server
from capacity.deployment.pool import Pool

EXAMPLES = (
    "vllm serve, python -m sglang.launch_server, trtllm-serve, text-generation-launcher, llama-server, "
    "ollama run"
)
_SETTING = re.compile(r"([A-Z][A-Z0-9_]+)=(.*)", re.DOTALL)
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?)|server-(?:\w+-)?(b\d+)")  # llama.cpp has build numbers
# comment that a plan writes above the command
_PLANNED = re.compile(r"^\s*#\s*planned for (\S+) ([\w.]+)", re.MULTILINE)


@validate_arguments
def from_launch(command: str, *, gpu: str | None = None) -> DeploymentFile:
    """Return the deployment that a launch command, or a file with one, starts: the `model` argument of any analysis.

    Supports vLLM, SGLang, TensorRT-LLM, TGI, llama.cpp and Ollama, recognised by the first words. `gpu` defaults to
    the GPU named in the file. Warns about flags that would change an answer but are not modelled. Raises InvalidInput
    for an unsupported command, a missing model, and a flag that the engine does not have.
    """
    read = read_launch(command)
    if read.unknown:
        raise InvalidInput(f"unknown flags of this engine: {', '.join(read.unknown)}")
    if not read.model:
        raise InvalidInput(f"{OPTION} does not contain a model: paste the whole command")
    if read.not_modelled:
        warnings.warn(f"not modelled: {', '.join(read.not_modelled)}", stacklevel=2)
    if (gpu := gpu or read.gpu) is None:
        raise InvalidInput(f"{OPTION} does not contain a GPU: set gpu")
    return DeploymentFile(schema="capacity/deployment/v1", model=read.model, pools=(read.pool(gpu),))


from_vllm = from_launch  # former name


def read_launch(text: str) -> LaunchCommand:
    """Read a launch command, or a file that contains one, as a model name (empty: none) and pool fields.

    From a Kubernetes manifest, a compose file or a SkyPilot task, reads the only server and its replicas. Accepts
    continued lines, comments, environment variables before the program, containers and both spellings of flags. Raises
    InvalidInput if the command cannot be read, and for any other YAML mapping.
    """
    folder = None
    if _is_file(text.strip()):
        path = Path(text.strip())
        try:
            folder, text = path.parent, path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise InvalidInput(f"{OPTION}: {path} cannot be read as text") from None
    servers = [container for container in read_containers(text) if _is_server(container.line, folder)]
    if servers:
        server = require_one_server(servers)
        command = _add_planned_release(read_line(server.line, folder), text)
        manifest = {"replicas": server.replicas} if server.replicas != 1 else {}
        return replace(
            command,
            gpu=server.gpu,
            fields={**command.fields, **manifest},
            not_modelled=(*command.not_modelled, *server.not_modelled),
        )
    reject_manifest(text)
    return _add_planned_release(read_line(text, folder), text)


def _add_planned_release(command: LaunchCommand, text: str) -> LaunchCommand:
    """Return the command with the release in a comment `# planned for ...`, unless the command names one."""
    planned = _PLANNED.search(text)
    if planned is None or command.fields.get("engine", "vllm") != planned[1]:
        return command
    engine = f"{planned[1]}@{planned[2].removesuffix('.0')}"
    return replace(command, fields={**command.fields, "engine": engine})


def _is_server(line: str, folder: Path | None) -> bool:
    """Return whether the line launches a server, even if the rest of it cannot be read."""
    try:
        read_line(line, folder)
    except NoServerError:
        return False
    except InvalidInput:
        pass
    return True


def read_line(text: str, folder: Path | None = None) -> LaunchCommand:
    """Read a launch command from its text (not a path or a manifest, and without comments). Raises InvalidInput."""
    words = split_command(text)
    environment = {found[1]: found[2] for word in words if (found := _SETTING.fullmatch(word))}

    def read(engine: str, start: int, release: str) -> LaunchCommand:
        arguments = words_before_operator(words[start:])
        return read_words(engine, arguments, release=release, environment=environment, folder=folder)

    image: tuple[str, str, int] | None = None  # engine, release, and index of the next word
    for place, word in enumerate(words):
        path, tag = _split_image(word)
        for name in DIALECTS:
            if image is None and path.endswith(flag_table(name).images):
                image = name, _release_in_tag(tag), place + 1
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
) -> LaunchCommand:
    """Read the arguments after an engine's program in a command. Raises InvalidInput if they name no model."""
    table, dialect = flag_table(engine), DIALECTS[engine]
    flags, model = _parse_flags(table, words, folder)
    line = Line(flags=flags, environment=environment, folder=folder)
    line.options.update(dialect.options(line))
    values: Fields = {}
    for row in table.rows():
        value = row.read(line)
        if row.field is not None and value is not None:
            values.setdefault(row.field, value)
    fields = dialect.fields(values, line)
    model = str(fields.pop("model", None) or (flags.words.pop(0) if flags.words else model))
    if not model:
        raise InvalidInput(f"{OPTION} does not contain a model: paste the whole command")
    read = {name: value for name, value in fields.items() if name in Pool.model_fields and value is not None}
    label = f"{engine}@{release}" if release else engine
    own = {} if label == Pool.model_fields["engine"].default else {"engine": label}
    left = [(name, name.partition(".")[0], text) for name, text in flags.remaining_flags()]
    return LaunchCommand(
        model=model,
        fields=own | read,
        ignored=tuple(text for _, key, text in left if key in table.harmless),
        not_modelled=(
            *(f"{text} ({table.not_modelled[key]})" for _, key, text in left if key in table.not_modelled),
            *line.notes,
        ),
        unknown=(
            *flags.words,
            *(
                text + (_suggest_flag(name) if table.reads_pool_fields else "")
                for name, key, text in left
                if key not in table.harmless and key not in table.not_modelled
            ),
        ),
    )


def _parse_flags(table: FlagTable, words: Sequence[str], folder: Path | None) -> tuple[Flags, str]:
    """Return a command's flags, completed by those of its options file, and the model that this file names."""
    rows = [row for row in table.rows() if row.place == "line"]
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
    close = difflib.get_close_matches(name, Pool.model_fields, n=1, cutoff=0.9)
    return f" (did you mean --{close[0].replace('_', '-')}?)" if close else ""


def _split_image(word: str) -> tuple[str, str]:
    """Split a container image such as `registry:5000/vllm/vllm-openai:v0.11.0` into its path and its tag."""
    folder, slash, name = word.rpartition("/")
    name, _, tag = name.partition(":")
    return f"{folder}{slash}{name}", tag


def _is_file(text: str) -> bool:
    try:
        return bool(text) and "\n" not in text and Path(text).is_file()
    except (OSError, ValueError):  # name too long, or with an invalid character
        return False


def _ollama_arguments(words: list[str]) -> list[str]:
    """Return the words after `ollama` in the first `run` command, else `create`, `serve` or `pull`; else nothing."""
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
