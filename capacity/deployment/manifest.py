"""The servers that a Kubernetes manifest or a compose file starts, as the lines that a shell would start them with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from capacity.base.errors import InvalidInput
from capacity.deployment.launched import OPTION, words_of

_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z)?sh")
_VARIABLE = re.compile(r"\$(?:\((\w+)\)|\{(\w+)\}|(\w+))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What one container runs: settings, its image and its words, as one line; and how many of it there are."""

    line: str
    replicas: int = 1


def containers_of(text: str) -> tuple[Container, ...]:
    """The containers of a manifest that say what they run, in its order; none where the text is no manifest.

    Read are `command` and `args` of Kubernetes, `entrypoint` and `command` of compose, their environments, for which
    `$(NAME)`, `${NAME}` and `$NAME` stand, and `replicas`. Raises InvalidInput for a shell's text that has no words.
    """
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError, ValueError):
        return ()
    return tuple(_containers(documents, 1, set()))


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
