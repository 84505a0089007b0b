"""Base of all answers: frozen records whose `to_dict()` is the JSON of the command line.

A record declares which of its values are in the JSON, and its JSON schema is generated from the same declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, get_type_hints

from capacity.base.rows import flatten
from capacity.base.spec import Spec

if TYPE_CHECKING:
    import pandas
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

Record = TypeVar("Record")
NOT_WRITTEN: Mapping[str, bool] = {"written": False}  # metadata of a field that is not in the JSON


@lru_cache(maxsize=256)
def written_names(kind: type) -> tuple[str, ...] | None:
    """Return the names of a record type's JSON values (fields and some properties) in order; None for other types."""
    if not is_dataclass(kind):
        return None
    own = (field.name for field in fields(kind) if field.metadata.get("written", True))
    return (*getattr(kind, "FIRST", ()), *own, *getattr(kind, "LAST", ()))


def to_plain_values(value: Any) -> Any:
    """Return a frozen record as plain values. Only containers are copied, which is four times as fast as `asdict`.

    Of a spec, only the fields that differ from their defaults are included.
    """
    kind: Any = type(value)
    names = written_names(kind)
    if names is not None:
        return {name: to_plain_values(getattr(value, name)) for name in names}
    if isinstance(value, (tuple, list)):
        return type(value)(to_plain_values(item) for item in value)
    if isinstance(value, dict):
        return {name: to_plain_values(item) for name, item in value.items()}
    return value.model_dump(exclude_defaults=True) if isinstance(value, Spec) else value


def make_from(kind: type[Record], /, *sources: object, **own: Any) -> Record:
    """Return a record of type `kind`. The value of a field is in `own`, else it is an attribute of one of `sources`.

    If several sources have the attribute, the first one is used.
    """
    names = [field.name for field in fields(cast(Any, kind)) if field.name not in own]
    for source in reversed(sources):
        own |= {name: getattr(source, name) for name in names if hasattr(source, name)}
    return kind(**own)


class WrittenRecord:
    """A record whose JSON includes properties: those named in `FIRST` before its fields, those in `LAST` after them."""

    __slots__ = ()
    FIRST: ClassVar[tuple[str, ...]] = ()
    LAST: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if not (cls.FIRST or cls.LAST):
            return handler(source)
        from pydantic import create_model

        kind: Any = cls
        hints = get_type_hints(cls, include_extras=True)
        shown: Any = {name: (_hint(cls, name, hints), ...) for name in written_names(kind) or ()}
        return handler.generate_schema(create_model(cls.__name__, __doc__=cls.__doc__, **shown))


def _hint(kind: type, name: str, hints: Mapping[str, object]) -> object:
    attribute = getattr(kind, name, None)
    if isinstance(attribute, property):
        return get_type_hints(attribute.fget, include_extras=True)["return"]
    return hints[name]


class AnswerRecord(WrittenRecord):
    """Base of the answers of commands, with `to_dict()`; `SCHEMA` names the version of the JSON schema.

    `repr`, `str`, `plot()` and notebooks display an answer with functions of `report.python_display`.
    """

    __slots__ = ()
    SCHEMA: ClassVar[str]
    ROWS: ClassVar[str] = "rows"  # name of the field with the answer's rows, if any

    def __init_subclass__(cls) -> None:
        """Set `__repr__` to that of this class, because a dataclass would generate one with all fields."""
        cls.__repr__ = AnswerRecord.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """Return one line: verb, model, deployment and the main figures."""
        return str(_display("one_line")(self))

    def __str__(self) -> str:
        """Return the tables that the command prints without --detail."""
        return str(_display("text")(self))

    def _repr_html_(self) -> str:
        """Return the tables as an HTML fragment, which notebooks show."""
        return str(_display("html")(self))

    def plot(self, name: str | None = None) -> Any:
        """Return the `report.figures.Chart` with this name, or the first one; it has `svg()` and `png()`.

        Raises InvalidInput without matplotlib or if the answer has no charts, and UnknownName for an unknown name.
        """
        return _display("plot")(self, name)

    @classmethod
    def schema_name(cls) -> str:
        """Return the name of the answer in its JSON schema, such as `fit` of `capacity/fit/v1`."""
        return cls.SCHEMA.split("/")[1]

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON values, `schema` first."""
        return {"schema": self.SCHEMA, **to_plain_values(self)}

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the answer's rows, or the whole answer as one row if it has none; nested keys become dotted names."""
        record = self.to_dict()
        rows = record.get(self.ROWS)
        several = isinstance(rows, (list, tuple)) and rows and isinstance(rows[0], dict)
        return [flatten(row) for row in (rows if several else [record])]  # type: ignore[union-attr]

    def to_frame(self) -> pandas.DataFrame:
        """Return `to_rows()` as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame(self.to_rows())


def _display(name: str) -> Any:
    """Return a function of `report.python_display`, imported on use because `report` depends on this package."""
    return resolve_name(f"capacity.report.python_display:{name}")
