"""Flags of a verb from its question's signature: a keyword with a `Flag` is declared there and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from capacity.base.counts import short_count
from capacity.base.errors import InvalidInput
from capacity.base.flags import Flag
from capacity.cli.options import ModelArgument


@dataclass(frozen=True, slots=True)
class Keyword:
    """A keyword of a question as the command line takes it: `kind` is of one value, `many` of a sequence of them.

    Token counts (`many` of int) come by commas in one text, other sequences by repeating the flag.
    """

    name: str
    kind: type
    many: bool
    nullable: bool
    default: Any
    flag: Flag | None  # None: the model

    @property
    def by_commas(self) -> bool:
        return self.many and self.kind is int

    @property
    def is_argument(self) -> bool:
        return self.default is Parameter.empty

    @property
    def spellings(self) -> list[str]:
        """Its flags; a switch that is on has one that turns it off."""
        if self.flag is not None and self.flag.spelled:
            return self.flag.spelled.split()
        dashed = self.name.replace("_", "-")
        return [f"--{dashed}/--no-{dashed}" if self.default is True else f"--{dashed}"]

    def value(self, parsed: Any) -> Any:
        """What was parsed, in the question's units. Raises InvalidInput."""
        spelling = self.spellings[-1]
        if self.by_commas:
            return token_list(parsed, spelling)
        if self.flag is None or not self.flag.milliseconds:
            return parsed
        if not 0 < parsed < float("inf"):
            raise InvalidInput(f"{spelling} {parsed}: must be above 0 ms")
        return parsed / 1e3


def keywords_of(question: Callable[..., object]) -> list[Keyword]:
    """Return the model, and the keywords that have a flag, in the order of the signature."""
    hints = get_type_hints(question, include_extras=True)
    parameters = signature(question).parameters
    return [
        _keyword(parameters[name], hints[name])
        for name in parameters
        if name == "model" or get_origin(hints.get(name)) is Annotated
    ]


def _keyword(parameter: Parameter, hint: Any) -> Keyword:
    annotated = get_origin(hint) is Annotated
    held, flag = get_args(hint) if annotated else (hint, None)
    kinds = [kind for kind in (get_args(held) or (held,)) if kind is not NoneType]
    many = next((kind for kind in (held, *kinds) if get_origin(kind) is Sequence), None)
    if many is not None:
        (kinds,) = ([*get_args(kind), kind] for kind in get_args(many))
    return Keyword(
        name=parameter.name,
        kind=kinds[0],
        many=many is not None,
        nullable=NoneType in get_args(held),
        default=parameter.default,
        flag=flag,
    )


def parameter(keyword: Keyword, *, optional: bool = False) -> Parameter:
    """A keyword for the parser; `optional`: an argument that may be left out."""
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
    from capacity.report.layout import tokens

    assert keyword.flag is not None
    held: Any = keyword.kind
    default = keyword.default
    if keyword.by_commas:
        held, default = str, ",".join(map(tokens, default))
    elif keyword.many:
        held, default = list[str] | None, None
    elif keyword.nullable:
        held = held | None
    flags, help = keyword.spellings, keyword.flag.help or None
    if keyword.kind is int and not keyword.many:
        return option(keyword.name, held, default, *flags, help=help, parser=_counted(keyword.flag.least))
    return option(keyword.name, held, default, *flags, help=help, min=keyword.flag.least)


def _counted(least: int | None) -> Callable[[Any], int]:
    """The parser of a whole number, short forms too, from `least` on."""

    def whole(value: Any) -> int:
        try:
            count = int(short_count(str(value)))
        except ValueError:
            raise typer.BadParameter(f"{value!r} is no whole number; 25.6k is 25600, 1K is 1024") from None
        if least is not None and count < least:
            raise typer.BadParameter(f"{count} is not in the range x>={least}.")
        return count

    return whole


def option(name: str, held: Any, default: object, *flags: str, **settings: Any) -> Parameter:
    """An option for the parser that holds a type."""
    return _parameter(name, Annotated[held, typer.Option(*flags, **settings)], default)


def _parameter(name: str, annotation: Any, default: object = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def token_list(text: str, flag: str) -> list[int]:
    """Whole numbers by commas, short forms too. Raises InvalidInput."""
    counts = []
    for item in text.split(","):
        digits = str(short_count(item.strip()))
        if not (digits.isascii() and digits.isdecimal()) or not 0 < int(digits) <= 1 << 40:
            raise InvalidInput(f"{flag} {text!r}: give whole numbers above 0 by commas, as 4K,32K,1M")
        counts.append(int(digits))
    return counts
