"""Widgets for parameters of library functions: type, choices, limits and help come from the parameter's declaration.

A page selects parameters as fields; `fields.toml` has the label and limits of each by its key in links. `number`,
`switch`, `choice` and `segments` draw other inputs, such as a view or a unit.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import streamlit as st
from pydantic.fields import FieldInfo

import capacity
from capacity.base.data_files import read_data
from capacity.base.flags import Flag, kind_of_annotation
from capacity.base.keywords import fields_of
from capacity.base.spec import Spec
from capacity.deployment import Cost, Pool, Traffic
from capacity.deployment.engines import engine_names
from capacity.deployment.routers import ROUTERS
from capacity.deployment.use_cases import USE_CASES
from capacity.hardware import profile_names
from capacity.model import model_names
from capacity.model.quantization import known_quantizations, kv_cache_format_names
from capacity.planning.variations.technique_steps import ORDER
from capacity.techniques.scaling import AXES
from capacity.techniques.speculate import speculation_methods
from capacity_app.error_display import escape_except_code, replace_flags

BOUND, IDLE = (
    "_bound",
    "_idle",
)  # session keys: widgets drawn by the last run, and widgets its page does not use
MAX_SEGMENT_LETTERS = 28  # maximum number of letters of choices shown side by side
LIMITS = {"ge": "least", "gt": "least", "least": "least", "le": "most", "lt": "most"}
NAMES: Mapping[str, Sequence[str] | Callable[[], Sequence[str]]] = {  # allowed values of text fields
    "model": model_names,
    "draft": model_names,
    "small": model_names,
    "gpu": profile_names,
    "gpus": profile_names,
    "small_gpu": profile_names,
    "engine": engine_names,
    "engines": engine_names,
    "quantization": known_quantizations,
    "quantizations": known_quantizations,
    "kv_cache_dtype": kv_cache_format_names,
    "router": tuple(ROUTERS),
    "use_case": tuple(USE_CASES),
    "method": lambda: tuple(row.method for row in speculation_methods().rows),
    "speculator": lambda: tuple(row.method for row in speculation_methods().rows),
    "axis": AXES,
    "order": ORDER,
    "api": ("all",),
    "eviction": ("all",),
}
SPECS = (Pool, Traffic, Cost)
ROWS: Mapping[str, Mapping[str, Any]] = {  # of `fields.toml`, by key
    key: {"question": question, **row}
    for question, rows in read_data(Path(__file__).with_name("fields.toml")).items()
    for key, row in rows.items()
}
Question = Callable[..., Any] | tuple[type[Spec], ...]
"""A library function, or specs such as `Pool`, whose parameters a page shows as widgets."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """A parameter as the library declares it, with its label, key and limits on a page.

    `kind` is the type of one value; with `many`, the value is a sequence. `start`, `least`, `most` and `step` are in
    the widget's unit, which is `scale` times the parameter's unit (0.001: the widget is in ms, the parameter in s). If
    `start` is None, the widget is empty with `empty` as placeholder, and the library chooses the value. `words` maps
    choices to labels.
    """

    name: str
    kind: type
    many: bool
    default: Any
    help: str
    choices: Sequence[Any] = ()
    least: float | None = None
    most: float | None = None
    key: str = ""
    label: str = ""
    start: Any = None
    step: float | None = None
    scale: float = 1.0
    words: Mapping[Any, str] = field(default_factory=dict)
    empty: str = "automatic"

    @property
    def initial_value(self) -> Any:
        """Return the widget's initial value in the form that a link contains."""
        if self.many:
            return [self.words.get(each, each) for each in self.start]
        named = self.kind is str and self.allowed_values
        return self.words.get(self.start, self.start or self.empty) if named else self.start

    def to_widget_unit(self, value: Any) -> Any:
        """Convert a value to the widget's unit."""
        return self.kind(value) if self.scale == 1.0 else round(value / self.scale, 9)

    @property
    def allowed_values(self) -> tuple[Any, ...]:
        """Return the allowed values or names; empty if any value is allowed."""
        known = NAMES.get(self.name, ())
        names = tuple(known() if callable(known) else known)
        if names and isinstance(self.default, str) and self.default not in names:
            names = (self.default, *names)
        return tuple(self.choices) or names


def show_field(question: Question, name: str, key: str, label: str, **page: Any) -> Field:
    """Return the input field of parameter `name` of `question` with a key and label; `page` overrides properties."""
    found = find_field(question, name)
    assert found is not None, name
    return replace(found, key=key, label=label, **page)


def page_field(key: str, **page: Any) -> Field:
    """Return the field of `fields.toml` with this key; `page` overrides properties."""
    row = dict(ROWS[key])
    question, name, label = (row.pop(column) for column in ("question", "name", "label"))
    specs = SPECS if question in ("sidebar", "traffic") else getattr(capacity, question)
    unset = dict.fromkeys(row.pop("unset", ()))
    return show_field(specs, name, key, label, **{**row, **unset, **page})


@cache
def find_field(question: Question, name: str) -> Field | None:
    """Return the input field of parameter `name`, which a function or a class such as `Pool` has; None if unknown."""
    info = _declared_field(question, name)
    if info is None:
        return None
    limits = {
        limit: getattr(entry, bound_name)
        for entry in info.metadata
        for bound_name, limit in LIMITS.items()
        if hasattr(entry, bound_name)
    }
    flag = next((entry for entry in info.metadata if isinstance(entry, Flag)), None)
    kind = kind_of_annotation(info.annotation)
    default = None if info.is_required() else info.default
    return Field(
        name=name,
        kind=kind.of,
        many=kind.many,
        default=default,
        help=(info.description or "") if flag is None else flag.help,
        choices=kind.choices,
        start=default,
        **limits,
    )


def _declared_field(question: Question, name: str) -> FieldInfo | None:
    """Return the declaration of a parameter with the function's default; None if there is no such parameter."""
    if isinstance(question, tuple):
        return fields_of(*question).get(name)
    if name not in (function := inspect.unwrap(question)).__annotations__:
        return fields_of(*getattr(question, "specs", ())).get(name)
    default = inspect.signature(question).parameters[name].default
    hint = _annotation_of(function, name)
    if default is inspect.Parameter.empty:
        return FieldInfo.from_annotation(hint)
    return FieldInfo.from_annotated_attribute(hint, default)


def _annotation_of(function: Any, name: str) -> Any:
    """Evaluate the annotation of one parameter only, because others may use names imported only for type checking."""
    alone = SimpleNamespace(__annotations__={name: function.__annotations__[name]})
    return get_type_hints(alone, function.__globals__, include_extras=True)[name]


def draw_fields(*fields: Field | str, disabled: bool = False, stretch: bool = False) -> dict[str, Any]:
    """Draw the widgets of fields, and return the values that differ from the library's defaults; empty if `disabled`.

    A text is the key of a field in `fields.toml`.
    """
    shown = [page_field(each) if isinstance(each, str) else each for each in fields]
    values = {each.name: _draw_widget(each, disabled, stretch) for each in shown}
    defaults = {each.name: None if each.start is None else each.default for each in shown}
    return {} if disabled else {n: v for n, v in values.items() if v is not None and v != defaults[n]}


def _draw_widget(shown: Field, disabled: bool, stretch: bool) -> Any:
    """Draw the widget of a field, and return its value in the parameter's unit."""
    options: dict[str, Any] = {
        "help": escape_except_code(replace_flags(shown.help)) or None,
        "disabled": disabled,
    }
    kind, label, key, first, offered = (
        shown.kind,
        shown.label,
        shown.key,
        shown.initial_value,
        shown.allowed_values,
    )
    if kind is bool:
        return switch(label, key, first, **options)
    optional = {shown.empty: None} if shown.start is None else {}
    values = optional | {shown.words.get(each, each): each for each in offered}
    if shown.many:
        wide = bind_to_url(key, first, width="stretch" if stretch else 300, **options)
        words = st.multiselect(label, values, first, **wide)
        return tuple(values[word] for word in words if word in values)
    if offered and kind is not str:
        return kind(st.select_slider(label, values, first, **bind_to_url(key, first, **options)))
    if offered:
        if len("".join(values)) <= MAX_SEGMENT_LETTERS:
            return values[segments(label, key, tuple(values), first, **options)]
        width = "stretch" if stretch else min(240, max(_width(text, 58) for text in (label, *values)))
        return values[choice(label, key, tuple(values), first, width=width, **options)]
    limits = (None if limit is None else kind(limit) for limit in (first, shown.least, shown.most))
    step = None if shown.step is None else kind(shown.step)
    width = "stretch" if stretch else _width(label, 34)
    value = number(label, key, *limits, step=step, placeholder=shown.empty, width=width, **options)
    return value if value is None or shown.scale == 1.0 else round(value * shown.scale, 9)


def _width(text: str, around: int) -> int:
    """Return the width in pixels of a widget that shows `text`; `around`: width of the widget without the text."""
    return max(125, around + round(6.4 * len(text)))


def bind_to_url(key: str, default: Any, *, disabled: bool = False, **options: Any) -> dict[str, Any]:
    """Return keyword arguments that bind a widget's value to the URL and keep the value when the page changes.

    `default` is the initial value. If the current page does not use the widget, it is disabled and its help says so.
    """
    st.session_state.setdefault(BOUND, {})[key] = default
    idle = key in st.session_state.get(IDLE, ())
    if idle:
        options["help"] = f"This page does not use this input. {options.get('help') or ''}".strip()
    link = {"key": key, "bind": "query-params", "persist_state": "session"}
    return {**options, "disabled": disabled or idle, **link}


def widget_row() -> Any:
    """Return a container that draws its widgets in a row."""
    return st.container(horizontal=True, vertical_alignment="bottom")


def number(label: str, key: str, default: Any, low: Any, high: Any, **options: Any) -> Any:
    """Draw a number input bound to the URL, for integers if its limits are integers; returns None if empty."""
    if isinstance(low, float) and (options.get("step") or 0) >= 1:
        options["format"] = "%.10g"
    return st.number_input(label, low, high, default, **bind_to_url(key, default, **options))


def switch(label: str, key: str, default: bool, **options: Any) -> bool:
    """Draw a toggle whose value is kept in the page's URL, and return the value."""
    return bool(st.toggle(label, default, **bind_to_url(key, default, **options)))


def page_switch(key: str) -> bool:
    """Draw the switch of `fields.toml` with this key."""
    row = ROWS[key]
    return switch(row["label"], key, row["start"], help=row.get("help"))


def choice(label: str, key: str, options: tuple[str, ...], default: str, **more: Any) -> str:
    """Draw a select box whose value is kept in the page's URL, and return the value."""
    chosen = st.selectbox(label, options, options.index(default), **bind_to_url(key, default, **more))
    return chosen if chosen in options else default


def segments(label: str, key: str, options: tuple[str, ...], default: str, **more: Any) -> str:
    """Draw a choice bound to the URL with all options visible."""
    more = bind_to_url(key, default, **more)
    chosen = st.segmented_control(label, options, default=default, required=True, **more)
    return chosen if chosen in options else default
