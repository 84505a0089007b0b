"""What the user has chosen: widgets that are part of the URL, and the one sidebar that every page shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode

import streamlit as st

from capacity.base.errors import CapacityError, InvalidInput
from capacity.base.fields import parse_json_object
from capacity.deployment.client_latency import CLIENTS, USUAL_S
from capacity.deployment.engines import engine_names
from capacity.deployment.use_cases import USE_CASES
from capacity.hardware import profile_names
from capacity.hardware.pricing import TIERS, cautions_of, find_price
from capacity.model import ModelSpec, from_hf_config, load_model, model_names
from capacity.model.quantization import known_quantizations, kv_cache_format_names
from capacity.report.display import MEMORY_UNITS, TIME_UNITS, Units
from capacity_app.boundary import plain
from capacity_app.downloads import download
from capacity_app.links import MAX_TEXT_BYTES as MAX_CONFIG_BYTES
from capacity_app.links import REMOVED, packed_text, unpacked_text

PRESET, OWN_MODEL = "preset", "config.json"
AS_PUBLISHED = "as published"
MODEL = frozenset(("source", "model"))  # keys of the sidebar's widgets, as pages read them
ENGINE = frozenset(("gpu", "tp", "pp", "ep", "weights", "kv", "engine", "context"))
LENGTHS, PRICE = frozenset(("isl", "osl")), frozenset(("tier", "price"))
VARIATION, LEVELS = frozenset(("lengths", "range")), frozenset(("slo_ttft", "slo_tpot"))
SHARED = (
    MODEL | ENGINE | LENGTHS | PRICE | VARIATION | LEVELS | {"concurrency", "rate", "client", "mem", "time"}
)
UNSET = "not set"
LENGTH_SHAPES = (UNSET, "lognormal", "gamma", *USE_CASES)
NO_PRICE, OWN_PRICE = "none", "my own"

_BOUND, _IDLE = "_bound", "_idle"
_CONFIG = "config_text"
SIDES = "_sides"  # what is pinned, packed, as a link has it


@dataclass(frozen=True, kw_only=True)
class Widget:
    """A widget of the sidebar that holds a field of the library: its key, its label, and the numbers that it takes."""

    key: str
    label: str
    kind: Callable[[Any], Any] = str
    low: float | None = None
    high: float | None = None


WIDGETS = {
    "model": Widget(key="model", label="Model"),
    "gpu": Widget(key="gpu", label="GPU"),
    "tensor_parallel_size": Widget(key="tp", label="Tensor parallel", kind=int, low=1, high=64),
    "pipeline_parallel_size": Widget(key="pp", label="Pipeline parallel", kind=int, low=1, high=64),
    "enable_expert_parallel": Widget(key="ep", label="Expert parallel", kind=bool),
    "quantization": Widget(key="weights", label="Weights"),
    "kv_cache_dtype": Widget(key="kv", label="KV cache"),
    "engine": Widget(key="engine", label="Engine"),
    "max_model_len": Widget(key="context", label="Longest request", kind=int, low=1, high=10_000_000),
    "input_len": Widget(key="isl", label="Input tokens", kind=int, low=1, high=1_000_000),
    "output_len": Widget(key="osl", label="Output tokens", kind=int, low=1, high=1_000_000),
    "concurrency": Widget(key="concurrency", label="Concurrency", kind=int, low=1, high=100_000),
    "request_rate": Widget(key="rate", label="Requests/s", kind=float, low=0.01, high=100_000.0),
    "random_range_ratio": Widget(key="range", label="Lengths ±", kind=float, low=0.0, high=0.95),
    "price_tier": Widget(key="tier", label="Price"),
}  # by the field; what a user may type or press a button for


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The sidebar's answers, under the library's names.

    `model` is what the library's functions take, `model_name` what a command line takes for it.
    """

    model: str | ModelSpec
    model_name: str
    pool: Mapping[str, Any]
    input_len: int
    output_len: int
    concurrency: int
    request_rate: float
    random_range_ratio: float | None
    length_shape: str
    ttft_ms: float
    tpot_ms: float
    client_latency_s: float
    cost: Mapping[str, Any]
    units: Units

    @property
    def offers(self) -> tuple[float, float] | None:
        """$ per GPU-hour of the cheapest and the dearest offer of which the tier's price is the median."""
        if "price_tier" not in self.cost:
            return None
        price = find_price(self.pool["gpu"], tier=self.cost["price_tier"])
        market = None if price is None else price.market
        return None if market is None else (market.low.usd_per_gpu_hour, market.high.usd_per_gpu_hour)

    @property
    def lengths(self) -> dict[str, Any]:
        """Tokens of a typical request."""
        return {"input_len": self.input_len, "output_len": self.output_len}

    @property
    def spread(self) -> dict[str, Any]:
        """How lengths vary around them, where the user sets it: the same for every page that serves a load."""
        if self.length_shape in USE_CASES:
            return {"use_case": self.length_shape}
        if self.length_shape != UNSET:
            return {"length_distribution": self.length_shape}
        ratio = self.random_range_ratio
        return {} if ratio is None else {"random_range_ratio": ratio}

    @property
    def slo(self) -> tuple[str, ...]:
        """The service levels within which deployments are counted and compared."""
        return f"ttft:p95:{self.ttft_ms:g}ms", f"tpot:p95:{self.tpot_ms:g}ms"

    @property
    def client(self) -> dict[str, Any]:
        """What client and network add to a time to first token, where it is not the usual."""
        seconds = self.client_latency_s
        return {} if seconds == USUAL_S else {"client_latency_s": seconds}


def begin(reads: Set[str]) -> None:
    """Forget which widgets the last run drew: a link speaks of those that are on the page.

    `reads` are the keys of the sidebar that the page's answer depends on; the others keep their place and value, and
    cannot be changed there.
    """
    st.session_state[_BOUND] = {}
    st.session_state.setdefault(SIDES, st.query_params.get_all("side"))
    st.session_state[_IDLE] = SHARED - reads


def bound(key: str, default: Any) -> dict[str, Any]:
    """Keywords that make a widget part of the URL and keep it over pages; `default` is what it starts from."""
    st.session_state.setdefault(_BOUND, {})[key] = default
    idle = {"disabled": True} if key in st.session_state.get(_IDLE, ()) else {}
    return {"key": key, "bind": "query-params", "persist_state": "session", **idle}


def _said(key: str, options: dict[str, Any]) -> dict[str, Any]:
    """A widget's options, whose help says why it cannot be changed on a page that does not read it."""
    if key not in st.session_state.get(_IDLE, ()):
        return options
    return {**options, "help": f"This page does not read it. {options.get('help') or ''}".strip()}


def whole(label: str, key: str, default: int, low: int, high: int, **options: Any) -> int:
    """A bound number input for a whole number."""
    return int(st.number_input(label, low, high, default, **bound(key, default), **_said(key, options)))


def number(label: str, key: str, default: float, low: float, high: float, **options: Any) -> float:
    """A bound number input for a number with a fraction."""
    return float(st.number_input(label, low, high, default, **bound(key, default), **_said(key, options)))


def requests_to_simulate(key: str) -> dict[str, int]:
    """Draw the bound input for the number of requests; empty: as many as a verdict needs, as on every page."""
    count = st.number_input(
        "Requests to simulate",
        10,
        50_000,
        None,
        step=100,
        placeholder="automatic",
        width=190,
        **bound(key, None),
    )
    return {} if count is None else {"num_prompts": int(count)}


def choice(label: str, key: str, options: tuple[str, ...], default: str, **more: Any) -> str:
    """A bound select box."""
    chosen = st.selectbox(label, options, options.index(default), **bound(key, default), **_said(key, more))
    return chosen if chosen in options else default


def segments(label: str, key: str, options: tuple[str, ...], default: str, **more: Any) -> str:
    """A bound choice of a few, all of them in sight."""
    chosen = st.segmented_control(
        label, options, default=default, required=True, **bound(key, default), **_said(key, more)
    )
    return chosen if chosen in options else default


def sidebar() -> Inputs:
    """Draw the inputs that every page shares. Raises the library's errors for a configuration that is none."""
    with st.sidebar:
        model, model_name, refused = _model()
        pool = _pool()
        st.divider()
        columns = st.columns(2)
        with columns[0]:
            input_len = whole("Input tokens", "isl", 1024, 1, 1_000_000, step=128, help="Of a prompt.")
            concurrency = whole(
                "Concurrency",
                "concurrency",
                32,
                1,
                100_000,
                help="Requests in flight at a time, in a closed loop.",
            )
        with columns[1]:
            output_len = whole("Output tokens", "osl", 256, 1, 1_000_000, step=64, help="Of an answer.")
            rate = number("Requests/s", "rate", 4.0, 0.01, 100_000.0, help="That arrive, of all users.")
        shape = choice(
            "Lengths vary as",
            "lengths",
            LENGTH_SHAPES,
            UNSET,
            help="A distribution around the mean lengths above, or a use case's. Not set: by Lengths ±.",
        )
        ratio, client_s = _lengths_and_client()
        columns = st.columns(2)
        with columns[0]:
            ttft_ms = number("SLO: p95 TTFT, ms", "slo_ttft", 1000.0, 1.0, 1e6)
        with columns[1]:
            tpot_ms = number("SLO: p95 TPOT, ms", "slo_tpot", 50.0, 0.1, 1e5)
        cost = _cost(pool["gpu"])
        st.divider()
        memory = segments("Memory in", "mem", MEMORY_UNITS, "GiB")
        seconds = segments("Latency in", "time", TIME_UNITS, "ms")
    if refused is not None:
        raise refused
    return Inputs(
        model=model,
        model_name=model_name,
        pool=pool,
        input_len=input_len,
        output_len=output_len,
        concurrency=concurrency,
        request_rate=rate,
        random_range_ratio=ratio,
        length_shape=shape,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        client_latency_s=client_s,
        cost=cost,
        units=Units(memory="GB" if memory == "GB" else "GiB", time="s" if seconds == "s" else "ms"),
    )


def _model() -> tuple[str | ModelSpec, str, CapacityError | None]:
    """The model and its name; what is wrong with it comes back, so that the rest of the sidebar stays."""
    if segments("Model from", "source", (PRESET, OWN_MODEL), PRESET) == PRESET:
        name = choice("Model", "model", model_names(), "llama-3.1-8b", help="Type to search.")
        return name, name, None
    try:
        return _own_model(), OWN_MODEL, None
    except CapacityError as error:
        return OWN_MODEL, OWN_MODEL, error


def _pool() -> dict[str, Any]:
    """GPU, parallelism, formats and engine: what differs from the defaults, under the library's names."""
    gpu = choice("GPU", "gpu", profile_names(), "h100-sxm-80gb", help="Type to search.")
    columns = st.columns(2)
    with columns[0]:
        tensor = whole("Tensor parallel", "tp", 1, 1, 64, help="GPUs that share every layer.")
    with columns[1]:
        pipeline = whole("Pipeline parallel", "pp", 1, 1, 64, help="Groups of layers in sequence.")
    expert = st.toggle(
        "Expert parallel", False, **bound("ep", False), help="Whole experts over the tensor-parallel GPUs."
    )
    weights = choice(
        "Weights",
        "weights",
        (AS_PUBLISHED, *known_quantizations()),
        AS_PUBLISHED,
        help="Number format of the model.",
    )
    cache = choice(
        "KV cache",
        "kv",
        ("auto", *kv_cache_format_names()),
        "auto",
        help="Number format of what requests remember.",
    )
    engine = choice(
        "Engine", "engine", engine_names(), "vllm", help="The server's software, and its release."
    )
    context = st.number_input(
        "Longest request",
        1,
        10_000_000,
        None,
        step=1024,
        placeholder="the model's",
        **bound("context", None),
        help="Tokens of prompt and output that a request may have. Empty: as the model says.",
    )
    chosen = {
        "max_model_len": (context, None),
        "tensor_parallel_size": (tensor, 1),
        "pipeline_parallel_size": (pipeline, 1),
        "enable_expert_parallel": (bool(expert), False),
        "quantization": (None if weights == AS_PUBLISHED else weights, None),
        "kv_cache_dtype": (cache, "auto"),
        "engine": (engine, "vllm"),
    }
    return {"gpu": gpu} | {name: value for name, (value, default) in chosen.items() if value != default}


def _lengths_and_client() -> tuple[float | None, float]:
    """Whether lengths differ, where the user says so, and the client's part of a time to first token in seconds."""
    columns = st.columns(2)
    with columns[0]:
        ratio = st.number_input(
            "Lengths ±",
            0.0,
            0.95,
            None,
            step=0.1,
            placeholder="as measured",
            **bound("range", None),
            help="Lengths are uniform within this share of their means; 0: all equal. Empty: as varied as "
            "measured chat traffic.",
        )
    with columns[1]:
        usual_ms = USUAL_S * 1e3
        known = ", ".join(f"{client.name} {client.seconds * 1e3:g}" for client in CLIENTS)
        client_ms = number(
            "Client, ms",
            "client",
            usual_ms,
            0.0,
            60_000.0,
            help=f"What client and network add to TTFT, there and back. Known: {known}.",
        )
    return (None if ratio is None else float(ratio)), (
        USUAL_S if client_ms == usual_ms else round(client_ms / 1e3, 9)
    )


def _cost(gpu: str) -> dict[str, Any]:
    """The price: a tier of the dated table, one's own, or none; said where the table has none of this GPU."""
    tier = choice(
        "Price", "tier", (NO_PRICE, *TIERS, OWN_PRICE), "on-demand", help="Tier of the dated price table."
    )
    if tier == OWN_PRICE:
        return {"price": f"{number('$ per GPU-hour', 'price', 2.5, 0.01, 1_000.0):g}"}
    if tier == NO_PRICE:
        return {}
    try:
        price = find_price(gpu, tier=tier)
    except CapacityError as error:
        st.caption(f":material/info: no cost: {plain(str(error))}")
        return {}
    for caution in cautions_of(price):
        st.caption(f":material/info: {plain(caution)}")
    return {"price_tier": tier}


def _own_model() -> ModelSpec:
    """The model of a pasted or uploaded `config.json`, through the library's reader."""
    if _CONFIG not in st.session_state:
        st.session_state[_CONFIG] = unpacked_text(st.query_params.get("config", ""))
    st.file_uploader(
        "Upload a config.json", type="json", key="config_file", on_change=_take_upload, max_upload_size=1
    )
    text = st.text_area(
        "or paste it", key=_CONFIG, persist_state="session", height=120, max_chars=MAX_CONFIG_BYTES
    )
    if text.strip():
        download("Save config.json", "config.json", lambda: text, mime="application/json")
    packed = packed_text(text)
    if packed and st.query_params.get("config") != packed:
        st.query_params["config"] = packed
    if not text.strip():
        raise InvalidInput("no model: paste or upload a Hugging Face config.json, or choose a preset")
    return parse_model(text.encode())


def _take_upload() -> None:
    if (file := st.session_state.get("config_file")) is not None:
        st.session_state[_CONFIG] = file.getvalue()[:MAX_CONFIG_BYTES].decode("utf-8", errors="replace")


def parse_model(raw: bytes) -> ModelSpec:
    """The model of a configuration's bytes. Raises MalformedFile or UnsupportedModel."""
    config = parse_json_object(raw, OWN_MODEL)
    stated = config.get("_name_or_path")
    name = stated.strip("/").split("/")[-1].lower() if isinstance(stated, str) else ""
    return from_hf_config(config, name=name[:80] or "your-model", source=OWN_MODEL, origin=OWN_MODEL)


def model_spec(inputs: Inputs) -> ModelSpec:
    """The model itself."""
    return inputs.model if isinstance(inputs.model, ModelSpec) else load_model(inputs.model)


def chosen(key: str, default: str) -> str:
    """What a page's own choice stands at before it is drawn: the sidebar comes first."""
    link = st.query_params.get(key, default)
    return str(st.session_state.get(key) or link)


# the link


def link_query() -> str:
    """The whole state as a URL's query: every bound widget that is not at its default."""
    parts: dict[str, Any] = {}
    for key, default in st.session_state.get(_BOUND, {}).items():
        value = st.session_state.get(key, default)
        if value is not None and value != default:
            parts[key] = _url_value(value)
    if parts.get("source") == OWN_MODEL and (packed := packed_text(st.session_state.get(_CONFIG, ""))):
        parts["config"] = packed
    if sides := st.session_state.get(SIDES):
        parts["side"] = sides
    return urlencode(parts, doseq=True)


def link_to(page: str, **changed: Any) -> str:
    """A link from any page to `page`, with the sidebar as it is; `changed` has other widgets' values by their keys."""
    kept = parse_qs(link_query())
    shared = {key: values for key, values in kept.items() if key in SHARED or key in ("config", "side")}
    others = {key: _url_value(value) for key, value in changed.items()}
    return f"{page}?{urlencode(shared | others, doseq=True)}"


def wrong_parts(link: Mapping[str, list[str]]) -> list[str]:
    """Return what a link says and no widget took, except the removed keys of older links."""
    bound_keys: Mapping[str, Any] = st.session_state.get(_BOUND, {})
    wrong = []
    for key, values in link.items():
        if key in ("config", "side", *REMOVED) or key.startswith("embed"):
            continue
        shown = ", ".join(values)[:60]
        if key not in bound_keys:
            wrong.append(f"{key}={shown}")
            continue
        taken = st.session_state.get(key, bound_keys[key])
        if not _same(values, _url_value(taken)):
            wrong.append(f"{key}={shown} (shown: {_url_value(taken)})")
    return wrong


def _same(written: list[str], taken: Any) -> bool:
    expected = taken if isinstance(taken, list) else [taken]
    return len(written) == len(expected) and all(map(_same_text, written, expected))


def _same_text(written: str, taken: str) -> bool:
    if written.lower() == taken.lower():
        return True
    try:
        return float(written) == float(taken)
    except ValueError:
        return False


def _url_value(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return [str(item) for item in value]
    return f"{value:g}" if isinstance(value, float) else str(value)
