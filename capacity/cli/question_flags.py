"""Flags of a verb (command), generated from the signature of its Python function, the only place that declares them."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature, unwrap
from types import NoneType, SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from capacity.base.errors import InvalidInput
from capacity.base.flags import Flag, kind_of_annotation
from capacity.base.spec import short_count
from capacity.cli.options import ModelArgument

if TYPE_CHECKING:
    from capacity.base.spec import Spec


@dataclass(frozen=True, slots=True)
class Keyword:
    """A Python function's keyword as a command-line input, of type `kind` or, with `many`, a sequence of this type.

    On the command line, numbers of a sequence are separated by commas; other sequences repeat the flag.
    """

    name: str
    kind: type
    many: bool
    nullable: bool
    default: Any
    flag: Flag | None  # None: the model

    @property
    def by_commas(self) -> bool:
        declared = self.flag is not None and self.flag.by_commas
        return self.many and (declared or self.kind in (int, float))

    @property
    def is_argument(self) -> bool:
        return self.default is Parameter.empty

    @property
    def spellings(self) -> list[str]:
        """Return the flags of the keyword. A switch that is on by default also has a flag that turns it off."""
        if self.flag is not None and self.flag.spelled:
            return self.flag.spelled.split()
        dashed = self.name.replace("_", "-")
        return [f"--{dashed}/--no-{dashed}" if self.default is True else f"--{dashed}"]

    def value(self, parsed: Any) -> Any:
        """Return the parsed value in the units of the Python function. Raises InvalidInput."""
        spelling = self.spellings[-1]
        if self.by_commas:
            if self.kind is str:
                return split_list(parsed)
            return numbers(spelling, parsed) if self.kind is float else token_list(parsed, spelling)
        if self.flag is None or not self.flag.milliseconds:
            return parsed
        if not 0 < parsed < float("inf"):
            raise InvalidInput(f"{spelling} {parsed}: must be above 0 ms")
        return parsed / 1e3


def keywords_of(question: Callable[..., object]) -> list[Keyword]:
    """Return the function's keywords that have a flag, and its parameter `model`, in the order of the signature."""
    function = unwrap(question)
    names = vars(sys.modules[function.__module__])
    flagged = {
        name: hint
        for name, hint in function.__annotations__.items()
        if str(hint).startswith("Annotated[") or get_origin(names.get(str(hint), hint)) is Annotated
    }
    hints = get_type_hints(SimpleNamespace(__annotations__=flagged), names, include_extras=True)
    return [
        _keyword(name, parameter.default, *get_args(hints.get(name, Annotated[str, None])))
        for name, parameter in signature(question).parameters.items()
        if name == "model" or name in hints
    ]


def keywords_of_spec(spec: "type[Spec]") -> list[Keyword]:
    """Return the fields of a spec that have a help text."""
    return [
        _keyword(name, field.default, field.annotation, Flag(field.description))
        for name, field in spec.model_fields.items()
        if field.description
    ]


def _keyword(name: str, default: Any, hint: Any, flag: Flag | None) -> Keyword:
    kind, many, _ = kind_of_annotation(hint)
    nullable = NoneType in get_args(hint)
    return Keyword(name=name, kind=kind, many=many, nullable=nullable, default=default, flag=flag)


def parameter(keyword: Keyword, *, optional: bool = False) -> Parameter:
    """Return a keyword as a parameter for the parser; `optional`: a positional argument may be left out."""
    return _argument(keyword, optional) if keyword.is_argument else _option_of(keyword)


def _argument(keyword: Keyword, optional: bool) -> Parameter:
    if keyword.flag is None:
        return _parameter(keyword.name, ModelArgument)
    held: Any = list[str] if keyword.many else str
    if not optional:
        return _parameter(keyword.name, Annotated[held, typer.Argument(help=keyword.flag.help)])
    argument = typer.Argument(help=keyword.flag.help, show_default=False)
    return _parameter(keyword.name, Annotated[held | None, argument], None)


def _option_of(keyword: Keyword) -> Parameter:
    from capacity.report.layout import token_count_text

    assert keyword.flag is not None
    held: Any = keyword.kind
    default = keyword.default
    if keyword.by_commas:
        held, default = (
            (str | None, None) if default is None else (str, ",".join(map(token_count_text, default)))
        )
    elif keyword.many:
        held, default = list[str] | None, None
    elif keyword.nullable:
        held = held | None
    flags, help = keyword.spellings, keyword.flag.help or None
    if keyword.kind is int and not keyword.many:
        return option(
            keyword.name, held, default, *flags, help=help, parser=_count_parser(keyword.flag.least)
        )
    return option(keyword.name, held, default, *flags, help=help, min=keyword.flag.least)


def _count_parser(least: int | None) -> Callable[[Any], int]:
    """Return a parser of whole numbers from `least`, which also accepts short forms such as 4K."""

    def whole(value: Any) -> int:
        try:
            count = int(short_count(str(value)))
        except ValueError:
            raise typer.BadParameter(f"{value!r} is not a whole number; 25.6k is 25600, 1K is 1024") from None
        if least is not None and count < least:
            raise typer.BadParameter(f"{count} must be at least {least}.")
        return count

    return whole


def option(name: str, held: Any, default: object, *flags: str, **settings: Any) -> Parameter:
    """Return an option for the parser with values of the type `held`."""
    return _parameter(name, Annotated[held, typer.Option(*flags, **settings)], default)


def _parameter(name: str, annotation: Any, default: object = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def token_list(text: str, flag: str) -> list[int]:
    """Return the whole numbers in a text such as 4K,32K,1M. Raises InvalidInput."""
    counts = []
    for item in text.split(","):
        digits = str(short_count(item.strip()))
        if (
            not (digits.isascii() and digits.isdecimal() and len(digits) < 14)
            or not 0 < int(digits) <= 1 << 40
        ):
            raise InvalidInput(f"{flag} {text!r:.80}: give whole numbers above 0, such as 4K,32K,1M")
        counts.append(int(digits))
    return counts


def split_list(value: Any) -> Sequence[str]:
    """Return the parts of `a,b` as a list. A list is returned unchanged, and None becomes empty."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value or ()


def numbers(flag: str, text: str | None) -> list[float] | None:
    """Return the numbers in a text such as `1,2,5`; None for None. Raises InvalidInput for other text."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(f"{flag} is {text!r}: give numbers separated by commas, such as 1,2,5") from None
