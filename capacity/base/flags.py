"""Declaration of command-line flags in the annotations of a function: `Annotated[type, Flag(...)]`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from capacity.base.data_files import Table, read_data

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Flag:
    """Help and names of the flag of a keyword. If `spelled` is empty, the flag is the name of the keyword, or the
    keyword is a positional argument."""

    help: str
    spelled: str = ""  # names of the flag, separated by spaces; errors show the last one
    least: int | None = None
    milliseconds: bool = False  # the keyword is in seconds
    by_commas: bool = False  # a sequence of texts is separated by commas instead of repeating the flag


def with_flags(function: Function) -> Function:
    """Add a `Flag` to the annotations of a function's keywords, from `flags.json` in the folder of its module."""
    path = Path(function.__code__.co_filename).with_name("flags.json")
    for name, row in _rows(path)[function.__name__].items():
        hint: Any = function.__annotations__[name]
        function.__annotations__[name] = Annotated[hint, Flag(**row)]
    return function


@cache
def _rows(path: Path) -> Table:
    return read_data(path)


class Kind(NamedTuple):
    """Type of a keyword's value: type `of`, or a sequence of it if `many`. `choices`: accepted values; empty: all."""

    of: type[bool | int | float | str]
    many: bool
    choices: tuple[Any, ...]


def kind_of_annotation(hint: Any) -> Kind:
    """Return the type of an annotation as a `Kind`: text, unless the annotation contains a number or boolean."""
    held = list(_types(hint))
    of = next((each for each in (bool, float, int) if each in held), str)
    literals = [get_args(each) for each in held if get_origin(each) is Literal and of is str]
    return Kind(of, tuple in held or Sequence in held, literals[0] if literals else ())


def _types(hint: Any) -> Iterator[Any]:
    """Yield each type that an annotation contains; a Literal counts as one type."""
    origin, inner = get_origin(hint), get_args(hint)
    yield hint if origin is None or origin is Literal else origin
    for each in () if origin is Literal else inner[:1] if origin is Annotated else inner:
        yield from _types(each)


ENGINE_LOOP = Flag(  # of every verb that simulates
    "Simulation engine: core (compiled), events (readable Python with the same results, hundreds of times slower), or "
    "auto (core if it supports the simulation).",
    "--engine-loop",
)

SCHEDULER = Flag(  # of `simulate` and `schedule`
    "Schedule with the code of a vLLM on this machine: installed (vLLM of this Python), the folder of an unpacked "
    "wheel or checkout, or the path of a Python that has vLLM.",
    "--scheduler",
)

CLUSTER = Flag(  # of every verb that distributes its simulations
    "Address of a Dask scheduler, tcp://host:port, whose workers replace local processes; results are bit-identical.",
    "--cluster",
)
