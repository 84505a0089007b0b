"""Search space of the planner: the axes as a user writes them, and the engines and deployments that they span."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, create_model

from capacity.deployment import Pool, build
from capacity.deployment.drafts import DRAFT_FIELDS, drafting_name
from capacity.deployment.engines import find_engine
from capacity.deployment.field_flags import FlagSpec
from capacity.deployment.pool import PowerCap
from capacity.hardware.grid_carbon import co2_g_per_kwh
from capacity.hardware.power_cap import DEFAULT_CAPS, cap_text

if TYPE_CHECKING:
    from capacity.model import ModelSpec

Objective = Literal["cost", "gpus", "energy", "carbon", "latency"]
Role = Literal["both", "prefill", "decode"]
Serving = Literal["aggregated", "disaggregated"]
DEFAULT_WORDS = ("none", "default", "checkpoint", "auto")
ROUND_ROBIN = "round-robin"
Fields = Mapping[str, Any]  # fields of a pool
ROUND_TOKENS = 1024  # multiple to which a context length from the traffic is rounded up


def as_list(value: Any) -> Any:
    """Return text such as `a,b,c` as a tuple, a number as a tuple of one; other values unchanged."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return (value,) if isinstance(value, (int, float)) else value


def _listed_or_default(value: Any) -> Any:
    """Return the value as `as_list` does, with None for words that mean the default (none, checkpoint, auto)."""
    listed = as_list(value)
    if not isinstance(listed, (tuple, list)):
        return listed
    return tuple(None if isinstance(part, str) and part.lower() in DEFAULT_WORDS else part for part in listed)


def _listed_caps(value: Any) -> Any:
    """Return a list of power caps as a tuple; `auto` means `DEFAULT_CAPS`, `none` means no cap."""
    listed = as_list(value)
    if not isinstance(listed, (tuple, list)):
        return listed
    caps: list[Any] = []
    for part in listed:
        word = part.lower() if isinstance(part, str) else part
        caps += DEFAULT_CAPS if word == "auto" else [None if word in DEFAULT_WORDS else part]
    return tuple(dict.fromkeys(caps))


def _drafting_names(ways: tuple[str | None, ...]) -> tuple[str | None, ...]:
    return tuple(None if way is None else drafting_name(way) for way in ways)


def _parse_time_limit(value: Any) -> Any:
    """Return 0 (no limit) for `inf`, `none` and None; other values unchanged."""
    return 0.0 if value is None or str(value).strip().lower() in ("inf", "infinity", "none") else value


Names = Annotated[tuple[str, ...], BeforeValidator(as_list)]
Choices = Annotated[tuple[str | None, ...], BeforeValidator(_listed_or_default)]
Ways = Annotated[tuple[str | None, ...], BeforeValidator(_listed_or_default), AfterValidator(_drafting_names)]
Counts = Annotated[
    tuple[Annotated[int, Field(ge=1, le=4096)], ...], BeforeValidator(as_list), Field(min_length=1)
]
Limits = Annotated[
    tuple[Annotated[int, Field(ge=1, le=1 << 24)] | None, ...],
    BeforeValidator(_listed_or_default),
    Field(min_length=1),
]
Drafts = Annotated[
    tuple[Annotated[int, Field(ge=1, le=64)], ...], BeforeValidator(as_list), Field(min_length=1)
]
Switches = Annotated[tuple[bool | None, ...], BeforeValidator(_listed_or_default), Field(min_length=1)]
Caps = Annotated[tuple[PowerCap | None, ...], BeforeValidator(_listed_caps), Field(min_length=1)]
DRAFT_MODEL = "draft-model"


class Axes(FlagSpec):
    """Axes that `plan` searches, each a list such as `a,b,c`; `default` in a list means the engine's default."""

    gpus: Names = ()
    power_cap: Caps = (None,)
    tensor_parallel_sizes: Counts = (1, 2, 4, 8)
    pipeline_parallel_sizes: Counts = (1,)
    data_parallel_sizes: Counts = (1, 8)
    expert_parallel: Switches = (False, True)
    quantizations: Choices = ()
    kv_cache_dtypes: Annotated[Names, Field(min_length=1)] = ("auto", "fp8")
    engines: Annotated[Names, Field(min_length=1)] = ("vllm",)
    max_num_seqs: Limits = (None,)
    max_num_batched_tokens: Limits = (None, 2048, 1024, 512)
    chunked_prefill: Switches = (None,)
    prefix_caching: Switches = (None,)
    speculators: Ways = ()
    draft: str | None = None
    num_speculative_tokens: Drafts = (2, 4)
    acceptance: str | None = None
    serving: Annotated[tuple[Serving, ...], BeforeValidator(as_list), Field(min_length=1)] = (
        "aggregated",
        "disaggregated",
    )
    routers: Names = ()
    max_model_len: int | None = None
    max_gpus: int = 64
    budget: float | None = None
    max_quality_loss: float | None = None
    objective: Objective = "cost"
    grid_region: str | None = None
    slo_window: str = "15m"
    goodput_target: float = 0.99
    confidence: float = 0.9
    latency_tolerance: float = 0.3
    alternatives: bool = True
    replications: int = 3
    time_limit_s: Annotated[float | None, BeforeValidator(_parse_time_limit)] = 120.0

    @property
    def co2_g_per_kwh(self) -> float | None:
        """Return the carbon intensity of `grid_region` in g/kWh; without a region, that of the world for the objective
        `carbon` and None for other objectives. Raises UnknownName."""
        region = self.grid_region or ("world" if self.objective == "carbon" else None)
        return None if region is None else co2_g_per_kwh(region)


SEARCHED_FIELDS = (
    "gpu", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel",
    "quantization", "kv_cache_dtype", "engine", "enable_chunked_prefill", "enable_prefix_caching", "speculator",
    "speculative_config", "kv_transfer_config", "override_generation_config", "replicas", "role", "model",
    "route_up_to_tokens", "route_up_to_requests", "route_escalation_rate",
)  # fmt: skip
"""Pool fields that the search sets: axes under another name, and fields derived from axes."""

FIXED_FIELDS: Fields = {
    name: (field.annotation, field)
    for name, field in Pool.model_fields.items()
    if name not in SEARCHED_FIELDS and name not in Axes.model_fields
}
"""All other pool fields that are not axes; they are the same in every deployment of a search."""

if TYPE_CHECKING:

    class Search(Axes):
        """Axes of the search, and settings that are the same for all deployments."""

        language_model_only: bool = False

else:
    Search = create_model("Search", __base__=Axes, __module__=__name__, __doc__=Axes.__doc__, **FIXED_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Deployment: `replicas` replicas of a pool behind a router; with `prefill`, another pool computes the prompts."""

    pool: Pool
    replicas: int
    prefill: Pool | None = None
    prefill_replicas: int = 0
    router: str = ROUND_ROBIN

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs in use, not rounded up to whole instances."""
        prefill = 0 if self.prefill is None else self.prefill.num_gpus * self.prefill_replicas
        return self.pool.num_gpus * self.replicas + prefill

    @property
    def is_plain(self) -> bool:
        """Return whether the deployment uses neither drafts nor separate prefill engines."""
        return self.prefill is None and self.pool.speculator is None

    @property
    def parts(self) -> tuple[tuple[Pool, int, Role], ...]:
        """Return each pool with its replicas and its role."""
        if self.prefill is None:
            return ((self.pool, self.replicas, "both"),)
        return (self.prefill, self.prefill_replicas, "prefill"), (self.pool, self.replicas, "decode")

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Return the pools as in a deployment file, with roles and replicas."""
        return tuple(
            pool.model_copy(update={"role": role, "replicas": count} if self.prefill else {"replicas": count})
            for pool, count, role in self.parts
        )

    @property
    def engine(self) -> str:
        """Return a short name of the engine: GPU and parallelism."""
        return _engines(self.pool)

    @property
    def label(self) -> str:
        """Return a one-line label with the settings that distinguish the candidate."""
        if self.prefill is None:
            return f"{self.replicas} x {self.engine_label}"
        text = f"{self.prefill_replicas} x {_engines(self.prefill)} prefill + {self.replicas} x {self.engine} decode"
        return ", ".join([text, *_settings(self.pool, self.router)])

    @property
    def engine_label(self) -> str:
        """Return the label without the number of replicas."""
        return ", ".join([self.engine, *_settings(self.pool, self.router)])


def _engines(pool: Pool) -> str:
    text = f"{pool.gpu} TP{pool.tensor_parallel_size}"
    if pool.pipeline_parallel_size > 1:
        text += f" PP{pool.pipeline_parallel_size}"
    if pool.data_parallel_size > 1:
        text += f" DP{pool.data_parallel_size}"
    return text + " EP" if pool.enable_expert_parallel else text


def _settings(pool: Pool, router: str) -> list[str]:
    parts = [pool.quantization or "checkpoint's weights"]
    if pool.power_cap is not None:
        parts.append(f"cap {cap_text(pool.power_cap)}")
    if pool.kv_cache_dtype != "auto":
        parts.append(f"{pool.kv_cache_dtype} KV")
    if pool.speculator is not None:
        parts.append(f"{pool.speculator} {pool.num_speculative_tokens or ''}".strip())
    parts += [
        f"{name} {value}"
        for name, value in (("seqs", pool.max_num_seqs), ("budget", pool.max_num_batched_tokens))
        if value is not None
    ]
    switches = (("chunked", pool.enable_chunked_prefill), ("prefix cache", pool.enable_prefix_caching))
    parts += [f"{name} {'on' if value else 'off'}" for name, value in switches if value is not None]
    if pool.engine != "vllm":
        parts.append(pool.engine)
    if router != ROUND_ROBIN:
        parts.append(router)
    return parts


SETTINGS = (
    "power_cap", "quantization", "kv_cache_dtype", "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill",
    "enable_prefix_caching", "enable_expert_parallel", "pipeline_parallel_size", "data_parallel_size",
)  # fmt: skip
SHARED_FIELDS = (
    "power_cap", "engine", "quantization", "kv_cache_dtype", "speculator", "num_speculative_tokens", "acceptance",
    "draft",
)  # settings that prefill and decode engines of a pair share  # fmt: skip
DISAGGREGATED_ENGINES = ("vllm", "sglang", "tensorrt-llm")  # that support disaggregated prefill and decode
DRAFTS, DISAGGREGATED_PENALTY, ROUTED = 4, 8, 2  # in `complexity_penalty`; another setting counts 1


def complexity_penalty(pool: Pool, *, disaggregated: bool = False, router: str = ROUND_ROBIN) -> int:
    """Return the number of settings that differ from the engine's defaults; drafts, separate prefill and a router count
    more than 1. Of candidates with equal objectives, the search prefers the one with the smallest number."""
    changed = sum(bool(getattr(pool, name) != Pool.model_fields[name].default) for name in SETTINGS)
    return (
        changed
        + DRAFTS * (pool.speculator is not None)
        + DISAGGREGATED_PENALTY * disaggregated
        + ROUTED * (router != ROUND_ROBIN)
    )


def rounded_context(tokens: int) -> int:
    """Return the context length to configure for requests of up to this many tokens, rounded up to `ROUND_TOKENS`."""
    return -(-tokens // ROUND_TOKENS) * ROUND_TOKENS


QUANTIZATIONS = (None, "fp8", "int4")  # formats for a 16-bit checkpoint
TUNING = ("max_num_batched_tokens", "chunked_prefill", "prefix_caching")  # tuning of prefill


def pools(search: Search, gpu: str, model: ModelSpec) -> Iterator[Pool]:
    """Yield every engine of the search space on one GPU type, first those without drafts. Raises InvalidInput.

    Engines with drafts or with several data-parallel ranks only use the first value of each axis in `TUNING`. Drafts
    and several data-parallel ranks are combined only if the user names the draft methods.
    """
    first = tuple(getattr(search, name)[0] for name in TUNING)
    asked = bool(search.speculators)
    formats = _formats(search, model)
    fixed = search.model_dump(include=set(FIXED_FIELDS), exclude_unset=True)
    without_drafts = {name: value for name, value in fixed.items() if name not in DRAFT_FIELDS}
    for drafts in _drafts(search, model):
        tuned = _without_tuning(search) if drafts else search
        axes: dict[str, Iterable[Any]] = {
            "engine": search.engines,
            "power_cap": search.power_cap,
            "parallelism": _parallelisms(search, has_experts=model.is_moe),
            "quantization": formats,
            "kv_cache_dtype": search.kv_cache_dtypes,
            "max_num_seqs": search.max_num_seqs,
            "max_num_batched_tokens": tuned.max_num_batched_tokens,
            "enable_chunked_prefill": tuned.chunked_prefill,
            "enable_prefix_caching": tuned.prefix_caching,
        }
        for values in itertools.product(*axes.values()):
            settings = {**fixed} if drafts else {**without_drafts}
            settings |= zip(axes, values, strict=True)
            settings |= settings.pop("parallelism")
            several = settings["data_parallel_size"] > 1
            if several and ((drafts and not asked) or values[-len(TUNING) :] != first):
                continue
            settings |= {"gpu": gpu, "max_model_len": search.max_model_len, **drafts}
            yield build(Pool, settings, flags=True)


def _formats(search: Search, model: ModelSpec) -> tuple[str | None, ...]:
    """Return the weight formats to search. If the list contains None (the checkpoint's format), names of this same
    format are removed.

    By default, a 16-bit checkpoint may be quantized; a checkpoint published in fewer bits is served unchanged.
    """
    from capacity.base.errors import CapacityError
    from capacity.model.quantization import scheme_for

    def is_checkpoint_format(name: str | None) -> bool:
        try:
            return name is not None and scheme_for(model, name) == model.checkpoint
        except CapacityError:
            return False

    if not search.quantizations:
        return (None,) if model.checkpoint.quantized else QUANTIZATIONS
    if None not in search.quantizations:
        return search.quantizations
    return tuple(name for name in search.quantizations if not is_checkpoint_format(name))


def _without_tuning(search: Search) -> Search:
    return search.model_copy(update={name: getattr(search, name)[:1] for name in TUNING})


def speculators(search: Search, model: ModelSpec) -> tuple[str | None, ...]:
    """Return the draft methods to search; default: none, the model's MTP layer or EAGLE-3, and a given draft model."""
    given = () if search.draft is None else (DRAFT_MODEL,)
    return search.speculators or (None, "eagle3" if model.mtp is None else "mtp", *given)


def _drafts(search: Search, model: ModelSpec) -> Iterator[Fields]:
    for speculator in speculators(search, model):
        if speculator is None:
            yield {}
            continue
        fields = {"speculator": speculator, "acceptance": search.acceptance}
        if speculator == DRAFT_MODEL:
            fields["draft"] = search.draft
        for count in search.num_speculative_tokens:
            yield {**fields, "num_speculative_tokens": count}


def _parallelisms(search: Search, *, has_experts: bool) -> Iterator[Fields]:
    """Yield parallelism settings; without experts no data-parallel ranks, because they are the same as replicas."""
    names = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel")
    axes = itertools.product(
        search.tensor_parallel_sizes,
        search.pipeline_parallel_sizes,
        search.data_parallel_sizes if has_experts else (1,),
        map(bool, search.expert_parallel) if has_experts else (False,),
    )
    for values in axes:
        tensor_parallel, _, data_parallel, by_experts = values
        if not by_experts or tensor_parallel * data_parallel > 1:  # expert parallelism needs several GPUs
            yield dict(zip(names, values, strict=True))


def pairs(search: Search, gpu: str, model: ModelSpec) -> Iterator[tuple[Pool, Pool]]:
    """Yield every pair of a prefill and a decode engine on one GPU type, with the same formats.

    Each engine has its own parallelism. Axes in `TUNING` are at their first value, and only decode engines vary in
    `max_num_seqs`. Both engines use the same drafts because the drafter needs its KV on both. Drafts and data-parallel
    ranks are included only if the user names them (`disaggregated_axes`), because each multiplies the number of pairs.
    """
    drafts, ranks = disaggregated_axes(search, model)
    narrowed = _without_tuning(search)
    if not drafts:
        narrowed = narrowed.model_copy(update={"speculators": (None,)})
    if not ranks:
        narrowed = narrowed.model_copy(update={"data_parallel_sizes": (1,)})
    decode = list(pools(narrowed, gpu, model))
    once = narrowed.model_copy(update={"max_num_seqs": search.max_num_seqs[:1]})
    for before in pools(once, gpu, model):
        if find_engine(before.engine).name not in DISAGGREGATED_ENGINES:
            continue
        for after in decode:
            if all(getattr(before, name) == getattr(after, name) for name in SHARED_FIELDS):
                yield before, after


def disaggregated_axes(search: Search, model: ModelSpec) -> tuple[bool, bool]:
    """Return whether disaggregated deployments are searched with drafts, and whether with data-parallel ranks."""
    asked = model.is_moe and "data_parallel_sizes" in search.model_fields_set
    return any(search.speculators), asked and search.data_parallel_sizes != (1,)
