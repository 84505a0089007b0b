"""The model and deployment of a measured server: the user's settings, completed from its log and the result files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from capacity.base.errors import CapacityError, InvalidInput
from capacity.deployment import Pool, build
from capacity.deployment.drafts import DRAFT_FIELDS
from capacity.deployment.engines import find_engine
from capacity.model import ModelSpec, load_model
from capacity.model.quantization import bits_per_weight, find_kv_cache_format, scheme_for
from capacity.pool.resolve import ResolvedPool, resolve
from capacity_validate.benchmark_results import MeasuredRun
from capacity_validate.evidence import Evidence
from capacity_validate.server_log import TABLES, ServerLog

SAME_SIZE = 0.02  # relative parameter count; vocabularies of fine-tuned models differ by this much
SAME_BITS = 0.15  # relative bits per weight; different formats differ by more, variants of one by less
SAME_WEIGHTS = (
    0.25  # relative bytes per GPU; different formats differ by more, vision towers and drafts by less
)
SIXTEEN_BIT = {"half": "float16", "float": "float32"}
NO_MARLIN = {"awq": "awq-no-marlin", "gptq": "gptq-no-marlin"}  # vLLM prints awq_marlin if it uses Marlin


def served_model(
    model: str | None,
    runs: Sequence[MeasuredRun],
    log: ServerLog | None,
    *,
    quantization: object = None,
    download: bool = False,
) -> str:
    """Return the name of the served model: the user's, or else the one in the log or in a result file.

    If the user gave no `quantization` and a file names a quantized version of the user's model, return that version.
    Raises InvalidInput if two sources name different models, or if none names one.
    """
    chosen, origin, spec = model, "--model", None if model is None else load_model(model, download=download)
    for path, names in _files_with_model(runs, log):
        found = _first_known_model(names, download=download)
        if found is None:
            chosen = chosen or names[0]
            continue
        name, other = found
        if spec is None:
            chosen, origin, spec = name, path, other
        elif not _same_model(spec, other):
            raise InvalidInput(
                f"{path} names model {name}, but {origin} names {chosen}: give {name} as the model, or leave "
                "that file out"
            )
        elif quantization is None and spec.checkpoint.method == "none" != other.checkpoint.method:
            chosen, origin, spec = name, path, other
    if chosen is None:
        raise InvalidInput("no result file names its model: give --model")
    return chosen


def _files_with_model(
    runs: Sequence[MeasuredRun], log: ServerLog | None
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the path of each file that names a model, and the names in it."""
    if log is not None and log.launch.models:
        yield log.path, log.launch.models
    for run in runs:
        if run.model:
            yield run.path, (run.model,)


def _first_known_model(names: Sequence[str], *, download: bool) -> tuple[str, ModelSpec] | None:
    for name in names:
        try:
            return name, load_model(name, download=download)
        except CapacityError:  # a served name, or a path on the server
            continue
    return None


def _same_model(one: ModelSpec, other: ModelSpec) -> bool:
    apart = abs(one.total_params - other.total_params) / one.total_params
    return (one.hidden_size, one.num_layers) == (other.hidden_size, other.num_layers) and apart < SAME_SIZE


def resolve_server(
    evidence: Evidence,
    model: str | None,
    fields: dict[str, Any],
    log: ServerLog | None,
    *,
    profiles: str | Path | None,
    download: bool,
) -> tuple[ResolvedPool, ResolvedPool]:
    """Return the deployment completed from files and log, twice: with an estimated and with the logged KV cache size.

    Raises InvalidInput if the user's settings, the files and the log contradict each other.
    """
    if (engine := evidence.engine(fields.get("engine"))) is not None:
        fields = {**fields, "engine": engine}
    model = served_model(
        model, evidence.runs, log, quantization=fields.get("quantization"), download=download
    )
    if "gpu" not in fields:
        raise InvalidInput("no GPU: result files do not name it; add --gpu NAME (`capacity gpus` lists them)")
    if log is not None:
        fields = _complete_fields(model, fields, log, profiles=profiles, download=download)
    planned = resolve(model, build(Pool, fields), profiles=profiles, download=download)
    if log is None:
        planned.memory.require_fit()
        return planned, planned
    printed = log.kv_fields(planned.memory.kv_block_tokens) | fields
    settled = resolve(model, build(Pool, printed), profiles=profiles, download=download)
    settled.memory.require_fit()
    expected = planned.memory.weights_bytes
    if log.weights_bytes is not None and abs(expected / log.weights_bytes - 1) > SAME_WEIGHTS:
        raise InvalidInput(
            f"{log.path} states {log.weights_bytes / 2**30:.2f} GiB of weights per GPU, but "
            f"{planned.model.name} in {planned.scheme.name} takes {expected / 2**30:.2f} GiB: give --quantization, "
            "--tensor-parallel-size and --model as the server was started"
        )
    return planned, settled


def release_notes(resolved: ResolvedPool) -> tuple[str, ...]:
    """Return a note if neither the user nor a file states the engine's release."""
    if "@" in resolved.pool.engine:
        return ()
    label, name = resolved.engine.label, resolved.engine.name
    return (f"{label} is assumed, because the release is not stated: give --engine {name}@VERSION",)


def _complete_fields(
    model: str, fields: dict[str, Any], log: ServerLog, *, profiles: str | Path | None, download: bool
) -> dict[str, Any]:
    """Return the user's fields completed from the log. Raises InvalidInput if the two contradict each other."""
    spec = load_model(model, download=download)
    settings = log.settings
    drafts = {"speculative_config", *DRAFT_FIELDS}
    if drafts & fields.keys():
        settings = {name: value for name, value in settings.items() if name not in drafts}
    settings |= _engine(fields, settings, log)
    fields = {name: value for name, value in fields.items() if name != "engine"}
    settings |= _quantization(spec, fields, settings, log)
    given, printed = (build(Pool, {"gpu": "-"} | part) for part in (fields, settings))
    shared = given.model_fields_set & printed.model_fields_set - {"gpu", "quantization", "max_model_len"}
    if "max_model_len" in settings and isinstance(given.max_model_len, int):
        shared.add("max_model_len")
    for name in sorted(shared):
        own, logged = (getattr(pool, name) for pool in (given, printed))
        if name == "dtype":
            own, logged = (SIXTEEN_BIT.get(str(value), value) for value in (own, logged))
        if own != logged and (
            name != "kv_cache_dtype" or _kv_formats_differ(spec, own, logged, fields, profiles)
        ):
            raise _contradiction(name, own, logged, log)
    return {name: value for name, value in settings.items() if value is not None} | fields


def _engine(fields: dict[str, Any], settings: dict[str, Any], log: ServerLog) -> dict[str, Any]:
    own, logged = fields.get("engine"), settings.get("engine")
    if own is None or logged is None:
        return {} if own is None else {"engine": own}
    asked, printed = find_engine(str(own)), find_engine(str(logged))
    versions = [engine.version.partition("-")[0] for engine in (asked, printed)]
    both = "@" in str(own) and "@" in str(logged)
    if asked.name != printed.name or (both and versions[0] != versions[1]):
        raise _contradiction("engine", own, logged, log)
    return {"engine": own if "@" in str(own) else logged}


def _quantization(
    spec: ModelSpec, fields: dict[str, Any], settings: dict[str, Any], log: ServerLog
) -> dict[str, Any]:
    """Return `quantization` with this package's name of the logged format; empty if the log does not state it."""
    if "quantization" not in settings:
        return {}
    word = settings["quantization"]
    stored = spec.checkpoint.method != "none"
    printed = str(word).lower() if word is not None else spec.dtype if stored else None
    own = fields.get("quantization")
    if own is not None:
        logged = spec.dtype if printed is None else printed
        if logged not in TABLES["quantization_methods"]:
            ours, theirs = (bits_per_weight(spec, scheme_for(spec, name)) for name in (str(own), logged))
            if abs(ours / theirs - 1) > SAME_BITS:
                raise _contradiction("quantization", own, word, log)
        return {"quantization": own}
    if printed is None or (stored and word is not None):
        return {"quantization": None}
    try:
        scheme_for(spec, printed)
    except InvalidInput:
        raise InvalidInput(
            f"{log.path} states quantization {word}, which is not a format of {spec.name}: give --quantization "
            "(fp8, int4-g128, ...), or the quantized model as --model"
        ) from None
    return {"quantization": NO_MARLIN.get(printed, printed)}


def _kv_formats_differ(
    spec: ModelSpec, own: object, logged: object, fields: dict[str, Any], profiles: str | Path | None
) -> bool:
    """Return whether the user's and the logged KV cache dtype mean different formats for this model."""
    names = []
    for dtype in (own, logged):
        pool = resolve(spec, build(Pool, {**fields, "kv_cache_dtype": dtype}), profiles=profiles)
        names.append(find_kv_cache_format(pool.kv_cache_dtype, model_dtype=spec.dtype).name)
    return names[0] != names[1]


def _contradiction(name: str, own: object, logged: object, log: ServerLog) -> InvalidInput:
    flag = f"--{name.replace('_', '-')}"
    return InvalidInput(
        f"{flag} is {own}, but {log.path} states {logged}: leave {flag} out, or give the log of that server"
    )
