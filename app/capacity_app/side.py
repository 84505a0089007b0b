"""A side of a comparison: a question that a page asks the library, and how a link holds it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from capacity.base.errors import InvalidInput
from capacity.base.fields import parse_json_object
from capacity.deployment import Cost, Pool, Service, Traffic
from capacity.deployment.engines import engine_names
from capacity.deployment.routers import ROUTERS
from capacity.deployment.use_cases import USE_CASES
from capacity.hardware import profile_names
from capacity.model import model_names
from capacity.model.quantization import known_quantizations, kv_cache_format_names
from capacity.planning.variations.technique_steps import ORDER as TECHNIQUES
from capacity.techniques.speculate import speculation_methods
from capacity_app.links import packed_text, unpacked_text

OBJECTIVES = ("cost", "gpus", "energy", "latency")  # of a plan
LARGEST = 10_000_000  # of any number that a page takes
NAMES: Mapping[str, Callable[[], tuple[str, ...]]] = {
    "model": model_names,
    "draft": model_names,
    "gpu": profile_names,
    "engine": engine_names,
    "quantization": lambda: tuple(known_quantizations()),
    "kv_cache_dtype": lambda: tuple(kv_cache_format_names()),
    "length_distribution": lambda: ("lognormal", "gamma"),
    "arrivals": lambda: ("on-off", "ramp", "diurnal"),
    "router": lambda: tuple(ROUTERS),
    "method": lambda: tuple(row.method for row in speculation_methods().rows),
    "api": lambda: ("all",),
    "gpus": profile_names,
    "engines": engine_names,
    "use_case": lambda: tuple(USE_CASES),
    "objective": lambda: OBJECTIVES,
    "order": lambda: TECHNIQUES,
    "small": model_names,
    "small_gpu": profile_names,
    "escalate_by": lambda: ("answer", "prompt"),
    "split_by": lambda: ("prompt", "request"),
    "eviction": lambda: ("all",),
}
TEXTS = {
    "price_tier": re.compile(r"[a-z0-9-]{1,30}"),
    "price": re.compile(r"\d{1,7}(\.\d{1,6})?"),
    "acceptance": re.compile(r"\d(\.\d{1,6})?"),
    "goodput": re.compile(r"(ttft|tpot):\d{1,9}(\.\d{1,6})?"),
    "slo": re.compile(r"(ttft|tpot|e2el):p\d{2}:\d{1,9}(\.\d{1,6})?m?s"),
}
POOL = (
    "gpu",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "enable_expert_parallel",
    "quantization",
    "kv_cache_dtype",
    "engine",
    "max_model_len",
)
NOT_OF_THE_LOAD = ("num_prompts", "seed", "client_latency_s")
LOADS = ("batch_size", "concurrency", "request_rate")
NUMBERS = (
    *POOL,
    *LOADS,
    "input_len",
    "output_len",
    "random_range_ratio",
    "client_latency_s",
    "num_prompts",
    "seed",
    "burstiness",
    "on_s",
    "off_s",
    "end_request_rate",
    "ramp_s",
    "day_peak_to_mean",
    "day_length_s",
    "turns",
    "think_time_s",
    "random_prefix_len",
    "replicas",
    "api_input_price",
    "api_output_price",
    "api_cached_fraction",
    "draft_tokens",
    "context_tokens",
    "batches",
    "max_gpus",
    "time_limit_s",
    "escalation_rate",
    "cache_hit_rate",
    "simulate",
    "judge_s",
    "small_tensor_parallel_size",
    "target_utilization",
    "input_len_cv",
    "output_len_cv",
    "split_at",
    "spare_replicas",
    "max_pools",
    "peak_to_mean",
    "beam_widths",
    "contexts",
    "budget_tokens",
)
LISTS = (
    "batches",
    "beam_widths",
    "contexts",
    "engines",
    "goodput",
    "gpus",
    "order",
    "slo",
    "split_at",
)  # of several values
UNEQUAL = "inf"  # of a number without an end, which JSON has no word for


@dataclass(frozen=True, kw_only=True)
class Side:
    """What `page` asks: the keywords of pool and traffic in `options`, of the price in `cost`."""

    page: str
    model: str
    options: dict[str, Any]
    cost: dict[str, Any]

    @property
    def text(self) -> str:
        """As a link has it."""
        return packed_text(json.dumps(_without_ends(asdict(self)), sort_keys=True))

    @property
    def said(self) -> dict[str, Any]:
        """All of it by name."""
        return {"model": self.model, **self.options, **self.cost}

    def of(self, names: Mapping[str, Any] | tuple[str, ...]) -> dict[str, Any]:
        """The keywords of these names."""
        return {name: value for name, value in self.said.items() if name in names}

    @property
    def deployed(self) -> bool:
        """Whether it asks of one deployment; a plan asks of many."""
        return "gpu" in self.options

    @property
    def traffic(self) -> dict[str, Any]:
        """Who asks what, when."""
        return self.of(dict.fromkeys(Traffic.model_fields))

    @property
    def load(self) -> dict[str, Any]:
        """The traffic without what does not change the load: the length of its run, its seed and the client's part."""
        return {name: value for name, value in self.traffic.items() if name not in NOT_OF_THE_LOAD}

    def under_load_of(self, current: Side) -> Side:
        """Return the same deployment in the question and under the load of `current`."""
        asked = self.asked_on(current)
        kept = {name: value for name, value in asked.options.items() if name not in asked.load}
        return replace(asked, options={**kept, **current.load})

    @property
    def deployment(self) -> dict[str, Any]:
        """The fields of a deployment file."""
        return {
            "model": self.model,
            "pools": [self.of(tuple(name for name in Pool.model_fields if name != "model"))],
            "traffic": self.traffic,
            "service": self.of(Service.model_fields),
            "cost": self.of(Cost.model_fields),
        }

    def asked_on(self, current: Side) -> Side:
        """The same deployment and load in the question of the page in sight: what else that asks stays."""
        if self.page == current.page:
            return self
        shared = {name: self.options[name] for name in current.options if name in self.options}
        pool = (self if self.deployed else current).of(POOL) if current.deployed else {}
        kept = {name: value for name, value in current.options.items() if name not in POOL}
        return replace(
            current,
            model=self.model,
            options={**pool, **kept, **shared},
            cost=self.cost if current.cost else {},
        )


def read_side(text: str) -> Side:
    """A side from a link, where nothing is trusted: names that pages have, values that they could have.

    Raises InvalidInput.
    """
    found = parse_json_object(unpacked_text(text).encode(), "side")
    page, model, options, cost = (found.get(name) for name in ("page", "model", "options", "cost"))
    if not isinstance(options, dict) or not isinstance(cost, dict) or not {"gpu", "gpus"} & set(options):
        raise InvalidInput("a side of the link is no question: pin it again")
    for name, value in {"model": model, **options, **cost}.items():
        if not _may_be(name, value) or isinstance(value, list) is not (name in LISTS):
            raise InvalidInput(f"a side of the link says {str(name)[:40]}={str(value)[:40]}: pin it again")
    ended = {name: float(UNEQUAL) if value == UNEQUAL else value for name, value in options.items()}
    return Side(page=str(page)[:40], model=str(model), options=ended, cost=cost)


def _without_ends(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_ends(item) for name, item in value.items()}
    return UNEQUAL if value == float(UNEQUAL) else value


def _may_be(name: str, value: object) -> bool:
    if isinstance(value, list):
        return len(value) <= 40 and all(_may_be(name, each) for each in value)
    if name in NAMES:
        return isinstance(value, str) and value in NAMES[name]()
    if name in TEXTS:
        return isinstance(value, str) and TEXTS[name].fullmatch(value) is not None
    if value == UNEQUAL:
        return name in ("burstiness", "request_rate")
    return name in NUMBERS and isinstance(value, (bool, int, float)) and 0 <= value <= LARGEST
