"""Apply a parsed question to the dashboard's inputs, and draw the What if box for several changes in one text."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

import streamlit as st

from capacity.answers.parsed_question import ParsedQuestion, parse_question
from capacity.base.command_text import flag_texts
from capacity.base.mappings import omit
from capacity.deployment import Pool
from capacity.deployment.use_cases import find_use_case
from capacity_app import more_settings
from capacity_app.error_display import escape_markdown
from capacity_app.state import AS_PUBLISHED, OWN_PRICE, PRESET, UNSET, WIDGETS
from capacity_app.widgets import Field

KEY, DONE, NOT_READ = "what_if", "_what_if_done", "_what_if_not_read"
OTHER_LABELS = {
    "use_case": "Use case",
    "users": "Users",
    "ttft_ms": "SLO: p95 TTFT, ms",
    "tpot_ms": "SLO: p95 TPOT, ms",
    "price": "US dollars per GPU-hour",
}


def field_text(name: str, value: Any) -> str:
    """Return a field with its label and value, such as `GPU h200-sxm-141gb`, or as a flag if it has no label."""
    label = WIDGETS[name].label if name in WIDGETS else OTHER_LABELS.get(name)
    if label is None:
        return " ".join(flag_texts({name: value}))
    shown = f"{value:g}" if isinstance(value, float) else AS_PUBLISHED if value is None else value
    return label if value is True else f"{label} {shown}"


def _takes(widget: Field, value: Any) -> bool:
    """Return whether a widget of the sidebar can show this value."""
    if widget.kind is str:
        return value in widget.allowed_values
    if isinstance(value, str) or value is None:
        return False
    return widget.most is None or (widget.least or 0) <= widget.to_widget_unit(value) <= widget.most


def apply_fields(page: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Set the widgets of these fields; `Pool` fields without a widget become More settings.

    Returns texts for the fields that could not be set.
    """
    widgets: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    left = []
    for name, value in fields.items():
        widget = WIDGETS.get(name)
        if name in ("quantization", "kv_cache_dtype") and value in (None, "auto"):
            widgets[WIDGETS[name].key] = WIDGETS[name].initial_value
        elif widget is not None and _takes(widget, value):
            widgets[widget.key] = widget.to_widget_unit(value)
        elif name == "engine":
            widgets["engine"], settings[name] = value.partition("@")[0], value
        elif name in Pool.model_fields and name != "gpu":
            settings[name] = value
        elif name in ("use_case", "length_distribution"):
            widgets["lengths"] = value
        elif name in ("ttft_ms", "tpot_ms"):
            widgets[f"slo_{name.removesuffix('_ms')}"] = float(value)
        elif name == "price":
            widgets |= {"tier": OWN_PRICE, "price": float(value)}
        elif name != "users":
            left.append(f"{field_text(name, value)}: no input on this page, or a value outside its limits")
    if settings:
        kept = {**more_settings.settings_of_text(), **settings}
        widgets[more_settings.KEY] = " ".join(flag_texts(kept))
    if "model" in fields:
        widgets["source"] = PRESET
    st.session_state.update(widgets | implied_page_state(page, fields))
    return tuple(left)


def reset_fields(names: Set[str]) -> None:
    """Give the inputs of these fields their initial values."""
    other = {"use_case": ("lengths", UNSET), "ttft_ms": ("slo_ttft", 1000.0), "tpot_ms": ("slo_tpot", 50.0)}
    other |= {"price": ("tier", WIDGETS["price_tier"].initial_value), "config": ("source", PRESET)}
    values = dict(pair for name, pair in other.items() if name in names)
    values |= {WIDGETS[name].key: WIDGETS[name].initial_value for name in names & WIDGETS.keys()}
    if (settings := more_settings.settings_of_text()).keys() & names:
        values[more_settings.KEY] = " ".join(flag_texts(omit(settings, *names)))
    st.session_state.update(values)


def move_settings_to_widgets(page: str) -> None:
    """Move flags that have a widget from More settings to the widget; other flags and unknown words stay there."""
    text = str(st.session_state.get(more_settings.KEY) or "")
    parsed = parse_question(text)
    if parsed.notes or not parsed.fields:
        return
    st.session_state[more_settings.KEY] = ""
    left = apply_fields(page, parsed.fields)
    kept = (st.session_state[more_settings.KEY], *parsed.not_read, *left)
    st.session_state[more_settings.KEY] = " ".join(filter(None, kept))


def draw_box(page: str) -> None:
    """Draw a text box for changes of inputs, applied immediately."""
    st.text_input(
        "What if",
        key=KEY,
        placeholder="2xB200 fp8 double traffic",
        icon=":material/compare_arrows:",
        on_change=_apply,
        args=(page,),
        help="Several changes at once, as words (`2xB200 fp8 double traffic`) or flags (`-tp 2 --gpu b200 -q fp8 "
        "--request-rate 8`). To see the difference of every metric, pin the inputs before.",
    )
    if done := st.session_state.get(DONE):
        st.caption(f":material/check: {escape_markdown(done)}")
    draw_not_read("what_if", *st.session_state.get(NOT_READ, ((), ())))


def draw_not_read(place: str, words: Sequence[str], notes: Sequence[str]) -> None:
    """Draw the notes, and as grey text the words that were not understood; `place` is a unique name on the page."""
    if words or notes:
        with st.container(key=f"not_read_{place}", gap="xsmall"):
            if words:
                st.caption(f"Not understood: {escape_markdown(' '.join(words))}")
            for note in notes:
                st.caption(f":material/info: {escape_markdown(note)}")


def parse_changes(text: str) -> ParsedQuestion:
    """Parse a text, with the sidebar's rate for words such as `double traffic`."""
    return parse_question(text, request_rate=float(st.session_state.get("rate") or 4.0))


def _apply(page: str) -> None:
    parsed = parse_changes(str(st.session_state.get(KEY, "")))
    left = apply_fields(page, parsed.fields)
    st.session_state[NOT_READ] = (parsed.not_read, (*parsed.notes, *left))
    st.session_state[DONE] = ", ".join(field_text(name, value) for name, value in parsed.fields.items())
    if parsed.fields:
        st.session_state[KEY] = ""


def implied_page_state(page: str, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for the page's own widgets that a change requires: the kind of load, GPUs or SLO of a search."""
    from capacity_app.pages import LOOP, RATE, USERS

    if page in ("plan", "fleet"):
        limits = {
            f"{page}_{name.removesuffix('_ms')}": changed[name]
            for name in ("ttft_ms", "tpot_ms")
            if name in changed
        }
        gpus = {f"{page}_gpus": [changed["gpu"]]} if "gpu" in changed else {}
        level = find_use_case(changed["use_case"]).slo.limits[0] if "use_case" in changed else ""
        at = {f"{page}_at": level.split(":")[1]} if limits and level else {}
        return {**gpus, **limits, **at}
    if page == "deployments" and "users" in changed:
        return {"deps_load": USERS, "deps_users": changed["users"]}
    ways = [way for name, way in (("request_rate", RATE), ("concurrency", LOOP)) if name in changed]
    key = {"deployments": "deps_load", "estimate": "load", "stack": "stack_load"}.get(page)
    return {key: ways[0]} if key and ways else {}
