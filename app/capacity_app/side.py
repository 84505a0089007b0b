"""One side of a comparison: the function arguments of a page, and their encoding in a link."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import zlib
from collections.abc import Container
from dataclasses import asdict, dataclass, replace
from pkgutil import resolve_name
from typing import Any

from capacity.base.errors import InvalidInput
from capacity.base.fields import parse_json_object
from capacity.base.mappings import omit, select
from capacity.base.registry import BY_NAME
from capacity.deployment import Cost, Pool, Service, Traffic
from capacity.model import model_names
from capacity_app.more_settings import read_settings
from capacity_app.widgets import Field, find_field

MAX_NUMBER = 10_000_000  # of all numbers that pages accept
TEXT_PATTERNS = {
    "price": re.compile(r"\d{1,7}(\.\d{1,6})?"),
    "price_mix": re.compile(r"[a-z0-9=.,-]{1,200}"),
    "owned_cost": re.compile(r"[a-z0-9=.,;@_-]{1,500}"),
    "acceptance": re.compile(r"\d(\.\d{1,6})?"),
    "goodput": re.compile(r"(ttft|tpot):\d{1,9}(\.\d{1,6})?"),
    "slo": re.compile(r"(ttft|tpot|e2el):p\d{2}:\d{1,9}(\.\d{1,6})?m?s"),
}
POOL = (
    *("gpu", "tensor_parallel_size", "pipeline_parallel_size", "enable_expert_parallel"),
    *("quantization", "kv_cache_dtype", "engine", "max_model_len"),
)
# further settings of a pool; those left out are arguments of some pages, or not of one engine
SETTINGS = tuple(omit(Pool.model_fields, *POOL, "model", "replicas", "role", "draft", "acceptance"))
FIELDS_WITHOUT_LOAD = ("num_prompts", "seed", "client_latency_s")
DEPLOYMENT_SPECS = (Pool, Traffic, Service, Cost)  # specs accepted in addition to the function's own keywords
VERBS_OF_PAGES = {
    "speculation": "speculate",
    "beam_search": "beam-search",
}  # pages named differently from their verb
MAX_LINK_BYTES = 6_000
MAX_TEXT_BYTES = 256 * 1024
INFINITY = "inf"  # encoding of infinity, which JSON lacks


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a comparison on `page`: model, pool and traffic (`options`), and price (`cost`)."""

    page: str
    model: str
    options: dict[str, Any]
    cost: dict[str, Any]

    @property
    def verb(self) -> str:
        return verb_of_page(self.page)

    @property
    def link_text(self) -> str:
        """Return this side of the comparison as compressed text for a link."""
        ended = {n: INFINITY if value == float(INFINITY) else value for n, value in self.options.items()}
        return pack_text(json.dumps(asdict(replace(self, options=ended)), sort_keys=True))

    @property
    def arguments(self) -> dict[str, Any]:
        return {"model": self.model, **self.options, **self.cost}

    def select_fields(self, names: Container[str]) -> dict[str, Any]:
        return select(self.arguments, names)

    @property
    def has_one_deployment(self) -> bool:
        """Return whether the side describes a single deployment; a plan compares many."""
        return "gpu" in self.options

    @property
    def description(self) -> str:
        """Return a text with the model and its GPUs."""
        tensor = self.options.get("tensor_parallel_size", 1)
        gpus = (
            f"{tensor} x {self.options['gpu']}"
            if self.has_one_deployment
            else f"any of {', '.join(self.options['gpus'])}"
        )
        return f"{self.model}, {gpus}"

    @property
    def traffic(self) -> dict[str, Any]:
        return self.select_fields(Traffic.model_fields)

    @property
    def load(self) -> dict[str, Any]:
        """Return the traffic without fields that do not change the load: number of requests, seed, client latency."""
        return omit(self.traffic, *FIELDS_WITHOUT_LOAD)

    @property
    def has_steady_load(self) -> bool:
        """Return whether the load is a finite request rate or a concurrency, at which deployments can be compared."""
        rate = self.options.get("request_rate")
        return "concurrency" in self.options if rate is None else math.isfinite(rate)

    def under_load_of(self, current: Side) -> Side:
        """Return this side on the page of `current`, with the load of `current`."""
        asked = self.convert_to_page(current)
        return replace(asked, options={**omit(asked.options, *asked.load), **current.load})

    @property
    def deployment(self) -> dict[str, Any]:
        """Return this side's deployment, traffic and cost in the structure of a deployment file."""
        return {
            "model": self.model,
            "pools": [omit(self.select_fields(Pool.model_fields), "model")],
            "traffic": self.traffic,
            "service": self.select_fields(Service.model_fields),
            "cost": self.select_fields(Cost.model_fields),
        }

    def convert_to_page(self, current: Side) -> Side:
        """Return a side of `current`'s page with this deployment and load, and all other arguments of `current`."""
        if self.page == current.page:
            return self
        shared = omit(select(self.options, current.options), *SETTINGS)
        own = self if self.has_one_deployment else current
        pool = own.select_fields(POOL) if current.has_one_deployment else {}
        settings = own.select_fields(SETTINGS) if pool else {}
        pool |= read_settings(current.verb, settings, {**pool, **current.load})
        kept = omit(current.options, *POOL, *SETTINGS)
        return replace(
            current,
            model=self.model,
            options={**pool, **kept, **shared},
            cost=self.cost if current.cost else {},
        )


def verb_of_page(page: str) -> str:
    """Return the name of the command (verb) that computes a page's answers; if there is none, the page's name."""
    return VERBS_OF_PAGES.get(page, page)


def read_side(text: str) -> Side:
    """Decode one side of a comparison (page, model, settings, cost) from a link, and check it. Raises InvalidInput."""
    found = parse_json_object(unpack_text(text).encode(), "side")
    page, model, options, cost = (found.get(name) for name in ("page", "model", "options", "cost"))
    verb = BY_NAME.get(verb_of_page(str(page)))
    if not (
        isinstance(options, dict) and isinstance(cost, dict) and {"gpu", "gpus"} & options.keys() and verb
    ):
        raise InvalidInput("pinned inputs in the link are invalid; pin them again")
    function = resolve_name(verb.function)
    for name, value in {"model": model, **options, **cost}.items():
        if not _is_allowed(function, str(name), value):
            raise InvalidInput(
                f"pinned inputs in the link have an invalid {str(name)[:40]}={str(value)[:40]}; pin them again"
            )
    ended = {name: float(INFINITY) if value == INFINITY else value for name, value in options.items()}
    return Side(page=str(page)[:40], model=str(model), options=ended, cost=cost)


def _is_allowed(function: Any, name: str, value: object) -> bool:
    """Return whether the parameter `name` of this function accepts the value."""
    if name == "model":
        return value in model_names()
    field = find_field(function, name) or find_field(DEPLOYMENT_SPECS, name)
    if field is None or field.many is not isinstance(value, list):
        return False
    values = value if isinstance(value, list) else [value]
    return len(values) <= 40 and all(_is_allowed_value(field, each) for each in values)


def _is_allowed_value(field: Field, value: object) -> bool:
    if field.kind is not str:
        number = isinstance(value, (bool, int, float)) and 0 <= value <= MAX_NUMBER
        return number or (value == INFINITY and field.name in ("burstiness", "request_rate"))
    pattern = TEXT_PATTERNS.get(field.name)
    return isinstance(value, str) and (
        value in field.allowed_values or bool(pattern and pattern.fullmatch(value))
    )


def pack_text(text: str) -> str:
    """Compress text for a URL; empty if it is too long."""
    if not text.strip():
        return ""
    packed = base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()
    return packed if len(packed) <= MAX_LINK_BYTES else ""


def unpack_text(packed: str) -> str:
    """Decompress text from a URL; empty if it is malformed or exceeds `MAX_TEXT_BYTES`."""
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(base64.urlsafe_b64decode(packed[:MAX_LINK_BYTES]), MAX_TEXT_BYTES)
        return "" if unpacker.unconsumed_tail else raw.decode()
    except (binascii.Error, zlib.error, ValueError):
        return ""
