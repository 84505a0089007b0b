"""A pasted line that launches a server, of whichever engine its first words name, as a model and a pool; and the lines
of a manifest (Kubernetes, compose, SkyPilot)."""

from __future__ import annotations

import difflib
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

import yaml

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
from capacity.deployment.pool import Pool

_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z)?sh")
_VARIABLE = re.compile(r"\$(?:\((\w+)\)|\{(\w+)\}|(\w+))")
_FIRST_LINE = re.compile(r"(?:\s*(?:#.*)?\n|---.*\n)*[\w.-]+:(?:\s|$)")
KINDS = {  # Kubernetes objects whose pods say what they run, and those that stand next to them
    *("CronJob", "DaemonSet", "Deployment", "Job", "LeaderWorkerSet", "List", "Pod", "ReplicaSet"),
    *("ReplicationController", "StatefulSet", "ConfigMap", "HorizontalPodAutoscaler", "Ingress", "Namespace"),
    *("PersistentVolumeClaim", "Secret", "Service", "ServiceAccount"),
}
WAY_OUT = "paste the launch line, or give a Deployment, a compose file or a SkyPilot task"
RENDERED = "give what `helm template` renders, or paste the launch line"
FOREIGN = {  # by a key of the mapping: what it is, and the way out
    "servingEngineSpec": ("Helm values of the vLLM production stack", RENDERED),
    "replicaCount": ("Helm values", RENDERED),
    "image": ("Helm values", RENDERED),
    "applications": ("a Ray Serve configuration", WAY_OUT),
    "model": ("the options of a server", "paste the line that reads them: `vllm serve --config FILE`"),
}
AMBIGUOUS_GPUS = {"a100": "a100-sxm-40gb", "v100": None}  # SkyPilot's A100 has 40 GB, its V100 16 GB


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What one container runs: settings, its image and its words, as one line; and how many of it there are.

    `gpu`: the GPU that the manifest names; `not_modelled`: what of it is taken otherwise, and how.
    """

    line: str
    replicas: int = 1
    gpu: str | None = None
    not_modelled: tuple[str, ...] = ()


def containers_of(text: str) -> tuple[Container, ...]:
    """The containers of a manifest that say what they run, in its order; none where the text is no manifest.

    Read are `command` and `args` of Kubernetes, `entrypoint` and `command` of compose, `run` of SkyPilot, their
    environments, for which `$(NAME)`, `${NAME}` and `$NAME` stand, and `replicas`. Raises InvalidInput for a shell's
    text that has no words.
    """
    found: list[Container] = []
    for document in _documents(text):
        if isinstance(document.get("run"), str) and "kind" not in document:
            found.append(_skypilot(document))
        elif "services" in document if "kind" not in document else document["kind"] in KINDS:
            found += _containers(document, 1, set())
    return tuple(found)


def refuse_manifest(text: str) -> None:
    """Raise InvalidInput, with the kind, for a mapping of YAML, which is never a shell's line."""
    documents = _documents(text)
    if not documents and "\n" in text.strip() and _FIRST_LINE.match(text):
        raise InvalidInput(f"{OPTION} looks like YAML and cannot be parsed as YAML: correct it, or {WAY_OUT}")
    for document in documents:
        kind, way_out = _kind(document)
        if kind not in KINDS:
            raise InvalidInput(f"{OPTION} is {kind}, which cannot be read: {way_out}")
    if documents:
        raise NoServer(
            f"{OPTION} must hold a line that launches a server: no container of the manifest says by its command or "
            "args which one"
        )


def _kind(document: Mapping[object, object]) -> tuple[str, str]:
    """What a mapping is, and what to give in its place."""
    if "kind" in document:
        return str(document["kind"]), WAY_OUT
    if "services" in document:
        return "Pod", WAY_OUT
    keys = ", ".join(list(map(str, document))[:3])
    return next((known for key, known in FOREIGN.items() if key in document), (f"YAML of {keys}", WAY_OUT))


def _documents(text: str) -> list[dict[object, object]]:
    """The mappings of a YAML text whose keys are names; none where there is none, as in a shell's line."""
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError, ValueError):
        return []
    mappings = [document for document in documents if isinstance(document, dict)]
    names = (str(key) for document in mappings for key in document)
    return mappings if all(re.fullmatch(r"[\w.-]+", name) for name in names) else []


def _skypilot(task: dict[object, object]) -> Container:
    """A SkyPilot task: its script, the fewest replicas of its service, and its accelerators."""
    service, resources = task.get("service"), task.get("resources")
    service = service if isinstance(service, dict) else {}
    policy = service.get("replica_policy")
    policy = policy if isinstance(policy, dict) else {}
    fewest, most = policy.get("min_replicas"), policy.get("max_replicas")
    notes = []
    if fewest is not None and most is not None and fewest != most:
        notes.append(f"replica_policy of {fewest} to {most} replicas ({_count(fewest)} are taken)")
    wanted = resources.get("accelerators") if isinstance(resources, dict) else None
    choices = _accelerators(wanted)
    environment = dict(_settings(task.get("envs")))
    if len(counts := {count for _, count in choices}) == 1:
        environment.setdefault("SKYPILOT_NUM_GPUS_PER_NODE", counts.pop())
    gpu = None
    if len(choices) == 1:
        ((name, _),) = choices
        gpu = AMBIGUOUS_GPUS.get(name.lower(), name.lower())
        if gpu is None:
            notes.append(f"accelerators {name} (name its memory by --gpu)")
    elif choices:
        notes.append(f"accelerators {' or '.join(name for name, _ in choices)} (name one by --gpu)")
    return Container(
        line=_line(["sh", str(task["run"])], {"environment": environment}),
        replicas=_count(service.get("replicas", fewest)),
        gpu=gpu,
        not_modelled=tuple(notes),
    )


def _accelerators(wanted: object) -> list[tuple[str, str]]:
    """Names and counts of SkyPilot's accelerators: `H100:2`, `{H100: 2}`, or several to choose from."""
    if isinstance(wanted, dict):
        return [(str(name), str(count or 1)) for name, count in wanted.items()]
    several = wanted if isinstance(wanted, list) else [] if wanted is None else [wanted]
    parts = [str(each).partition(":") for each in several]
    return [(name, count or "1") for name, _, count in parts]


def _containers(node: object, replicas: int, seen: set[int]) -> Iterator[Container]:
    """Of a part of a manifest, of which there are `replicas`, and of its parts; of what aliases repeat, once."""
    if not isinstance(node, list | dict) or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, list):
        for part in node:
            yield from _containers(part, replicas, seen)
        return
    deploy = node.get("deploy")  # compose has its number of replicas there
    replicas *= _count(node.get("replicas")) * _count(
        deploy.get("replicas") if isinstance(deploy, dict) else 1
    )
    started = [*_words(node.get("entrypoint")), *_words(node.get("command")), *_words(node.get("args"))]
    if started:
        yield Container(line=_line(started, node), replicas=replicas)
        return
    for part in node.values():
        yield from _containers(part, replicas, seen)


def _count(replicas: object) -> int:
    return replicas if isinstance(replicas, int) and replicas > 0 else 1


def _words(command: object) -> list[str]:
    """A list of words; a text of several is compose's, and split as a shell splits it."""
    if isinstance(command, str):
        return words_of(command)
    return [str(word) for word in command] if isinstance(command, list) else []


def _line(words: list[str], container: dict[object, object]) -> str:
    """The line of a container. A script that a shell is given stands for the shell; a line of it may be no server's."""
    environment = dict(_settings(container.get("env", container.get("environment"))))

    def filled(found: re.Match[str]) -> str:
        return environment.get(found[1] or found[2] or found[3], found[0])

    said = [_VARIABLE.sub(filled, word) for word in words]
    if _SHELL.fullmatch(said[0]):
        said = [word for script in said[1:] if not script.startswith("-") for word in _script(script)]
    image = container.get("image")
    settings = [f"{name}={value}" for name, value in environment.items()]
    return shlex.join([*settings, *([image] if isinstance(image, str) else []), *said])


def _script(text: str) -> list[str]:
    """The words of a script: a semicolon where a line ends that ends outside quotes."""
    lines = text.strip().replace("\\\r\n", " ").replace("\\\n", " ").split("\n")
    whole = lines[0]
    for line in lines[1:]:
        inside = any(whole.count(quote) % 2 for quote in "'\"")
        whole += f"\n{line}" if inside else f" ;\n{line}"
    return words_of(whole)


def _settings(environment: object) -> Iterator[tuple[str, str]]:
    """Names and values: Kubernetes' list of both, compose's mapping or list of NAME=VALUE. A value that a secret or the
    pod gives is none."""
    if isinstance(environment, dict):
        yield from ((str(name), str(value)) for name, value in environment.items() if value is not None)
    for entry in environment if isinstance(environment, list) else ():
        if isinstance(entry, dict) and "name" in entry and entry.get("value") is not None:
            yield str(entry["name"]), str(entry["value"])
        elif isinstance(entry, str) and "=" in entry:
            name, _, value = entry.partition("=")
            yield name, value


def only_one(servers: list[Container]) -> Container:
    """The one server of a manifest. Raises InvalidInput for several that differ."""
    if len({server.line for server in servers}) > 1:
        raise InvalidInput(
            f"{OPTION} holds {len(servers)} servers, which differ: paste one of them, or write each as a pool of a "
            "deployment file"
        )
    return servers[0]


EXAMPLES = (
    "vllm serve, python -m sglang.launch_server, trtllm-serve, text-generation-launcher, llama-server, "
    "ollama run"
)
_SETTING = re.compile(r"([A-Z][A-Z0-9_]+)=(.*)", re.DOTALL)
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?)|server-(?:\w+-)?(b\d+)")  # llama.cpp counts its builds
_PLANNED = re.compile(
    r"^\s*#\s*planned for (\S+) ([\w.]+)", re.MULTILINE
)  # as a plan writes above the command


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
