"""Search hardware profiles: the search path, and the file of a name or alias."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from capacity.base.data_files import user_folder
from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.base.external_files import is_file, outside_path, parse_toml, read_text
from capacity.base.plugins import plugin_file, plugin_names

PROFILES_VARIABLE = "CAPACITY_PROFILES"
FIRST_FOLDERS: list[Callable[[], Sequence[Path]]] = []
"""Functions that return folders to search first; a server adds the folders of the current session."""
_COUNT_PATTERNS = (
    re.compile(r"(?P<count>\d+) ?[xX*] ?(?P<gpu>.+)"),
    re.compile(r"(?P<gpu>.+?) ?[xX*:] ?(?P<count>\d+)"),
)


def profile_names(directories: Sequence[Path | str] = ()) -> tuple[str, ...]:
    """Return the sorted names of all profiles and variants (`name@variant`), including those of plug-ins."""
    return tuple(sorted({*(path.stem for path in profile_paths(directories)), *plugin_names("profiles")}))


def has_profile(name: str) -> bool:
    """Return whether a profile has this name. Plug-ins are searched last, because that takes long."""
    return any(path.stem == name for path in profile_paths()) or name in plugin_names("profiles")


def first_folders() -> tuple[Path, ...]:
    """Return the profile folders that are searched first, from all functions in `FIRST_FOLDERS`."""
    return tuple(folder for find_folders in FIRST_FOLDERS for folder in find_folders())


def _search_path(directories: Iterable[Path | str]) -> list[Path]:
    chosen = [*first_folders(), *map(outside_path, directories), *_environment_directories()]
    for directory in chosen:
        if not directory.is_dir():
            raise InvalidInput(
                f"hardware profiles folder {str(directory)!r} does not exist; "
                f"check --profiles and the environment variable {PROFILES_VARIABLE}"
            )
    own = user_profiles_directory()
    return [*chosen, *([own] if own.is_dir() and own not in chosen else []), bundled_directory()]


def user_profiles_directory() -> Path:
    """Return the folder of the user's own profiles: the first folder in CAPACITY_PROFILES, else the default folder."""
    return next(iter(_environment_directories()), None) or user_folder("profiles")


def use_text(name: str, path: Path | str) -> str:
    """Return the line that tells where a profile was written, and which flags select it."""
    folder = Path(path).parent
    option = "" if folder == user_profiles_directory() else f" --profiles {folder}"
    return f"written: {path}; use it with --gpu {name}{option}"


def _environment_directories() -> list[Path]:
    return [outside_path(part) for part in os.environ.get(PROFILES_VARIABLE, "").split(os.pathsep) if part]


def bundled_directory() -> Path:
    """Return the folder of bundled profiles: inside the package in a wheel, next to it in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "hardware_profiles"
    return inside if inside.is_dir() else package.parent / "hardware_profiles"


def profile_paths(directories: Sequence[Path | str] = ()) -> list[Path]:
    """Return the profile files on the search path, in search order."""
    found = []
    for folder in _search_path(directories):
        with os.scandir(folder) as entries:
            names = [each.name for each in entries if each.name.endswith(".toml") and each.is_file()]
        found += [folder / name for name in sorted(names)]
    return found


def _reject_counts(name: str, known: set[str]) -> None:
    """Raise InvalidInput if `name` is several GPUs where one is expected: `8xH100`, `h100:8`, `h100,a100`."""
    for counted in (pattern.fullmatch(name.strip()) for pattern in _COUNT_PATTERNS):
        if counted and _normalise(counted["gpu"]) in known:
            raise InvalidInput(
                f"{name!r} must name one GPU without a number; set the number with --tensor-parallel-size: "
                f"--gpu {counted['gpu']} -tp {counted['count']}"
            )
    several = [each.strip() for each in name.split(",")]
    if len(several) > 1 and all(_normalise(each) in known for each in several):
        raise InvalidInput(
            f"{name!r} must name one GPU; to compare several, use `capacity estimate --gpu all` or "
            f"`capacity plan --gpus {','.join(several)}`"
        )


def find_profile(name: str, directories: Sequence[Path | str]) -> Path:
    wanted = _normalise(name)
    if Path(wanted).name == wanted:
        for folder in _search_path(directories):
            path = folder / f"{wanted}.toml"
            if is_file(path):
                return path
    paths = profile_paths(directories)
    by_name: dict[str, Path] = {}
    for path in paths:
        by_name.setdefault(path.stem, path)
    base, _, variant = wanted.partition("@")
    aliases = _read_aliases(tuple(paths))
    resolved = aliases.get(base, base) + (f"@{variant}" if variant else "")
    if resolved in by_name:
        return by_name[resolved]
    if plugin := plugin_file("profiles", wanted):
        return plugin
    _reject_counts(name, {*aliases, *by_name})
    note = " Name the folder of a calibrated profile with --profiles." if variant else ""
    raise UnknownName(
        "hardware profile", name, (*by_name, *plugin_names("profiles")), aliases=aliases, note=note
    )


def replace_alias(name: str) -> str:
    """Return the name of the profile with this alias; any other text is returned unchanged."""
    return _read_aliases(tuple(profile_paths())).get(_normalise(name), name)


@lru_cache(maxsize=8)
def _read_aliases(paths: tuple[Path, ...]) -> dict[str, str]:
    """Return a mapping from aliases to profile names. Only the lines above the first table of each file are parsed."""
    names: dict[str, str] = {}
    for path in paths:
        if "@" in path.stem:
            continue
        try:
            head = read_text(path, "a hardware profile").split("\n[", 1)[0]
            aliases = parse_toml(head, path).get("aliases", [])
        except MalformedFile:
            continue  # the error is raised when that profile is loaded by its name
        for alias in aliases if isinstance(aliases, list) else ():
            names.setdefault(_normalise(str(alias)), path.stem)
    return names


def _normalise(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")
