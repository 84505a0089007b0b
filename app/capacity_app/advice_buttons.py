"""Buttons that apply the library's advice, such as `--max-num-seqs 512` in a note, to the inputs."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import streamlit as st

from capacity.answers.parsed_question import parse_question
from capacity.deployment import Pool
from capacity_app import more_settings
from capacity_app.state import DRAWN_BUTTONS, PAGE, WIDGETS
from capacity_app.what_if import apply_fields, field_text, reset_fields

_FLAG = re.compile(r"--[a-z][a-z0-9-]+[ =][^\s,;:()`'\"]*[^\s,;:()`'\".]")
_REMOVED = re.compile(r"\(no --([a-z0-9-]+)\)")


def draw_apply_buttons(texts: Iterable[str]) -> None:
    """Draw a button for each flag with a value in the texts, unless the inputs already have this value."""
    flags = dict.fromkeys(flag for text in texts for flag in _FLAG.findall(text))
    for flag in flags:
        fields = {
            name: value for name, value in parse_question(flag).fields.items() if name in Pool.model_fields
        }
        if fields and any(_current(name) != value for name, value in fields.items()):
            draw_apply_button(f"Apply {', '.join(field_text(*each) for each in fields.items())}", fields)


def draw_change_button(change: str, flags: str) -> None:
    """Draw a button that applies a change, given as flags; `(no --flag)` removes a setting."""
    fields = parse_question(_REMOVED.sub("", flags)).fields
    removed = frozenset(name.replace("-", "_") for name in _REMOVED.findall(flags))
    if fields or removed:
        draw_apply_button(f"Apply: {change}", fields, removed)


def draw_apply_button(label: str, fields: Mapping[str, Any], removed: frozenset[str] = frozenset()) -> None:
    """Draw a button that sets these fields; a page draws only one button with the same label."""
    drawn: set[str] = st.session_state.setdefault(DRAWN_BUTTONS, set())
    if label in drawn:
        return
    drawn.add(label)
    icon = ":material/build:"
    st.button(label, key=f"apply_{label}", icon=icon, on_click=_apply, args=(dict(fields), removed))


def _apply(fields: Mapping[str, Any], removed: frozenset[str]) -> None:
    reset_fields(removed)
    apply_fields(st.session_state.get(PAGE, ""), fields)


def _current(name: str) -> Any:
    settings = more_settings.settings_of_text()
    if name in settings or name not in WIDGETS:
        return settings.get(name)
    return st.session_state.get(WIDGETS[name].key)
