"""Parse several changes of inputs from text: `2xB200 fp8 double traffic`, or flags of `vllm serve` and `capacity`."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

import streamlit as st

from capacity.base.errors import CapacityError, InvalidInput
from capacity.base.keywords import flags_of
from capacity.deployment import Cost, Pool, Traffic, build
from capacity.hardware import load_profile
from capacity.model import load_model
from capacity_app.error_display import escape_markdown, page_message
from capacity_app.sides import pin, pinned_texts
from capacity_app.state import AS_PUBLISHED, PRESET, WIDGETS

KEY, REFUSED, DONE = "what_if", "_what_if_refused", "_what_if_done"
SPELLINGS = {
    spelling.lstrip("-").replace("-", "_"): name
    for spec in (Pool, Traffic, Cost)
    for name, declared in spec.model_fields.items()
    for spelling in (name, *flags_of(declared))
} | {"model": "model", "max_concurrency": "concurrency"}
_MANY = re.compile(r"(\d{1,3})\s*[xX×]\s*([A-Za-z][\w.@-]*)")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:requests?/s|req/s|rps|/s)\b")
_TIMES = re.compile(r"(double|twice|triple|half|\d+(?:\.\d+)?\s*[xX×])\s+(?:the\s+)?(?:traffic|load|rate)")
_FACTORS = {"double": 2.0, "twice": 2.0, "triple": 3.0, "half": 0.5}
FIELDS_SET_BY_NAME = ("quantization", "model", "engine", "price_tier")  # fields that a single word can set
FILLERS = frozenset(("on", "in", "at", "to", "with", "and", "the", "weights"))


def parse_changes(text: str, *, request_rate: float) -> dict[str, Any]:
    """Return the new values of the parameters that `text` changes; `request_rate` is the rate before the change.
    Raises InvalidInput, UnknownName."""
    found: dict[str, Any] = {}
    text = text.replace(",", " ").strip()
    if times := _TIMES.search(text):
        word = times[1]
        found["request_rate"] = request_rate * (_FACTORS.get(word) or float(word.rstrip("xX× ")))
        text = text.replace(times[0], " ")
    if rate := _RATE.search(text):
        found["request_rate"] = float(rate[1])
        text = text.replace(rate[0], " ")
    if many := _MANY.search(text):
        found |= {"tensor_parallel_size": many[1], "gpu": many[2]}
        text = text.replace(many[0], " ")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidInput(f"what if: cannot parse the text: {str(error).lower()}") from None
    return _valid_fields(found | _parse_words(words))


def _parse_words(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while words:
        word, _, value = words.pop(0).partition("=")
        if not word.startswith("-"):
            found |= _fields_of_word(word)
            continue
        name = SPELLINGS.get(word.lstrip("-").replace("-", "_"))
        if name not in WIDGETS:
            raise InvalidInput(f"what if: {word} is not an input of the sidebar")
        if name == "enable_expert_parallel":
            found[name] = True
            continue
        if not value and not words:
            raise InvalidInput(f"what if: {word} needs a value")
        found[name] = value or words.pop(0)
    return found


def _fields_of_word(word: str) -> dict[str, Any]:
    """Return the parameter that a single word sets, with its value; empty for a filler word."""
    lower = word.lower()
    if lower in FILLERS:
        return {}
    if named := [field for field in FIELDS_SET_BY_NAME if lower in WIDGETS[field].allowed_values]:
        return {named[0]: lower}
    try:
        return {"gpu": load_profile(lower).name}
    except CapacityError:
        raise InvalidInput(
            f"what if: {word[:40]!r} is not a GPU, weight format, engine, model or price tier"
        ) from None


def _valid_fields(found: dict[str, Any]) -> dict[str, Any]:
    """Replace aliases with full names, and check numbers against the limits of the sidebar's widgets."""
    if "gpu" in found:
        found["gpu"] = load_profile(str(found["gpu"]).lower()).name
    if "model" in found:
        found["model"] = load_model(str(found["model"])).name
    if found.get("quantization") in ("none", "checkpoint", AS_PUBLISHED):
        found["quantization"] = AS_PUBLISHED
    for field in (*FIELDS_SET_BY_NAME, "kv_cache_dtype"):
        if found.get(field, AS_PUBLISHED) not in (AS_PUBLISHED, *WIDGETS[field].allowed_values):
            raise InvalidInput(f"what if: unknown {field.replace('_', ' ')} {str(found[field])[:40]!r}")
    for spec in (Pool, Traffic):
        fields = {n: v for n, v in found.items() if n in spec.model_fields and v != AS_PUBLISHED}
        if fields:
            beside = {"gpu": "h100-sxm-80gb"} if spec is Pool else {}
            built = build(spec, {**beside, **fields}, flags=True)
            found |= {name: getattr(built, name) for name in fields}
    for field, value in found.items():
        widget = WIDGETS[field]
        if widget.most is not None and not (widget.least or 0) <= widget.to_widget_unit(value) <= widget.most:
            raise InvalidInput(f"what if: {field} is {value:g}, must be {widget.least:g} to {widget.most:g}")
    return found


def draw_box(page: str) -> None:
    """Draw a text box for changes of inputs, applied immediately; if no side is pinned, pin the old inputs as A."""
    st.text_input(
        "What if",
        key=KEY,
        placeholder="2xB200 fp8 double traffic",
        icon=":material/compare_arrows:",
        on_change=_apply,
        args=(page,),
        help="Several changes at once, as words (`2xB200 fp8 double traffic`) or flags (`-tp 2 --gpu b200 -q fp8 "
        "--request-rate 8`). The current inputs are pinned as A, so that every metric shows the difference.",
    )
    if refused := st.session_state.get(REFUSED):
        st.error(escape_markdown(refused), icon=":material/block:")
    if done := st.session_state.get(DONE):
        st.caption(f":material/check: {escape_markdown(done)}")


def _apply(page: str) -> None:
    text = str(st.session_state.get(KEY, "")).strip()
    st.session_state[REFUSED] = st.session_state[DONE] = None
    if not text:
        return
    try:
        changed = parse_changes(text[:500], request_rate=float(st.session_state.get("rate") or 4.0))
    except CapacityError as error:
        st.session_state[REFUSED] = page_message(error)
        return
    if not pinned_texts():
        pin()
    for name, value in changed.items():
        st.session_state[WIDGETS[name].key] = WIDGETS[name].to_widget_unit(value)
    st.session_state.update(implied_page_state(page, changed))
    if "model" in changed:
        st.session_state["source"] = PRESET
    st.session_state[KEY] = ""
    st.session_state[DONE] = ", ".join(f"{WIDGETS[name].label} {value}" for name, value in changed.items())


def implied_page_state(page: str, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for the page's own widgets that a change requires: the kind of load, or the GPUs of a search."""
    from capacity_app.pages import LOOP, RATE

    if page in ("plan", "fleet"):
        return {f"{page}_gpus": [changed["gpu"]]} if "gpu" in changed else {}
    ways = [way for name, way in (("request_rate", RATE), ("concurrency", LOOP)) if name in changed]
    key = {"estimate": "load", "stack": "stack_load"}.get(page)
    return {key: ways[0]} if key and ways else {}
