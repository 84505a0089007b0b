"""The sidebar, which all pages share, and links that contain the values of widgets."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, urlencode

import streamlit as st

from capacity.base.errors import CapacityError, InvalidInput
from capacity.base.fields import parse_json_object
from capacity.base.mappings import omit, select
from capacity.base.money import currency_codes, currency_note, find_currency, set_display_currency
from capacity.deployment import Cost, build
from capacity.deployment.client_latency import USUAL_S
from capacity.deployment.use_cases import USE_CASES
from capacity.hardware.pricing import TIERS, find_price, find_price_for_cost, price_cautions
from capacity.model import ModelSpec, from_hf_config
from capacity.report.display import MEMORY_UNITS, TIME_UNITS, Units
from capacity.report.views.units import value_at
from capacity_app.error_display import NAMES_OF_FLAGS, escape_markdown
from capacity_app.more_settings import search_options
from capacity_app.parts import draw_download
from capacity_app.side import MAX_TEXT_BYTES, pack_text, unpack_text
from capacity_app.widgets import BOUND, IDLE, ROWS, draw_fields, find_field, page_field
from capacity_app.widgets import bind_to_url as bind_to_url
from capacity_app.widgets import choice as choice
from capacity_app.widgets import number as number
from capacity_app.widgets import segments as segments

PRESET, OWN_MODEL = "preset", "config.json"
MODEL = frozenset(("source", "model"))  # sets of the sidebar's keys, for `reads` in pages.toml
ENGINE = frozenset(("gpu", "tp", "pp", "ep", "weights", "kv", "engine", "context", "more"))
LENGTHS, PRICE = frozenset(("isl", "osl")), frozenset(("tier", "price", "mix", "owned", "currency"))
VARIATION, LEVELS = frozenset(("lengths", "range")), frozenset(("slo_ttft", "slo_tpot"))
SHARED = (
    MODEL | ENGINE | LENGTHS | PRICE | VARIATION | LEVELS | {"concurrency", "rate", "client", "mem", "time"}
)
UNSET = "not set"
LENGTH_SHAPES = (UNSET, "lognormal", "gamma", *USE_CASES)
NO_PRICE, OWN_PRICE = "none", "my own"
PRICE_TEXTS = {
    "mix of tiers": ("price_mix", "Share of each tier", "mix", "reserved=0.6,spot=0.4"),
    "owned server": ("owned_cost", "Costs in US dollars", "owned", "purchase=250000,gpus=8,years=5,kwh=0.12"),
}
"""Choices of the price with a text: field of `Cost`, label, key, and initial text."""

RENAMED = {  # keys in links made before 2026-11-24, with their new keys
    "sim_ttft": "slo_ttft",
    "cost_ttft": "slo_ttft",
    "sim_tpot": "slo_tpot",
    "cost_tpot": "slo_tpot",
    "sim_lengths": "lengths",
    "plan_case": "lengths",
}
# keys of older links without a replacement
REMOVED = ("spec_tree", "val_kind", "start_case", "start_users", "start_for")
_CONFIG = "config_text"
INPUTS = "_inputs"  # the sidebar's values
DRAWN_BUTTONS, PAGE = "_drawn_buttons", "_page"  # labels of the run's buttons for advice; the page's name
SIDES = "_sides"  # pinned sides, encoded as in a link


WIDGETS = {
    row["name"]: page_field(key, **({"start": USUAL_S * 1e3} if key == "client" else {}))
    for key, row in ROWS.items()
    if row["question"] == "sidebar"
}  # by field; also set by the What if box and by buttons
AS_PUBLISHED = WIDGETS["quantization"].empty
NAMES_OF_FLAGS.update({name.replace("_", "-"): field.label for name, field in WIDGETS.items()})


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Sidebar values: `model` is the argument for library functions, `model_name` the one for a command line."""

    model: str | ModelSpec
    model_name: str
    pool: Mapping[str, Any]  # including `settings`
    settings: Mapping[str, Any]  # those of the text field More settings that the page's answer depends on
    input_len: int
    output_len: int
    concurrency: int
    request_rate: float
    spread: Mapping[str, Any]  # variation of lengths, if set
    client: Mapping[str, Any]  # latency of client and network, if not the default
    ttft_ms: float
    tpot_ms: float
    cost: Mapping[str, Any]
    units: Units

    @property
    def offers(self) -> tuple[float, float] | None:
        """Return the lowest and highest rental offer of the chosen price tier, in $ per GPU-hour; None if unknown."""
        if "price_tier" not in self.cost:
            return None
        market = value_at(find_price(self.pool["gpu"], tier=self.cost["price_tier"]), "market")
        return market and (market.low.usd_per_gpu_hour, market.high.usd_per_gpu_hour)

    @property
    def search(self) -> dict[str, Any]:
        """Return the chosen engine and further settings as arguments of searches; empty if none is chosen."""
        engines = {"engines": (self.pool["engine"],)} if "engine" in self.pool else {}
        return {**search_options(omit(self.settings, "engine")), **engines}

    @property
    def lengths(self) -> dict[str, Any]:
        return {"input_len": self.input_len, "output_len": self.output_len}

    @property
    def load(self) -> dict[str, Any]:
        """Return the lengths, their variation and the request rate as keyword arguments."""
        return {**self.lengths, **self.spread, "request_rate": self.request_rate, **self.client}

    @property
    def slo(self) -> tuple[str, ...]:
        """Return the sidebar's p95 TTFT and TPOT limits as service levels for replica counts and comparisons."""
        return f"ttft:p95:{self.ttft_ms:g}ms", f"tpot:p95:{self.tpot_ms:g}ms"


def current_inputs() -> Inputs:
    """Return the sidebar's values."""
    inputs: Inputs = st.session_state[INPUTS]
    return inputs


def begin_page(page: str, reads: Set[str]) -> None:
    """Prepare the session state for a run of the page: forget the widgets that the previous run recorded.

    `reads` are the sidebar keys that affect the page's answer; the other widgets stay visible but are disabled.
    """
    st.session_state.update({BOUND: {}, DRAWN_BUTTONS: set(), PAGE: page})
    st.session_state.setdefault(SIDES, st.query_params.get_all("side"))
    st.session_state[IDLE] = SHARED - reads


def draw_sidebar(draw_settings: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Inputs:
    """Draw and return the inputs shared by all pages. Raises the library's errors for invalid inputs.

    `draw_settings` draws the field for further settings of a pool, and returns them.
    """
    with st.sidebar:
        model, model_name, refused = _draw_model()
        pool = {
            **_shown_fields("gpu"),
            **_draw_columns("tensor_parallel_size", "pipeline_parallel_size"),
            **_shown_fields(
                "enable_expert_parallel", "quantization", "kv_cache_dtype", "engine", "max_model_len"
            ),
        }
        settings = draw_settings(pool)
        pool |= settings
        st.divider()
        load = {**_draw_columns("input_len", "output_len"), **_draw_columns("concurrency", "request_rate")}
        spread, client = _draw_spread_and_client()
        left, right = st.columns(2)
        with left:
            ttft_ms = number("SLO: p95 TTFT, ms", "slo_ttft", 1000.0, 1.0, 1e6)
        with right:
            tpot_ms = number("SLO: p95 TPOT, ms", "slo_tpot", 50.0, 0.1, 1e5)
        cost = _draw_price(pool["gpu"])
        st.divider()
        memory: Any = segments("Memory unit", "mem", MEMORY_UNITS, "GiB")
        time: Any = segments("Latency unit", "time", TIME_UNITS, "ms")
        set_display_currency(find_currency(choice("Currency", "currency", currency_codes(), "USD")))
        if note := currency_note():
            st.caption(escape_markdown(note))
    if refused is not None:
        raise refused
    return Inputs(
        model=model,
        model_name=model_name,
        pool=pool,
        settings=settings,
        **load,
        spread=spread,
        client=client,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        cost=cost,
        units=Units(memory=memory, time=time),
    )


def _draw_spread_and_client() -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw the inputs for the variation of lengths and the client's latency; return the values of each."""
    shape_help = (
        "Distribution around the mean lengths above, or a use case's. If not set, `Lengths ±` applies."
    )
    shape = choice("Length distribution", "lengths", LENGTH_SHAPES, UNSET, help=shape_help)
    further = _draw_columns("random_range_ratio", "client_latency_s")
    client = select(further, ("client_latency_s",))
    if shape != UNSET:
        return {"use_case" if shape in USE_CASES else "length_distribution": shape}, client
    return select(further, ("random_range_ratio",)), client


def _shown_fields(*names: str) -> dict[str, Any]:
    """Draw these sidebar fields, and return the values that differ from the library's defaults."""
    return draw_fields(*(WIDGETS[name] for name in names), stretch=True)


def _draw_columns(*names: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for column, name in zip(st.columns(len(names)), names, strict=True):
        with column:
            found |= _shown_fields(name)
    return found


def _draw_model() -> tuple[str | ModelSpec, str, CapacityError | None]:
    """Draw the model input; return model, name and error. The error is returned so that the sidebar is drawn first."""
    if segments("Model source", "source", (PRESET, OWN_MODEL), PRESET) == PRESET:
        name = _shown_fields("model")["model"]
        return name, name, None
    try:
        return _draw_own_model(), OWN_MODEL, None
    except CapacityError as error:
        return OWN_MODEL, OWN_MODEL, error


def _draw_price(gpu: str) -> dict[str, Any]:
    """Draw the price input: a tier of the price table, tiers mixed, a server's costs, a custom price, or none.

    Show a note if the choice gives no price.
    """
    tiers = replace(WIDGETS["price_tier"], choices=(NO_PRICE, *TIERS, *PRICE_TEXTS, OWN_PRICE))
    tier = draw_fields(tiers, stretch=True)["price_tier"]
    if tier == OWN_PRICE:
        return {"price": f"{number('US dollars per GPU-hour', 'price', 2.5, 0.01, 1_000.0):g}"}
    if tier == NO_PRICE:
        return {}
    cost = {"price_tier": tier}
    if tier in PRICE_TEXTS:
        name, label, key, initial = PRICE_TEXTS[tier]
        field = find_field((Cost,), name)
        more = bind_to_url(key, initial, help=None if field is None else field.help)
        cost = {name: st.text_input(label, initial, max_chars=500, **more)}
    try:
        price = find_price_for_cost(gpu, build(Cost, cost))
    except CapacityError as error:
        st.caption(f":material/info: no cost: {escape_markdown(str(error))}")
        return {}
    for caution in price_cautions(price):
        st.caption(f":material/info: {escape_markdown(caution)}")
    return cost


def _draw_own_model() -> ModelSpec:
    """Draw the input for a `config.json`, pasted or uploaded, and return its model."""
    if _CONFIG not in st.session_state:
        st.session_state[_CONFIG] = unpack_text(st.query_params.get("config", ""))
    st.file_uploader(
        "Upload a config.json", type="json", key="config_file", on_change=_take_upload, max_upload_size=1
    )
    text = st.text_area(
        "Or paste it", key=_CONFIG, persist_state="session", height=120, max_chars=MAX_TEXT_BYTES
    )
    if text.strip():
        draw_download("Save config.json", "config.json", lambda: text, mime="application/json")
    packed = pack_text(text)
    if packed and st.query_params.get("config") != packed:
        st.query_params["config"] = packed
    if not text.strip():
        raise InvalidInput("no model given; paste or upload a Hugging Face config.json, or choose a preset")
    return parse_model(text.encode())


def set_own_model(text: str) -> None:
    """Select the model of a `config.json`."""
    st.session_state.update({"source": OWN_MODEL, _CONFIG: text[:MAX_TEXT_BYTES]})


def _take_upload() -> None:
    if (file := st.session_state.get("config_file")) is not None:
        st.session_state[_CONFIG] = file.getvalue()[:MAX_TEXT_BYTES].decode("utf-8", errors="replace")


def parse_model(raw: bytes) -> ModelSpec:
    """Return the model of a configuration file. Raises MalformedFile or UnsupportedModel."""
    config = parse_json_object(raw, OWN_MODEL)
    stated = config.get("_name_or_path")
    name = stated.strip("/").split("/")[-1].lower() if isinstance(stated, str) else ""
    return from_hf_config(config, name=name[:80] or "your-model", source=OWN_MODEL, origin=OWN_MODEL)


def page_choice(key: str, default: str) -> str:
    """Return the value of a widget that the page draws after the sidebar, which depends on this value."""
    link = st.query_params.get(key, default)
    return str(_url_value(st.session_state.get(key) or link))


def link_query() -> str:
    """Return the values of all URL-bound widgets that differ from their defaults as a URL query."""
    parts: dict[str, Any] = {}
    for key, default in st.session_state.get(BOUND, {}).items():
        value = st.session_state.get(key, default)
        if value is not None and value != default:
            parts[key] = _url_value(value)
    if parts.get("source") == OWN_MODEL and (packed := pack_text(st.session_state.get(_CONFIG, ""))):
        parts["config"] = packed
    if sides := st.session_state.get(SIDES):
        parts["side"] = sides
    return urlencode(parts, doseq=True)


def link_to(page: str, **changed: Any) -> str:
    """Return a link to `page` with the current sidebar values; `changed` sets other widgets by key."""
    shared = select(parse_qs(link_query()), SHARED | {"config", "side"})
    others = {key: _url_value(value) for key, value in changed.items()}
    return f"{page}?{urlencode(shared | others, doseq=True)}"


def invalid_link_parts(link: Mapping[str, list[str]]) -> list[str]:
    """Return the `key=value` parts of a link that no widget accepted, except keys of older versions."""
    bound_keys: Mapping[str, Any] = st.session_state.get(BOUND, {})
    wrong = []
    for key, values in omit(link, "config", "side", *REMOVED).items():
        text = f"{key}={', '.join(values)[:60]}"
        taken = _url_value(st.session_state.get(key, bound_keys.get(key)))
        expected = taken if isinstance(taken, list) else [taken]
        if key in bound_keys and [*map(_to_comparable, values)] != [*map(_to_comparable, expected)]:
            wrong.append(f"{text} (shown: {taken})")
        elif key not in bound_keys and not key.startswith("embed"):
            wrong.append(text)
    return wrong


def _to_comparable(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text.lower()


def _url_value(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return [str(item) for item in value]
    return f"{value:g}" if isinstance(value, float) else str(value)
