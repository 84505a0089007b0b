"""Tables of the launch flags of each engine (`launch_flags/ENGINE.toml`), to write and to read launch commands."""

import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.keywords import flags_of
from capacity.base.spec import Spec
from capacity.deployment.building import explain
from capacity.deployment.command_words import PORT, Line, find_key, flag_name
from capacity.deployment.engines import find_engine
from capacity.deployment.pool import Pool
from capacity.model.quantization import vllm_checkpoint

FOLDER = Path(__file__).parent / "launch_flags"
OFF = ("false", "0", "off", "")
GGML_CACHES = {"int8": "q8_0", "int4": "q4_0"}
GGML_16_BIT = "f16"
GGML_ALL_LAYERS = 999
FLOATS = {"half": "float16", "float": "float32"}
WITHOUT_MARLIN = {"awq": "awq-no-marlin", "gptq": "gptq-no-marlin"}  # vLLM uses Marlin unless these are set

Place = Literal["line", "environment", "file"]
Values = Mapping[str, object]  # pool fields and terms, by name


def _ggml_layers(text: str) -> int | None:
    """Return the number of layers on the GPU; None: all layers (`all`, `auto` or -1 in the command)."""
    return int(text) if text.isdecimal() and int(text) < GGML_ALL_LAYERS else None


CONVERSIONS: Mapping[str, tuple[Callable[[object, Collection[str]], object], Callable[[str], object]]] = {
    # to the engine's word (from a value and the formats created while loading), and back
    "online_format": (lambda value, online: value if value in online else None, str),
    "vllm_format": (
        lambda value, online: value if value in online else vllm_checkpoint(str(value)),
        lambda text: WITHOUT_MARLIN.get(text, text),
    ),
    "float_name": (lambda value, _: FLOATS.get(str(value), value), str),
    "ggml_cache": (
        lambda value, _: GGML_CACHES.get(str(value), GGML_16_BIT),
        lambda text: None if text == GGML_16_BIT else find_key(GGML_CACHES, text),
    ),
    "ggml_layers": (lambda value, _: GGML_ALL_LAYERS if value is None else value, _ggml_layers),
}


class LaunchFlag(Spec):
    """One setting of a launch command: its name in the engine, and the field of this package that it sets.

    `field`: a field of `Pool`, or a term that the engine's dialect computes from several fields; None: the setting is
    written but never read. `aliases`: additional and older spellings, which are only read. `place`: a command-line
    flag, an environment variable, or a key of the options file. `words`: the engine's word for each value of the field
    that it spells differently. `others`: treatment of values that are not in `words`: kept; read, but not written
    (`read`); left in the command as an unread flag (`left`); or an error (`refused`). `means`: the boolean that the
    field gets if the flag is present, as a switch or with the word `writes` after it. If `field` is None, the word
    `writes` is a constant. A field at the pool's default is written only if `always` is true or the field named by
    `requires` is set. `note`: note for the user if the flag is written.
    """

    name: str
    field: str | None = None
    aliases: tuple[str, ...] = ()
    place: Place = "line"
    kind: Literal["text", "count", "switch"] = "text"
    words: dict[str, str] = Field(default_factory=dict)
    others: Literal["kept", "read", "left", "refused"] = "kept"
    conversion: str | None = None
    means: bool | None = None
    writes: str | None = None
    requires: str | None = None
    always: bool = False
    written: bool = True
    note: str = ""

    @model_validator(mode="after")
    def _has_known_conversion(self) -> "LaunchFlag":
        if self.conversion is not None and self.conversion not in CONVERSIONS:
            raise ValueError(
                f"{self.name}: conversion {self.conversion!r} is not one of {', '.join(CONVERSIONS)}"
            )
        return self

    @property
    def is_switch(self) -> bool:
        return self.kind == "switch" or (self.means is not None and self.writes is None)

    def write(self, values: Values, made_while_loading: Collection[str]) -> object | None:
        """Return the engine's word for the field's value, True for a switch, or None if the flag is not written."""
        if not self.written or (self.requires is not None and not is_set(values, self.requires)):
            return None
        if self.field is None:
            return True if self.writes is None else self.writes.format(port=PORT)
        value = values.get(self.field)
        if self.means is not None:
            return (self.writes or True) if value is self.means else None
        if not (self.always or self.requires or is_set(values, self.field)):
            return None
        if self.conversion is not None:
            value = CONVERSIONS[self.conversion][0](value, made_while_loading)
        if self.kind == "count":
            return value if isinstance(value, int) else None
        return self.words.get(str(value), value if self.others == "kept" else None) if self.words else value

    def read(self, line: Line) -> object | None:
        """Remove the setting from a parsed command and return the value of its field; None if it is absent.

        Raises InvalidInput for a word that the engine does not accept, and for a count that is not a number.
        """
        text = self._take(line)
        if text is None:
            return None
        if self.means is not None:
            said = text not in OFF if self.writes is None else text == self.writes
            return self.means if said else None
        if self.kind == "switch":
            return text.lower() not in OFF
        if self.kind == "count":
            return self._count(text)
        if self.conversion is not None:
            return CONVERSIONS[self.conversion][1](text)
        ours = next((key for key, word in self.words.items() if word.lower() == text.lower()), None)
        if ours is None and self.others == "refused":
            known = ", ".join(dict.fromkeys(self.words.values()))
            raise InvalidInput(f"{self.name.rpartition('.')[2]} {text}: must be one of {known}")
        return ours or text

    def _take(self, line: Line) -> str | None:
        """Remove the setting from the command and return its text, so that it is not reported as unknown."""
        if self.place == "line":
            known = self.words.values() if self.others == "left" else None
            return line.flags.take(flag_name(self.name), known=known)
        settings = line.environment if self.place == "environment" else line.options
        return next((settings[name] for name in (self.name, *self.aliases) if name in settings), None)

    def _count(self, text: str) -> int | None:
        try:
            return int(text)
        except ValueError:
            if self.place == "environment":  # an unset variable
                return None
            raise InvalidInput(f"{self.name} is {text or 'empty'}: must be a whole number") from None


class FlagTable(Spec):
    """Launch flags of one engine.

    Names in `switches` (flags without a value), `several` (flags with more than one value), `harmless` (flags that do
    not affect an answer) and `not_modelled` have no leading dashes, and underscores in place of dashes.

    `program`: words before the flags. `started_by`: programs that start the engine in a pasted command. `images`:
    suffixes of container images whose entry point is the server. `image` and `has_package`: published image and pip
    package of a release for NVIDIA GPUs; `amd_image`: its image for AMD GPUs. `terms`: names of the values that the
    engine's dialect computes. `config_flag`: flag that names a YAML file with more flags. `reads_pool_fields`: every
    pool field is also a flag. `not_modelled`: flags, each with the assumption used instead. `model_names` maps a
    model's name in the engine's library to this package's name. `newest_tags` maps the name in the library to the tag
    to use if the command gives none.
    """

    program: tuple[str, ...]
    started_by: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    image: str | None = None
    amd_image: str | None = None
    has_package: bool = False
    positional_model: bool = False
    config_flag: str | None = None
    reads_pool_fields: bool = False
    made_while_loading: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    flags: tuple[LaunchFlag, ...]
    switches: tuple[str, ...] = ()
    several: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()
    not_modelled: dict[str, str] = Field(default_factory=dict)
    model_names: dict[str, str] = Field(default_factory=dict)
    newest_tags: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_known_fields(self) -> "FlagTable":
        for row in self.flags:
            for name in (row.field, row.requires):
                if name is not None and name not in Pool.model_fields and name not in self.terms:
                    raise ValueError(f"{row.name}: {name!r} is neither a field of a pool nor one of `terms`")
        return self

    @cached_property
    def rows(self) -> tuple[LaunchFlag, ...]:
        """Return the flags to read from a command: rows with a `field`; if `reads_pool_fields`, all `Pool` fields."""
        if not self.reads_pool_fields:
            return tuple(row for row in self.flags if row.field is not None)
        listed = {row.field: row for row in self.flags if row.field is not None}
        for name, field in Pool.model_fields.items():
            if name not in ("gpu", "engine"):
                kind: Literal["switch", "text"] = "switch" if "bool" in str(field.annotation) else "text"
                row = listed.get(name) or LaunchFlag(
                    name=f"--{name.replace('_', '-')}", field=name, kind=kind
                )
                own = {"aliases": (*row.aliases, *flags_of(field), f"--{name}")}
                listed[name] = row.model_copy(update=own)
        return tuple(listed.values())

    def write_options(self, place: Place, values: Values) -> list[tuple[str, str | bool]]:
        """Return names and texts of the settings to write at `place`; True: a switch of the command line."""
        pairs: list[tuple[str, str | bool]] = []
        for row in self.flags:
            value = row.write(values, self.made_while_loading) if row.place == place else None
            if value is None:
                continue
            if not isinstance(value, bool):
                pairs.append((row.name, str(value)))
            elif place == "line":
                pairs.append((row.name if value else row.name.replace("--", "--no-", 1), True))
            else:
                pairs.append((row.name, str(int(value)) if place == "environment" else str(value).lower()))
        return pairs

    def notes(self, values: Values) -> tuple[str, ...]:
        """Return the notes of the flags that are written."""
        noted = [
            row for row in self.flags if row.note and row.write(values, self.made_while_loading) is not None
        ]
        return tuple(row.note for row in noted)


def is_set(values: Values, field: str) -> bool:
    """Return whether a `Pool` field differs from its default, or whether a dialect has computed a value."""
    declared = Pool.model_fields.get(field)
    return values.get(field) != (None if declared is None else declared.default)


@lru_cache(maxsize=8)
def flag_table(engine: str) -> FlagTable:
    """Read the table of an engine, named without a version. Raises MalformedFile with the invalid key."""
    path = FOLDER / f"{engine}.toml"
    try:
        return FlagTable.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise MalformedFile(path, explain(error, FlagTable)) from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise MalformedFile(path, f"cannot be read: {error}") from None


def split_image(word: str) -> tuple[str, str]:
    """Split a container image such as `registry:5000/vllm/vllm-openai:v0.11.0` into its path and its tag."""
    folder, slash, name = word.rpartition("/")
    name, _, tag = name.partition(":")
    return f"{folder}{slash}{name}", tag


def image_engine(image: str) -> str | None:
    """Return the engine whose server is the entry point of a container image; None for other images."""
    path = split_image(image)[0]
    return next((name for name, images in _server_images().items() if path.endswith(images)), None)


@cache
def _server_images() -> dict[str, tuple[str, ...]]:
    return {file.stem: flag_table(file.stem).images for file in sorted(FOLDER.glob("*.toml"))}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRelease:
    """One published release of an engine: its version, and its container image and `pip` requirement if they exist."""

    version: str
    image: str | None
    requirement: str | None


def find_published_release(engine: str, *, amd: bool = False) -> PublishedRelease:
    """Return the release of `name@version`, or the newest known one of `name`; `amd`: for AMD GPUs.

    Raises UnknownName, InvalidInput.
    """
    found = find_engine(engine)
    asked = engine.partition("@")[2] or found.label.partition("@")[2]
    number = re.match(r"v?(\d+(?:\.\d+)*)", asked)
    parts = [] if number is None else number[1].split(".")
    version = ".".join([*parts, *["0"] * (3 - len(parts))]) if parts else asked
    table = flag_table(found.name) if (FOLDER / f"{found.name}.toml").is_file() else None
    image = None if table is None else table.amd_image if amd else table.image
    return PublishedRelease(
        version=version,
        image=image and image.format(version),
        requirement=f"{found.name}=={version}"
        if table is not None and table.has_package and not amd
        else None,
    )
