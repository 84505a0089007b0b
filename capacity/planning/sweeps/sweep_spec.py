"""Sweep file: one command, its fixed options, its varied options, and the points that result from them."""

import hashlib
import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.external_files import read_toml
from capacity.base.keywords import split
from capacity.base.spec import Spec
from capacity.deployment import Cost, Pool, Service, Traffic, explain
from capacity.planning.workers.environment_fingerprint import NamedInputs, package_version

MAX_POINTS = 1_000_000
FILE_OPTIONS = ("model", "trace", "price_file")

Value = bool | int | float | str
Options = Mapping[str, Any]  # model and spec fields of a point


class Range(Spec):
    """Numbers from `low` to `high`, from which `random` axes draw; integers if both ends are integers."""

    low: float
    high: float
    log: bool = False


class SweepSpec(Spec):
    """Input file of `capacity sweep`; `fixed` and `vary` hold `model` and fields of Pool, Traffic, Service and Cost."""

    schema_: Literal["capacity/sweep/v1"] = Field(alias="schema")
    question: Literal["fit", "estimate", "simulate"]
    axes: Literal["grid", "zip", "random"] = "grid"
    samples: Annotated[int, Field(ge=1, le=MAX_POINTS)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    goodput: tuple[str, ...] = ()
    fixed: dict[str, Value] = Field(default_factory=dict)
    vary: dict[str, tuple[Value, ...] | Range] = Field(min_length=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Point of a sweep: one command with one combination of options; `key` is a hash of all inputs."""

    question: str
    options: Options
    goodput: tuple[str, ...]
    key: str


def named_in(spec: SweepSpec) -> NamedInputs:
    """Return the models and files that the points refer to by name."""

    def values(name: str) -> tuple[str, ...]:
        varied = spec.vary.get(name, ())
        listed = () if isinstance(varied, Range) else varied
        return tuple(str(value) for value in (*listed, *((spec.fixed[name],) if name in spec.fixed else ())))

    files = tuple(value for name in FILE_OPTIONS if name != "model" for value in values(name))
    return NamedInputs(models=values("model"), files=files)


def read_sweep(path: str | Path) -> SweepSpec:
    """Read a sweep file (TOML). Raises MalformedFile, which names the invalid field."""
    fields = read_toml(path, "a sweep")
    try:
        return SweepSpec(**fields)
    except ValidationError as error:
        raise MalformedFile(path, explain(error, SweepSpec)) from None


def points(spec: SweepSpec) -> list[Point]:
    """Return every distinct combination of options in order. Raises InvalidInput for unknown fields or zipped lists of
    unequal size."""
    names = [*spec.fixed, *spec.vary]
    split({name: None for name in names if name != "model"}, Pool, Traffic, Service, Cost)
    if "model" not in names:
        raise InvalidInput("a sweep needs a model: add it under [fixed] or [vary]")
    twice = sorted(set(spec.fixed) & set(spec.vary))
    if twice:
        raise InvalidInput(f"{twice[0]} is both under [fixed] and [vary]: remove one")
    empty = [name for name, values in spec.vary.items() if not values]
    if empty:
        raise InvalidInput(f"{empty[0]} has no values under [vary]: give it values, or leave it out")
    by_key: dict[str, Point] = {}
    for chosen in _combinations(spec):
        options = {**spec.fixed, **chosen}
        key = point_key(spec.question, options, spec.goodput)
        if key not in by_key:
            by_key[key] = Point(question=spec.question, options=options, goodput=spec.goodput, key=key)
    return list(by_key.values())


def _combinations(spec: SweepSpec) -> Iterator[dict[str, Value]]:
    if spec.axes == "random":
        if spec.samples is None:
            raise InvalidInput("random axes need samples = N")
        rng = random.Random(spec.seed)
        for _ in range(spec.samples):
            yield {name: _draw_value(values, rng) for name, values in spec.vary.items()}
        return
    lists: dict[str, tuple[Value, ...]] = {}
    for name, values in spec.vary.items():
        if isinstance(values, Range):
            raise InvalidInput(f"{name} is a range, which only random axes accept: write a list")
        lists[name] = values
    lengths = {name: len(values) for name, values in lists.items()}
    if spec.axes == "zip":
        if len(set(lengths.values())) > 1:
            unequal = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise InvalidInput(f"zipped axes must have equal lengths, not {unequal}")
        rows: Iterator[tuple[Value, ...]] = zip(*lists.values(), strict=True)
    else:
        if (total := math.prod(lengths.values())) > MAX_POINTS:
            raise InvalidInput(f"the grid has {total:,} points: must have at most {MAX_POINTS:,}")
        rows = itertools.product(*lists.values())
    for row in rows:
        yield dict(zip(lists, row, strict=True))


def _draw_value(values: tuple[Value, ...] | Range, rng: random.Random) -> Value:
    if not isinstance(values, Range):
        picked: Value = rng.choice(values)
        return picked
    if values.high < values.low or (values.log and values.low <= 0):
        raise InvalidInput(
            f"range {values.low:g} to {values.high:g}: needs low <= high, and low > 0 with log"
        )
    share, span = rng.random(), values.high - values.low
    drawn: float = values.low + span * share
    if values.log:
        drawn = values.low * (values.high / values.low) ** share
    whole = values.low.is_integer() and values.high.is_integer()
    return round(drawn) if whole else drawn


def point_key(question: str, options: Options, goodput: tuple[str, ...]) -> str:
    """Return the SHA-256 of everything that affects a point's answer: options, files that they name, code and data."""
    named = {name: _content_hash(str(options[name])) for name in FILE_OPTIONS if name in options}
    described = {
        "question": question,
        "options": options,
        "goodput": goodput,
        "version": package_version(),
        "files": {name: digest for name, digest in named.items() if digest is not None},
    }
    text = json.dumps(described, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _content_hash(path: str) -> str | None:
    """Return the hash of a file, or of config.json in a folder; None if `path` is neither, as for a preset name."""
    file = Path(path)
    try:
        file = file / "config.json" if file.is_dir() else file
        if not file.is_file():
            return None
        stat = file.stat()
        return _digest(str(file), stat.st_mtime_ns, stat.st_size)
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=64)
def _digest(path: str, modified_ns: int, size: int) -> str:  # noqa: ARG001
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
