"""Read the launch commands of servers in a YAML file.

The formats, listed in `server_forms.toml`, are Kubernetes manifests, Helm values, compose files, SkyPilot tasks and
files with the options of an engine.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.external_files import parse_yaml
from capacity.deployment.command_words import OPTION, NoServerError, flatten, split_command
from capacity.deployment.flag_table import image_engine
from capacity.deployment.server_forms import ServerForm, find, gpu_name, is_product, items, server_forms

_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z)?sh")
_VARIABLE = re.compile(r"\$(?:\((\w+)\)|\{(\w+)\}|(\w+))")
_FIRST_LINE = re.compile(r"(?:\s*(?:#.*)?\n|---.*\n)*(?:- )?[\w.\"'-]+:(?:\s|$)")
_KEY = re.compile(r"[\w./-]+")
RELATED_KINDS = (  # objects next to a server, without one
    *("ConfigMap", "Ingress", "Namespace", "PersistentVolumeClaim", "PersistentVolume", "Secret", "Service"),
    *("ServiceAccount", "InferencePool", "HTTPRoute", "Gateway", "PodMonitor", "ServiceMonitor"),
)
RUNTIMES = ("ServingRuntime", "ClusterServingRuntime")
AUTOSCALERS = ("HorizontalPodAutoscaler", "ScaledObject")
PASTE_COMMAND = "paste the launch command"
JSON_OPTIONS = ("speculative_config", "kv_transfer_config", "override_generation_config")
SCHEMES = ("hf://", "huggingface://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One server: its environment, image and command as one line, and its number of replicas.

    `model`: model named outside the command, used if the command has none or a local path. `role`: prefill, decode or
    empty. `gpu` and `gpu_count`: GPU and number of GPUs named in the file. `not_modelled`: settings that are not
    modelled, each with the assumption that replaces it.
    """

    line: str
    replicas: int = 1
    model: str = ""
    role: str = ""
    gpu: str | None = None
    gpu_count: int | None = None
    not_modelled: tuple[str, ...] = ()


def read_containers(text: str) -> tuple[Container, ...]:
    """Return the containers with a command in a YAML file, in order; empty if the text is not YAML.

    Environment variables replace `$(NAME)`, `${NAME}` and `$NAME` in commands. Raises InvalidInput for a YAML file
    whose format is not known, for YAML that cannot be parsed, and for shell text that cannot be split into words.
    """
    documents = _documents(text)
    found: list[Container] = []
    unknown: list[dict[str, object]] = []
    notes: list[str] = []
    for document in documents:
        kind = document.get("kind")
        if kind in RUNTIMES and any(each.get("kind") == "InferenceService" for each in documents):
            continue  # a service adds its own arguments
        if (form := _form(document)) is not None:
            found += _containers(document, form, documents)
        elif kind in AUTOSCALERS:
            notes.append(f"{kind} (autoscaling is not simulated; the number of replicas in the file is used)")
        elif kind not in RELATED_KINDS:
            unknown.append(document)
            notes.append(f"{kind or 'a mapping without kind'} (not read)")
    if unknown and not found:
        raise InvalidInput(f"{OPTION} is {_describe(unknown[0])}")
    if documents and not found:
        raise NoServerError(
            f"{OPTION} must contain a command that launches a server, but no container of the file has one in its "
            "command or args"
        )
    return tuple(replace(each, not_modelled=(*each.not_modelled, *notes)) for each in found)


def _documents(text: str) -> list[dict[str, object]]:
    """Return the mappings in a YAML text, also those in lists and in text blocks; empty if the text is not YAML."""
    if "\n" not in text:
        return []
    try:
        documents = parse_yaml(text, OPTION)
    except MalformedFile as error:
        if _FIRST_LINE.match(text):
            raise InvalidInput(f"{error}: correct it, or {PASTE_COMMAND}") from None
        return []
    if not _FIRST_LINE.match(text) and not all(isinstance(each, dict | None) for each in documents):
        return []
    return [each for document in documents for each in _inner_documents(document)]


def _inner_documents(document: object) -> Iterator[dict[str, object]]:
    if isinstance(document, list):  # a list is not a manifest, nor a shell command
        raise InvalidInput(f"{OPTION} is a YAML list, which cannot be read: {PASTE_COMMAND}")
    if not isinstance(document, dict):
        return
    if document.get("kind") == "List":
        for part in document.get("items") or ():
            yield from _inner_documents(part)
        return
    if document.get("kind") == "RayService":
        for config in find(document, "spec/serveConfigV2"):
            for part in parse_yaml(str(config), f"{OPTION}, spec/serveConfigV2"):
                yield from _inner_documents(part)
        return
    yield document


def _form(document: dict[str, object]) -> ServerForm | None:
    kind = document.get("kind")
    for form in server_forms():
        if kind in form.kinds if "kind" in document else any(key in document for key in form.keys):
            return form
    return None


def _describe(document: dict[str, object]) -> str:
    """Return text for an error: the kind of a document with an unknown format, and what to give instead."""
    keys = ", ".join(name for name in list(map(str, document))[:3] if _KEY.fullmatch(name))
    known = ", ".join(form.name for form in server_forms())
    return (
        f"{document.get('kind') or f'YAML with {keys}'}, which cannot be read: {PASTE_COMMAND}, or give one of "
        f"{known}; for another Helm chart, the output of `helm template`"
    )


def _containers(
    document: dict[str, object], form: ServerForm, documents: list[dict[str, object]]
) -> list[Container]:
    """Return the containers of a document's servers, with a note on the keys that are not read."""
    found = [
        (server, container)
        for path in form.servers
        for server in find(document, path)
        for container in _server(server, path, document, form, documents)
    ]
    read = [container for _, container in found]
    if any(container.role == "prefill" for container in read):
        read = [replace(container, role=container.role or "decode") for container in read]
    else:
        read = [replace(container, role="") for container in read]
    note = () if form.options == "" else form.unread(document)
    return [replace(container, not_modelled=(*container.not_modelled, *note)) for container in read]


def _server(
    server: object,
    path: str,
    document: dict[str, object],
    form: ServerForm,
    documents: list[dict[str, object]],
) -> Iterator[Container]:
    """Yield the containers of one server, each with its command as one line."""
    if form.create is not None and False in find(server, form.create):
        return
    notes: list[str] = []
    bounds = [
        next((n for n in find(server, name) if isinstance(n, int)), None) for name in form.replica_range
    ]
    replicas = next(
        (n for name in form.replicas for n in find(_start_of_path(server, document, name), name)), None
    )
    if replicas is None and bounds:
        replicas = bounds[0]
    if len(bounds) == 2 and bounds[1] is not None and bounds[0] != bounds[1]:
        notes.append(f"{bounds[0] or 1} to {bounds[1]} replicas ({_count(replicas)} assumed)")
    if replicas == 0 and form.create is not None:
        return
    model, model_notes = _model(server, document, form)
    gpu, count, gpu_notes = _gpu(server, form)
    roles = [str(role) for name in form.roles for role in find(server, name)]
    role = "prefill" if path.endswith("prefill") or "prefill" in roles else ""
    flags = list(_flags(server, form))
    containers: list[object] = [
        each for place in form.containers for each in find(server, place) if isinstance(each, dict)
    ]
    if form.runtime is not None:
        containers = _add_runtime(containers, next(find(server, form.runtime), None), documents)
    for container in containers or ([{}] if form.program else []):
        line = _container_line(container, form, flags, gpu_count=count)
        if line is not None:
            role = "prefill" if "--is-prefill-worker" in line else role
            gpus = count or next((n for n in map(whole_number, _gpu_limits(container)) if n), None)
            yield Container(
                line=line,
                replicas=_count(replicas),
                model=model,
                role=role,
                gpu=gpu,
                gpu_count=gpus,
                not_modelled=(*notes, *model_notes, *gpu_notes),
            )


def _start_of_path(server: object, document: object, path: str) -> object:
    return document if path.startswith("/") else server


def _model(server: object, document: object, form: ServerForm) -> tuple[str, tuple[str, ...]]:
    """Return the first model that is a Hugging Face id or a local path, and notes on models at other addresses."""
    skipped: list[str] = []
    for path in form.model:
        for value in find(_start_of_path(server, document, path), path):
            name = str(value)
            for scheme in SCHEMES:
                name = name.removeprefix(scheme)
            if isinstance(value, str) and "://" not in name and "{{" not in name:
                return name, tuple(f"{each} (the model is assumed to be {name})" for each in skipped)
            if "{{" not in str(value):
                skipped.append(path.strip("/"))
    return "", ()


def _gpu(server: object, form: ServerForm) -> tuple[str | None, int | None, tuple[str, ...]]:
    """Return the GPU that a server names, the number of GPUs, and notes if the file allows several.

    GPU and number are None if the file has none. Labels at a path with `*` are read only if they are known GPUs.
    """
    labels = [(path, str(label)) for path in form.gpu_labels for label in find(server, path)]
    choices = [(label, "") for path, label in labels if "*" not in path or is_product(label)]
    unknown = [path.partition("/")[0] for path, label in labels if "*" in path and not is_product(label)]
    notes = tuple(f"{name} (not a known GPU; select one with --gpu)" for name in dict.fromkeys(unknown))
    for wanted in find(server, form.accelerators) if form.accelerators else ():
        pairs = wanted if isinstance(wanted, dict) else dict.fromkeys(items(wanted).values() or (wanted,))
        named = (
            str(key).partition(":")[::2] if count is None else (key, count) for key, count in pairs.items()
        )
        choices += [(str(name), str(count or "1")) for name, count in named]
    given = [whole_number(count) for _, count in choices if count and form.script]
    given += [whole_number(count) for path in form.gpu_count for count in find(server, path)]
    counts = list(dict.fromkeys(count for count in given if count))
    count = counts[0] if counts else None
    if len(counts) > 1:
        notes += (f"{' or '.join(map(str, counts))} GPUs ({count} assumed)",)
    if len(choices) > 1:
        names = " or ".join(dict.fromkeys(name for name, _ in choices))
        return None, count, (*notes, f"{names} (select one with --gpu)")
    if choices and choices[0][0].lower() == "v100":
        return None, count, (*notes, "V100 (has several memory sizes; select one with --gpu)")
    return (gpu_name(choices[0][0]) if choices else None), count, notes


def _flags(server: object, form: ServerForm) -> Iterator[str]:
    """Yield vLLM's flags for the settings of a server that the file has outside the command."""
    for path, flag in form.vllm_flags.items():
        holder = path.rpartition("/")[0]
        values = list(find(server, path))
        if not values and path in form.absent and any(True for _ in find(server, holder)):
            values = [form.absent[path]]
        for value in values:
            if isinstance(value, bool):
                yield flag if value else flag.replace("--", "--no-", 1)
            elif flag != "--data-parallel-size" or value != 1:
                yield f"{flag}={value}"
    for options in find(server, form.options) if form.options is not None else ():
        for name, value in items(options).items():
            if name.replace("-", "_") in JSON_OPTIONS and isinstance(value, dict):
                yield f"--{name}={json.dumps(value)}"
            else:
                yield from (f"--{key}={text}" for key, text in flatten(value, name))


def _add_runtime(containers: list[object], name: object, documents: list[dict[str, object]]) -> list[object]:
    """Return the containers with the image and the command of the runtime named in another document."""
    for document in documents:
        if document.get("kind") in RUNTIMES and name in find(document, "metadata/name"):
            for base in find(document, "spec/containers/0"):
                return [_merge(items(base), items(each)) for each in containers] or [base]
    return containers


def _merge(base: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    lists = {name: [*_words(base.get(name)), *_words(own.get(name))] for name in ("command", "args")}
    return {**base, **own, **lists}


def _gpu_limits(container: object) -> Iterator[object]:
    for group in ("limits", "requests"):
        for name in ("nvidia.com/gpu", "amd.com/gpu"):
            yield items(items(items(container).get("resources")).get(group)).get(name)


def whole_number(value: object) -> int | None:
    """Return a count from a number or a text in a file; None for any other value."""
    return int(str(value)) if str(value).isdecimal() and len(str(value)) < 6 else None


def _count(replicas: object) -> int:
    return replicas if isinstance(replicas, int) and replicas > 0 else 1


def _words(command: object) -> list[str]:
    """Return the words of a command, which a file has as a list or (as in compose) as one text for a shell."""
    if isinstance(command, str):
        return split_command(command)
    return [str(word) for word in command] if isinstance(command, list) else []


def _container_line(
    container: object, form: ServerForm, flags: list[str], *, gpu_count: int | None
) -> str | None:
    """Return the command of a container as one line, after its environment variables and its image; None: no command.

    If the command is `sh -c SCRIPT`, the words of SCRIPT replace it.
    """
    environment = {
        key: value
        for path in form.environment
        for node in find(container, path)
        for key, value in _settings(node)
    }
    if form.script and gpu_count:
        environment.setdefault("SKYPILOT_NUM_GPUS_PER_NODE", str(gpu_count))
    words = _command_words(container, form, environment)
    image = ":".join(
        str(part).removeprefix("docker:")
        for path in form.image
        for part in find(container, path)
        if not form.script or str(part).startswith("docker:")
    )
    started = not form.program or (bool(words) and not words[0].startswith("-"))
    if started and words and (form.script or _SHELL.fullmatch(words[0])):
        scripts = words if form.script else words[1:]
        words = [word for script in scripts if not script.startswith("-") for word in _script(script)]
    if form.more_arguments:
        words += split_command(environment.pop(form.more_arguments, ""))
    if not started and form.program:
        program = [] if image and image_engine(image) else form.program.split()
        words = [*program, *flags, *words]
    elif flags:
        words = [*words, *flags]
    if not words and not form.program:
        return None
    settings = [f"{name}={value}" for name, value in environment.items()]
    before = (
        [image, *([";"] if form.script else [])] if image else []
    )  # a script is not arguments of the image
    return shlex.join([*settings, *before, *words])


def _command_words(container: object, form: ServerForm, environment: Mapping[str, str]) -> list[str]:
    """Return the words of a container's command, with variables replaced; a shell script is one word."""

    def fill_variable(found: re.Match[str]) -> str:
        return environment.get(found[1] or found[2] or found[3], found[0])

    given = [
        word
        for path in form.command
        for node in find(container, path)
        for word in ([node] if form.script else _words(node))
    ]
    words = [_VARIABLE.sub(fill_variable, str(word)) for word in given]
    if form.program and words and "{{" in words[0] and not words[0].startswith("-"):
        return words[1:]  # without the model, which is a template
    return words


def _script(text: str) -> list[str]:
    """Return the words of a script, with a semicolon at each line end outside quotes."""
    lines = text.strip().replace("\\\r\n", " ").replace("\\\n", " ").split("\n")
    whole = lines[0]
    for line in lines[1:]:
        inside = any(whole.count(quote) % 2 for quote in "'\"")
        whole += f"\n{line}" if inside else f" ;\n{line}"
    return split_command(whole)


def _settings(environment: object) -> Iterator[tuple[str, str]]:
    """Yield names and values of environment variables, from the lists and mappings of Kubernetes or compose.

    Values from a secret or the pod are omitted.
    """
    if isinstance(environment, dict):
        yield from ((str(name), str(value)) for name, value in environment.items() if value is not None)
    for entry in environment if isinstance(environment, list) else ():
        if isinstance(entry, dict) and "name" in entry and entry.get("value") is not None:
            yield str(entry["name"]), str(entry["value"])
        elif isinstance(entry, str) and "=" in entry:
            name, _, value = entry.partition("=")
            yield name, value
