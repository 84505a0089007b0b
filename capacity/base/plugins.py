"""Plug-ins: routers, policies, GPU profiles, models, trace readers and verbs of other installed packages.

A package names them as entry points of the groups `capacity.routers`, ..., `capacity.verbs` in its pyproject.toml.
Entry points are read only if a name is not built in or a list of names is requested, and a plug-in is imported only
when it is used. Built-in names take precedence. `docs/template` is an example.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capacity.base.errors import InvalidInput

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KINDS = {  # by group: what one plug-in is called
    "routers": "router",
    "policies": "scheduling policy",
    "profiles": "hardware profile",
    "models": "model",
    "readers": "trace reader",
    "verbs": "verb",
}


@cache
def _entry_points(group: str) -> dict[str, list[EntryPoint]]:
    from importlib.metadata import entry_points  # takes as long to import as all of this package's start

    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=f"capacity.{group}"):
        found.setdefault(point.name, []).append(point)
    return found


def plugin_names(group: str) -> tuple[str, ...]:
    """Return the sorted names of a group's plug-ins, without importing them."""
    return tuple(sorted(_entry_points(group)))


def plugin_package(group: str, name: str) -> str:
    """Return the name and version of the package that provides a plug-in; several packages are joined by "and"."""
    packages = (point.dist for point in _entry_points(group)[name])
    return " and ".join(f"{package.name} {package.version}" for package in packages if package is not None)


def load_plugin(group: str, name: str, needed: str, accepts: Callable[[Any], bool]) -> Any:
    """Return the object of a plug-in, or None if no package provides the name.

    Raises InvalidInput, with the name of the package, if the plug-in cannot be imported, if `accepts` returns False for
    its object, or if several packages provide the name. `needed` describes the accepted objects in the error.
    """
    found = _entry_points(group).get(name)
    if found is None:
        return None
    subject = f"{KINDS[group]} {name!r} of the package {plugin_package(group, name)}"
    if len(found) > 1:
        raise InvalidInput(f"{subject}: uninstall one, because both provide this name")
    try:
        plugin = found[0].load()
    except (Exception, SystemExit) as error:  # code of others
        reason = f"{type(error).__name__}: {error}"
        raise InvalidInput(f"{subject} cannot be loaded ({reason}): update or uninstall it") from None
    if not accepts(plugin):
        raise InvalidInput(f"{subject} is {type(plugin).__name__} {plugin!r}: it must be {needed}")
    return plugin


def plugin_file(group: str, name: str) -> Path | None:
    """Return the path of a plug-in that is a file, or None if no package provides the name. Raises InvalidInput."""
    path = load_plugin(group, name, "a str or pathlib.Path of a file", lambda it: isinstance(it, (str, Path)))
    return None if path is None else Path(path)
