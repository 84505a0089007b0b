"""A pasted line that launches a server, of whichever engine its first words name, as a model and a pool."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

from capacity.base.checked import checked
from capacity.base.errors import InvalidInput
from capacity.deployment.file import DeploymentFile
from capacity.deployment.flag_table import FlagTable, flag_table
from capacity.deployment.launch_dialects import DIALECTS
from capacity.deployment.launched import (
    OPTION,
    Fields,
    Flags,
    LaunchCommand,
    Line,
    NoServer,
    flag_name,
    options_beside,
    until_operator,
    words_of,
)
from capacity.deployment.manifest import containers_of, only_one, refuse_manifest
from capacity.deployment.pool import Pool

EXAMPLES = (
    "vllm serve, python -m sglang.launch_server, trtllm-serve, text-generation-launcher, llama-server, "
    "ollama run"
)
_SETTING = re.compile(r"([A-Z][A-Z0-9_]+)=(.*)", re.DOTALL)
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?)|server-(?:\w+-)?(b\d+)")  # llama.cpp counts its builds
# as a plan writes above the command
_PLANNED = re.compile(r"^\s*#\s*planned for (\S+) ([\w.]+)", re.MULTILINE)


@checked
def from_launch(command: str, *, gpu: str | None = None) -> DeploymentFile:
    """The deployment of a pasted launch line, or of a launch file by its path, on `gpu` (default: the GPU that the file
    names): every question takes it in place of a model.

    vLLM, SGLang, TensorRT-LLM, TGI, llama.cpp and Ollama, by the first words. Warns of flags that would change an
    answer and are not modelled. Raises InvalidInput for a line of none of them, one without a model, and a flag that is
    none of the engine's.
    """
    read = read_launch(command)
    if read.unknown:
        raise InvalidInput(f"no flags of this engine: {', '.join(read.unknown)}")
    if not read.model:
        raise InvalidInput(f"{OPTION} names no model: paste the whole line")
    if read.not_modelled:
        warnings.warn(f"not modelled: {', '.join(read.not_modelled)}", stacklevel=2)
    if (gpu := gpu or read.gpu) is None:
        raise InvalidInput(f"{OPTION} names no GPU: give gpu")
    return DeploymentFile(schema="capacity/deployment/v1", model=read.model, pools=(read.pool(gpu),))


from_vllm = from_launch  # by its older name


def read_launch(text: str) -> LaunchCommand:
    """A launch line, or the file that it stands in, as a model (empty: not named) and fields of a pool.

    Of a Kubernetes manifest, a compose file or a SkyPilot task, the one server that it starts, with its replicas.
    Continued lines, comments, environment settings before the program, containers and both spellings of flags are
    understood. Raises InvalidInput, also for any other mapping of YAML.
    """
    folder = None
    if _is_file(text.strip()):
        path = Path(text.strip())
        try:
            folder, text = path.parent, path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise InvalidInput(f"{OPTION}: {path} cannot be read as text") from None
    servers = [container for container in containers_of(text) if _is_server(container.line, folder)]
    if servers:
        server = only_one(servers)
        command = _at_planned_release(read_line(server.line, folder), text)
        manifest = {"replicas": server.replicas} if server.replicas != 1 else {}
        return replace(
            command,
            gpu=server.gpu,
            fields={**command.fields, **manifest},
            not_modelled=(*command.not_modelled, *server.not_modelled),
        )
    refuse_manifest(text)
    return _at_planned_release(read_line(text, folder), text)


def _at_planned_release(command: LaunchCommand, text: str) -> LaunchCommand:
    """The command with the release that a plan's comment names, where the line itself names none."""
    planned = _PLANNED.search(text)
    if planned is None or command.fields.get("engine", "vllm") != planned[1]:
        return command
    engine = f"{planned[1]}@{planned[2].removesuffix('.0')}"
    return replace(command, fields={**command.fields, "engine": engine})


def _is_server(line: str, folder: Path | None) -> bool:
    """Whether it launches one, even if it can't be read further."""
    try:
        read_line(line, folder)
    except NoServer:
        return False
    except InvalidInput:
        pass
    return True


def read_line(text: str, folder: Path | None = None) -> LaunchCommand:
    """Read a launch line that is no path and no manifest, without a release from a comment. Raises InvalidInput."""
    words = words_of(text)
    environment = {found[1]: found[2] for word in words if (found := _SETTING.fullmatch(word))}

    def read(engine: str, start: int, release: str) -> LaunchCommand:
        arguments = until_operator(words[start:])
        return read_words(engine, arguments, release=release, environment=environment, folder=folder)

    image: tuple[str, str, int] | None = None  # the engine, its release, and the place after it
    for place, word in enumerate(words):
        path, tag = _image(word)
        for name in DIALECTS:
            if image is None and path.endswith(flag_table(name).images):
                image = name, _release(tag), place + 1
            for program in flag_table(name).started_by:
                first, *others = program.split()
                start = place + 1 + len(others)
                if fnmatchcase(word.rpartition("/")[2], first) and words[place + 1 : start] == others:
                    release = image[1] if image is not None and image[0] == name else ""
                    return read(name, start, release)
    if told := _ollama(words):
        return read_words("ollama", told, environment=environment, folder=folder)
    if image is not None:
        name, release, start = image
        return read(name, start, release)
    raise NoServer(f"{OPTION} must hold a line that launches a server: {EXAMPLES}")


def read_words(
    engine: str,
    words: Sequence[str],
    *,
    release: str = "",
    environment: Mapping[str, str] = MappingProxyType({}),
    folder: Path | None = None,
) -> LaunchCommand:
    """The line of an engine after its program. Raises InvalidInput where it names no model."""
    table, dialect = flag_table(engine), DIALECTS[engine]
    flags, model = _flags(table, words, folder)
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
        raise InvalidInput(f"{OPTION} names no model: paste the whole line")
    read = {name: value for name, value in fields.items() if name in Pool.model_fields and value is not None}
    label = f"{engine}@{release}" if release else engine
    own = {} if label == Pool.model_fields["engine"].default else {"engine": label}
    left = [(name, name.partition(".")[0], text) for name, text in flags.left()]
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
                text + (_nearest(name) if table.reads_pool_fields else "")
                for name, key, text in left
                if key not in table.harmless and key not in table.not_modelled
            ),
        ),
    )


def _flags(table: FlagTable, words: Sequence[str], folder: Path | None) -> tuple[Flags, str]:
    """The flags of a line over those of the file that it names, and the model that the file names."""
    rows = [row for row in table.rows() if row.place == "line"]
    switches = {flag_name(row.name) for row in rows if row.is_switch}
    aliases = {flag_name(alias): flag_name(row.name) for row in rows for alias in row.aliases}

    def split(words: Sequence[str]) -> Flags:
        return Flags(words, switches.union(table.switches), several=table.several, aliases=aliases)

    flags = split(words)
    if table.config_flag is None or not (file := flags.take(flag_name(table.config_flag))):
        return flags, ""
    options = options_beside(file, folder, f"{table.config_flag} of {' '.join(table.program)}")
    model = options.pop("model", options.pop("model_tag", ""))
    flags = split([*(f"--{name}={value}" for name, value in options.items()), *words])
    flags.take(flag_name(table.config_flag))
    return flags, model


def _nearest(name: str) -> str:
    """The flag that an unknown one is a slip of the pen from, if any."""
    close = difflib.get_close_matches(name, Pool.model_fields, n=1, cutoff=0.9)
    return f" (did you mean --{close[0].replace('_', '-')}?)" if close else ""


def _image(word: str) -> tuple[str, str]:
    """A word as a container image's path and tag; a registry may have a port."""
    folder, slash, name = word.rpartition("/")
    name, _, tag = name.partition(":")
    return f"{folder}{slash}{name}", tag


def _is_file(text: str) -> bool:
    try:
        return bool(text) and "\n" not in text and Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a character that no name has
        return False


def _ollama(words: list[str]) -> list[str]:
    """The words after `ollama` that name a model, else after the first `ollama`; empty without any."""
    places = [place for place, word in enumerate(words) if word.rpartition("/")[2] == "ollama"]
    for verb in ("run", "create", "serve", "pull"):
        for place in places:
            if words[place + 1 : place + 2] == [verb]:
                rest = words[place + 1 :]
                ends = [i for i, word in enumerate(rest) if word in ("&", "&&", ";", "wait")]
                return rest[: ends[0]] if ends else rest
    return []


def _release(tag: str) -> str:
    """The release that an image's tag names, as v0.11.0 or v0.11.0-cu128; empty for one that moves, such as latest."""
    version = _VERSION.match(tag)
    return "" if version is None else (version[1] or version[2]).removesuffix(".0")
