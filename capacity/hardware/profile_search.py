"""Where profiles are: the folders in the order of search, and the file behind a name or an alias."""

import os
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from capacity.base.data_files import user_folder
from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.base.outside import is_file, outside_path, parse_toml, read_text

PROFILES_VARIABLE = "CAPACITY_PROFILES"
_COUNTED = (
    re.compile(r"(?P<count>\d+) ?[xX*] ?(?P<gpu>.+)"),
    re.compile(r"(?P<gpu>.+?) ?[xX*:] ?(?P<count>\d+)"),
)


def profile_names(directories: Sequence[Path | str] = ()) -> tuple[str, ...]:
    """Names of all profiles on the search path, sorted; variants (`name@variant`) included."""
    return tuple(sorted({path.stem for path in profile_paths(directories)}))


def _directories(directories: Iterable[Path | str]) -> list[Path]:
    from_environment = [part for part in os.environ.get(PROFILES_VARIABLE, "").split(os.pathsep) if part]
    chosen = [outside_path(directory) for directory in (*directories, *from_environment)]
    for directory in chosen:
        if not directory.is_dir():
            raise InvalidInput(
                f"hardware profiles folder {str(directory)!r} does not exist; "
                f"check --profiles and {PROFILES_VARIABLE}"
            )
    own = user_profiles_directory()
    return [*chosen, *([own] if own.is_dir() and own not in chosen else []), bundled_directory()]


def user_profiles_directory() -> Path:
    """Where a user's own profiles are: the first folder of CAPACITY_PROFILES, else the platform's configuration."""
    for part in os.environ.get(PROFILES_VARIABLE, "").split(os.pathsep):
        if part:
            return outside_path(part)
    return user_folder("profiles")


def bundled_directory() -> Path:
    """The folder of bundled profiles: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "hardware_profiles"
    return inside if inside.is_dir() else package.parent / "hardware_profiles"


def profile_paths(directories: Sequence[Path | str] = ()) -> list[Path]:
    """Profile files on the search path, the folders that are searched first in front."""
    return [
        path
        for folder in _directories(directories)
        for path in sorted(folder.glob("*.toml"))
        if path.is_file()
    ]


def _refuse_counts(name: str, known: set[str]) -> None:
    """Raises InvalidInput for several GPUs in the place of one: `8xH100`, `h100:8`, `h100,a100`."""
    for counted in (pattern.fullmatch(name.strip()) for pattern in _COUNTED):
        if counted and _normalise(counted["gpu"]) in known:
            raise InvalidInput(
                f"{name!r}: one GPU is named here, and how many by --tensor-parallel-size: --gpu {counted['gpu']} "
                f"-tp {counted['count']}"
            )
    several = [each.strip() for each in name.split(",")]
    if len(several) > 1 and all(_normalise(each) in known for each in several):
        raise InvalidInput(
            f"{name!r}: one GPU is named here; to compare, `capacity estimate --gpu all`, or "
            f"`capacity plan --gpus {','.join(several)}`"
        )


def find_profile(name: str, directories: Sequence[Path | str]) -> Path:
    wanted = _normalise(name)
    if Path(wanted).name == wanted:
        for folder in _directories(directories):
            path = folder / f"{wanted}.toml"
            if is_file(path):
                return path
    paths = profile_paths(directories)
    by_name: dict[str, Path] = {}
    for path in paths:
        by_name.setdefault(path.stem, path)
    base, _, variant = wanted.partition("@")
    aliases = _aliases(tuple(paths))
    resolved = aliases.get(base, base) + (f"@{variant}" if variant else "")
    if resolved in by_name:
        return by_name[resolved]
    _refuse_counts(name, {*aliases, *by_name})
    raise UnknownName("hardware profile", name, by_name, aliases=aliases)


@lru_cache(maxsize=8)
def _aliases(paths: tuple[Path, ...]) -> dict[str, str]:
    """Alias to name, from the few lines above the first table of each file; the rest isn't parsed."""
    names: dict[str, str] = {}
    for path in paths:
        if "@" in path.stem:
            continue
        try:
            head = read_text(path, "a hardware profile").split("\n[", 1)[0]
            aliases = parse_toml(head, path).get("aliases", [])
        except MalformedFile:
            continue  # said in full when that profile is asked for by its name
        for alias in aliases if isinstance(aliases, list) else ():
            names.setdefault(_normalise(str(alias)), path.stem)
    return names


def _normalise(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")
