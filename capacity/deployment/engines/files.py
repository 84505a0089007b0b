"""Find engines by name, and read their TOML files up to the requested release."""

import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.base.spec import Spec
from capacity.deployment.engines.engine_spec import EngineSpec, Origin

FOLDER = Path(__file__).parent


class Constant(Origin):
    """A constant of an engine release; `source` may be a key of the file's [sources]."""

    value: object


class Release(Spec):
    """One release of an engine: the constants that changed from the previous release."""

    version: str
    constants: dict[str, Constant]

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, fields: Mapping[str, object]) -> dict[str, object]:
        constants = {name: value for name, value in fields.items() if name != "version"}
        return {"version": fields.get("version"), "constants": constants}


class EngineFile(Spec):
    """An engine's TOML file. `based_on`: engine whose newest release is the base of the first release here.

    `every_release`: fields of `EngineSpec` that are the same for all releases of the engine.
    """

    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    based_on: str | None = None
    every_release: dict[str, object] = Field(default_factory=dict)
    sources: dict[str, str] = Field(default_factory=dict)
    releases: tuple[Release, ...] = Field(min_length=1)

    def releases_until(self, version: str) -> "EngineFile":
        """Return the file without the releases after `version`."""
        place = next(place for place, release in enumerate(self.releases) if release.version == version)
        return self.model_copy(update={"releases": self.releases[: place + 1]})

    def constants(self) -> dict[str, Constant]:
        """Return the constants of the newest release, each with its full source."""
        newest = {name: constant for release in self.releases for name, constant in release.constants.items()}
        return {
            name: constant.model_copy(update={"source": self.sources.get(constant.source, constant.source)})
            for name, constant in newest.items()
        }


def engine_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def find_engine(name: str) -> EngineSpec:
    """Return the engine called `name`, `name@version` or an alias; without a version, its newest release.

    A version that is not listed returns the newest older release, with a note. Raises UnknownName, or InvalidInput for
    a version older than all listed ones.
    """
    wanted, _, version = name.strip().lower().partition("@")
    wanted = wanted.strip().replace("_", "-")
    if wanted in engine_names():
        return _release(wanted, version)
    aliases = _aliases()
    if wanted in aliases:
        return _release(aliases[wanted], version)
    raise UnknownName("engine", name, engine_names(), aliases=aliases)


@lru_cache(maxsize=64)
def _release(name: str, version: str) -> EngineSpec:
    file = read_engine_file(name)
    chosen = _choose_version([release.version for release in file.releases], version, name)
    lineage = (*_base_files(file), file.releases_until(chosen))
    constants = {name: constant for each in lineage for name, constant in each.constants().items()}
    every_release = {field: value for each in lineage for field, value in each.every_release.items()}
    notes = file.notes
    if version and version != chosen:
        notes += (
            f"{name} {version} is not listed; {name} {chosen}, the newest older release, is used instead",
        )
    return EngineSpec.model_validate(
        {
            "name": name,
            "version": chosen,
            "aliases": file.aliases,
            "notes": notes,
            "origins": {
                field: constant.model_dump(exclude={"value"}) for field, constant in constants.items()
            },
            **every_release,
            **{field: constant.value for field, constant in constants.items()},
        }
    )


def _base_files(file: EngineFile) -> tuple[EngineFile, ...]:
    """Return the engine files that this one is based on; the first is based on no other file."""
    if file.based_on is None:
        return ()
    base = read_engine_file(file.based_on)
    return (*_base_files(base), base)


def _choose_version(versions: Sequence[str], wanted: str, name: str) -> str:
    """Return the version `wanted` if it is listed, else the newest older one; the newest of all if `wanted` is empty.

    A listed version with a suffix ("0.8-v0") matches only itself; builds ("b7000") are ordered by number.
    """
    if not wanted:
        return versions[-1]
    if wanted in versions:
        return wanted
    from packaging.version import InvalidVersion, Version  # takes 7 ms; not needed for a listed version

    def order(version: str) -> Version:
        return Version(version.partition("-")[0].removeprefix("b"))

    try:
        older = [version for version in versions if "-" not in version and order(version) <= order(wanted)]
    except InvalidVersion:
        raise UnknownName(f"{name} version", wanted, versions) from None
    if not older:
        raise InvalidInput(f"{name} {wanted} is older than every listed release; the oldest is {versions[0]}")
    return older[-1]


@lru_cache(maxsize=32)
def read_engine_file(name: str) -> EngineFile:
    """Return the file of an engine. Raises MalformedFile."""
    path = FOLDER / f"{name}.toml"
    try:
        return EngineFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise MalformedFile(path, f"cannot be read: {error}") from None


@lru_cache(maxsize=1)
def _aliases() -> dict[str, str]:
    """Return the aliases of all engines, from the headers of the files."""
    aliases: dict[str, str] = {}
    for name in engine_names():
        head = (FOLDER / f"{name}.toml").read_text(encoding="utf-8").split("\n[", 1)[0]
        aliases |= dict.fromkeys(tomllib.loads(head).get("aliases", []), name)
    return aliases
