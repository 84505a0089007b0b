"""Location of a server's settings in each file format (`server_forms.toml`), to read and to write these files."""

import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from capacity.base.spec import Spec

TABLE = Path(__file__).with_suffix(".toml")
Keys = tuple[str, ...]
_SLASH = "/"


class ServerForm(Spec):
    """Paths of a server in one file format.

    `kinds` and `keys`: Kubernetes kinds, or top-level keys, by which a document is recognised. `servers`: paths of
    mappings with one server each. `containers`: paths of its containers, with `image`, `command` and `environment`
    inside; `script`: the command is a shell script. `program`: words before a command that is only arguments.
    `options`: mapping of flags without dashes. `model`: paths of the model, best first. `create`: the server exists
    only if this is true. `more_arguments`: environment variable with flags. `absent`: values of missing keys.
    `runtime`: name of another document whose container the server uses.
    """

    name: str
    kinds: Keys = ()
    keys: Keys = ()
    servers: Keys
    containers: Keys = ("containers/*",)
    image: Keys = ("image",)
    command: Keys = ("command", "args")
    script: bool = False
    environment: Keys = ("env", "environment")
    program: str | None = None
    runtime: str | None = None
    options: str | None = None
    model: Keys = ()
    create: str | None = None
    replicas: Keys = ()
    replica_range: Keys = ()
    accelerators: str | None = None
    gpu_labels: Keys = ()
    gpu_count: Keys = ()
    roles: Keys = ()
    more_arguments: str | None = None
    vllm_flags: dict[str, str] = Field(default_factory=dict)
    absent: dict[str, bool] = Field(default_factory=dict)
    no_effect: Keys = ()

    def read_paths(self) -> Iterator[Keys]:
        """Yield the path, from the root of the document, of each setting that is read or has no effect."""
        single = (self.accelerators, self.create, self.options, self.runtime)
        own = (
            *self.replicas,
            *self.replica_range,
            *self.model,
            *self.gpu_labels,
            *self.gpu_count,
            *self.roles,
        )
        inside = [
            f"{place}/{key}".strip("/")
            for place in self.containers
            for key in (*self.image, *self.command, *self.environment, "resources", "name")
        ]
        for path in (*own, *self.no_effect, *self.vllm_flags, *inside, *(p for p in single if p is not None)):
            for server in ("",) if path.startswith("/") else self.servers:
                yield split_path(f"{server}/{path}")

    def unread(self, document: object) -> tuple[str, ...]:
        """Return the keys of a document that are not read and may have an effect, grouped by the path of their parent.

        Values are not included, because they may be secrets.
        """
        groups: dict[Keys, list[str]] = {}
        for *parent, key in _unread(document, (), list(self.read_paths())):
            groups.setdefault(tuple(parent), []).append(key)
        return tuple(
            f"{', '.join(keys)}{f' of {_SLASH.join(parent)}' if parent else ''} (not read)"
            for parent, keys in groups.items()
        )


def split_path(path: str) -> Keys:
    """Return the names in a path; a name with a slash (`nvidia.com/gpu.product`) is one name."""
    names = path.replace("nvidia.com/", "nvidia.com\0").split("/")
    return tuple(name.replace("\0", "/") for name in names if name)


def find(node: object, path: str) -> Iterator[Any]:
    """Yield the values at a path; `*` is every element of a mapping or a list."""
    found = [node]
    for name in split_path(path):
        inside = [items(each) for each in found]
        found = [value for each in inside for key, value in each.items() if name in ("*", key)]
    yield from (value for value in found if value is not None)


def items(node: object) -> Mapping[str, Any]:
    """Return the elements of a mapping by key or of a list by number; empty for other values."""
    if isinstance(node, dict):
        return {str(key): value for key, value in node.items()}
    return {str(number): value for number, value in enumerate(node)} if isinstance(node, list) else {}


def _unread(node: object, path: Keys, read: list[Keys]) -> Iterator[Keys]:
    for key, value in items(node).items():
        here = (*path, key)
        matching = [each for each in read if all(map(fnmatchcase, here, each)) and len(each) >= len(here)]
        if key in _table()["names"]["no_effect"] or any(len(each) == len(here) for each in matching):
            continue
        if matching and isinstance(value, dict | list):
            yield from _unread(value, here, read)
        elif value not in (None, {}, []):
            yield here


@cache
def _table() -> Any:
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


@cache
def server_forms() -> tuple[ServerForm, ...]:
    """Return the file formats that describe servers; a document has the first format that matches it."""
    return tuple(ServerForm.model_validate(form) for form in _table()["forms"])


def gpu_name(name: str) -> str:
    """Return this package's name of a GPU, from the name in another tool's files."""
    names: dict[str, str] = _table()["gpus"]
    return names.get(name) or names.get(name.lower()) or name.lower()


def is_product(name: str) -> bool:
    """Return whether a name is a known value of the label `nvidia.com/gpu.product`."""
    return name in _table()["gpus"] and name[:1].isupper()


def gpu_product(gpu: str) -> str | None:
    """Return the value of the label `nvidia.com/gpu.product` of a GPU; None if it is not known."""
    return next((name for name, ours in _table()["gpus"].items() if ours == gpu and is_product(name)), None)
