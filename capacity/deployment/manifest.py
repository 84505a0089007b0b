"""Read the server launch commands in a Kubernetes, compose or SkyPilot manifest."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from capacity.base.errors import InvalidInput
from capacity.deployment.command_words import OPTION, NoServerError, split_command

_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z)?sh")
_VARIABLE = re.compile(r"\$(?:\((\w+)\)|\{(\w+)\}|(\w+))")
_FIRST_LINE = re.compile(r"(?:\s*(?:#.*)?\n|---.*\n)*[\w.-]+:(?:\s|$)")
KINDS = {  # Kubernetes objects with pods that have commands, and related objects
    *("CronJob", "DaemonSet", "Deployment", "Job", "LeaderWorkerSet", "List", "Pod", "ReplicaSet"),
    *("ReplicationController", "StatefulSet", "ConfigMap", "HorizontalPodAutoscaler", "Ingress", "Namespace"),
    *("PersistentVolumeClaim", "Secret", "Service", "ServiceAccount"),
}
PASTE_COMMAND = "paste the launch command, or use a Deployment, a compose file or a SkyPilot task"
USE_RENDERED = "use the output of `helm template`, or paste the launch command"
OTHER_FILE_KINDS = {  # by a key of the mapping: kind of file, and the input to give instead
    "servingEngineSpec": ("Helm values of the vLLM production stack", USE_RENDERED),
    "replicaCount": ("Helm values", USE_RENDERED),
    "image": ("Helm values", USE_RENDERED),
    "applications": ("a Ray Serve configuration", PASTE_COMMAND),
    "model": ("a file of server options", "paste the command that reads it: `vllm serve --config FILE`"),
}
AMBIGUOUS_GPUS = {"a100": "a100-sxm-40gb", "v100": None}  # SkyPilot's A100 has 40 GB, its V100 16 GB


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container: its environment, image and command as one line, and its number of replicas.

    `gpu`: GPU named in the manifest. `not_modelled`: settings that are replaced by an assumption, with that
    assumption.
    """

    line: str
    replicas: int = 1
    gpu: str | None = None
    not_modelled: tuple[str, ...] = ()


def read_containers(text: str) -> tuple[Container, ...]:
    """Return the containers of a manifest that have a command, in order; empty if the text is not a manifest.

    Reads `command` and `args` of Kubernetes, `entrypoint` and `command` of compose, `run` of SkyPilot, `replicas`, and
    environment variables, whose values replace `$(NAME)`, `${NAME}` and `$NAME`. Raises InvalidInput for shell text
    that cannot be split into words.
    """
    found: list[Container] = []
    for document in _documents(text):
        if isinstance(document.get("run"), str) and "kind" not in document:
            found.append(_skypilot(document))
        elif "services" in document if "kind" not in document else document["kind"] in KINDS:
            found += _containers(document, 1, set())
    return tuple(found)


def reject_manifest(text: str) -> None:
    """Raise InvalidInput if the text is a YAML mapping, which is never a shell command; the message names its kind."""
    documents = _documents(text)
    if not documents and "\n" in text.strip() and _FIRST_LINE.match(text):
        raise InvalidInput(
            f"{OPTION} looks like YAML and cannot be parsed as YAML: correct it, or {PASTE_COMMAND}"
        )
    for document in documents:
        kind, way_out = _kind(document)
        if kind not in KINDS:
            raise InvalidInput(f"{OPTION} is {kind}, which cannot be read: {way_out}")
    if documents:
        raise NoServerError(
            f"{OPTION} must contain a command that launches a server, but no container of the manifest has one in its "
            "command or args"
        )


def _kind(document: Mapping[object, object]) -> tuple[str, str]:
    """Return the kind of file that a YAML mapping is, and advice on what to give instead."""
    if "kind" in document:
        return str(document["kind"]), PASTE_COMMAND
    if "services" in document:
        return "Pod", PASTE_COMMAND
    keys = ", ".join(list(map(str, document))[:3])
    return next(
        (known for key, known in OTHER_FILE_KINDS.items() if key in document),
        (f"YAML of {keys}", PASTE_COMMAND),
    )


def _documents(text: str) -> list[dict[object, object]]:
    """Return the mappings of a YAML text if all keys are names; empty for other text, such as a command."""
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError, ValueError):
        return []
    mappings = [document for document in documents if isinstance(document, dict)]
    names = (str(key) for document in mappings for key in document)
    return mappings if all(re.fullmatch(r"[\w.-]+", name) for name in names) else []


def _skypilot(task: dict[object, object]) -> Container:
    """Return a SkyPilot task as a container: its script, the minimum replicas of its service, and its accelerators."""
    service = _mapping(task, "service")
    policy = _mapping(service, "replica_policy")
    fewest, most = policy.get("min_replicas"), policy.get("max_replicas")
    notes = []
    if fewest is not None and most is not None and fewest != most:
        notes.append(f"replica_policy of {fewest} to {most} replicas ({_count(fewest)} assumed)")
    choices = _accelerators(_mapping(task, "resources").get("accelerators"))
    environment = dict(_settings(task.get("envs")))
    if len(counts := {count for _, count in choices}) == 1:
        environment.setdefault("SKYPILOT_NUM_GPUS_PER_NODE", counts.pop())
    gpu = None
    if len(choices) == 1:
        ((name, _),) = choices
        gpu = AMBIGUOUS_GPUS.get(name.lower(), name.lower())
        if gpu is None:
            notes.append(f"accelerators {name} (has several memory sizes; select one with --gpu)")
    elif choices:
        notes.append(f"accelerators {' or '.join(name for name, _ in choices)} (select one with --gpu)")
    return Container(
        line=_line(["sh", str(task["run"])], {"environment": environment}),
        replicas=_count(service.get("replicas", fewest)),
        gpu=gpu,
        not_modelled=tuple(notes),
    )


def _accelerators(wanted: object) -> list[tuple[str, str]]:
    """Return names and counts of SkyPilot accelerators: `H100:2`, `{H100: 2}`, or several alternatives."""
    if isinstance(wanted, dict):
        return [(str(name), str(count or 1)) for name, count in wanted.items()]
    several = wanted if isinstance(wanted, list) else [] if wanted is None else [wanted]
    parts = [str(each).partition(":") for each in several]
    return [(name, count or "1") for name, _, count in parts]


def _containers(node: object, replicas: int, seen: set[int]) -> Iterator[Container]:
    """Yield the containers in one node of a manifest and in its nested nodes.

    `replicas`: replicas of the node, which multiply those of nested nodes. A repeated node (YAML alias) counts once.
    """
    if not isinstance(node, list | dict) or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, list):
        for part in node:
            yield from _containers(part, replicas, seen)
        return
    replicas *= _count(node.get("replicas"))
    replicas *= _count(_mapping(node, "deploy").get("replicas"))  # replicas in a compose file
    started = [*_words(node.get("entrypoint")), *_words(node.get("command")), *_words(node.get("args"))]
    if started:
        yield Container(line=_line(started, node), replicas=replicas)
        return
    for part in node.values():
        yield from _containers(part, replicas, seen)


def _mapping(node: Mapping[object, object], key: str) -> dict[object, object]:
    """Return the value of `key` if it is a mapping; otherwise an empty mapping."""
    found = node.get(key)
    return found if isinstance(found, dict) else {}


def _count(replicas: object) -> int:
    return replicas if isinstance(replicas, int) and replicas > 0 else 1


def _words(command: object) -> list[str]:
    """Return the words of a command: a list as it is, a single text (as in compose) split as a shell splits it."""
    if isinstance(command, str):
        return split_command(command)
    return [str(word) for word in command] if isinstance(command, list) else []


def _line(words: list[str], container: dict[object, object]) -> str:
    """Return the command of a container as one line, after its environment variables and its image.

    If the command is `sh -c SCRIPT`, the words of SCRIPT replace it.
    """
    environment = dict(_settings(container.get("env", container.get("environment"))))

    def fill_variable(found: re.Match[str]) -> str:
        return environment.get(found[1] or found[2] or found[3], found[0])

    said = [_VARIABLE.sub(fill_variable, word) for word in words]
    if _SHELL.fullmatch(said[0]):
        said = [word for script in said[1:] if not script.startswith("-") for word in _script(script)]
    image = container.get("image")
    settings = [f"{name}={value}" for name, value in environment.items()]
    return shlex.join([*settings, *([image] if isinstance(image, str) else []), *said])


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


def require_one_server(servers: list[Container]) -> Container:
    """Return the server of a manifest. Raises InvalidInput if the manifest has several different servers."""
    if len({server.line for server in servers}) > 1:
        raise InvalidInput(
            f"{OPTION} contains {len(servers)} different servers: paste one of them, or write each as a pool of a "
            "deployment file"
        )
    return servers[0]
