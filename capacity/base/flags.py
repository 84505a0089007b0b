"""Command-line spelling of a function's keyword: metadata of `Annotated`, so that a keyword is declared once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin


@dataclass(frozen=True, slots=True)
class Flag:
    """A keyword's help and flags; `spelled` empty: the keyword's own name, or the place of a positional parameter."""

    help: str
    spelled: str = ""  # flags separated by spaces; errors show the last one
    least: int | None = None
    milliseconds: bool = False  # the keyword is in seconds
    by_commas: bool = False  # a sequence of texts is separated by commas instead of repeating the flag


class Kind(NamedTuple):
    """Type of an annotation: values of type `of`, `many` of them in a sequence, possibly limited to `choices`."""

    of: type[bool | int | float | str]
    many: bool
    choices: tuple[Any, ...]


def kind_of_annotation(hint: Any) -> Kind:
    """Return the kind of an annotation; text if it contains no number and no boolean."""
    held = list(_types(hint))
    of = next((each for each in (bool, float, int) if each in held), str)
    literals = [get_args(each) for each in held if get_origin(each) is Literal and of is str]
    return Kind(of, tuple in held or Sequence in held, literals[0] if literals else ())


def _types(hint: Any) -> Iterator[Any]:
    """Return each type that a hint names; a Literal is one."""
    origin, inner = get_origin(hint), get_args(hint)
    yield hint if origin is None or origin is Literal else origin
    for each in () if origin is Literal else inner[:1] if origin is Annotated else inner:
        yield from _types(each)


ENGINE_LOOP = Flag(  # of every question that simulates
    "Simulation engine: core (compiled), events (readable Python with the same results, hundreds of times slower), or "
    "auto (core where it supports the question).",
    "--engine-loop",
)

CLUSTER = Flag(  # of every question that distributes its simulations
    "Address of a Dask scheduler, tcp://host:port, that replaces local workers; results are bit-identical.",
    "--cluster",
)
