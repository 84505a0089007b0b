"""Every `model_type` of which the layers are known: what its code fixes and its config does not say, as data.

Sources: transformers 5.23 configuration and modelling files, vLLM 0.33 `model_arch_config_convertor.py`, read 2026-11.
A row of `families.json` has fields of `Family`; with `like` it has those of another row but for its own, and null is
the default. Where a field is a rule, the row names a function of this package, `module.function`, or an object that
says with which keywords it is to be made.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from capacity.base.data_files import Table, make_row, read_data
from capacity.model.hf_config.family import Family

TABLE = Path(__file__).with_name("families.json")
RULES = ("mixer", "feed_forward", "window", "beside", "outside", "num_layers", "norms_per_layer", "phase")


@cache
def _rows() -> Table:
    return read_data(TABLE)


def supported_model_types() -> tuple[str, ...]:
    """Every `model_type` whose layers are known."""
    return tuple(sorted(_rows()))


@cache
def find_family(model_type: str) -> Family | None:
    """The family of this type; None: it is not known. Raises MalformedFile."""
    if model_type not in _rows():
        return None
    return make_row(TABLE, model_type, _make_family, {"model_type": model_type})


def _fields(model_type: str) -> Table:
    """The row's fields with those of the rows that it is like."""
    row = _rows().get(model_type)
    if row is None:
        raise ValueError(f"like: there is no row {model_type!r}")
    fields = {**(_fields(row["like"]) if "like" in row else {}), **row}
    return {key: value for key, value in fields.items() if key != "like" and value is not None}


def _make_family(model_type: str) -> Family:
    fields = _fields(model_type)
    rules = {key: find_rule(fields[key]) for key in RULES if isinstance(fields.get(key), str | dict)}
    return Family(**{**fields, **rules})


def find_rule(named: str | Table) -> Any:
    """The function of a rule's name, made with its keywords if it has any. Raises ValueError."""
    if not isinstance(named, str):
        keywords = dict(named)
        return find_rule(keywords.pop("rule"))(**keywords)
    module, _, function = named.partition(".")
    try:
        return getattr(import_module(f"{__package__}.{module}"), function)
    except (ImportError, AttributeError):
        raise ValueError(f"there is no rule {named!r}") from None
