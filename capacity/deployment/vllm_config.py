"""Convert JSON options of `vllm serve` to `Pool` fields. Functions raise a one-line ValueError for invalid options."""

import json
from collections.abc import Callable

from capacity.base.errors import InvalidInput
from capacity.deployment.drafts import METHODS, drafting_fields

SPECULATIVE_KEYS = (
    "method",
    "model",
    "num_speculative_tokens",
    "prompt_lookup_min",
    "prompt_lookup_max",
    "draft_tensor_parallel_size",
    "synthetic_acceptance_length",
)
NOT_MODELLED = {  # JSON keys that are not modelled, with the assumption used instead
    "speculative_config": {
        "attention_backend": "the backend of the fitted kernels is assumed",
        "rejection_sample_method": "lossless verification of drafts is assumed",
        "draft_sample_method": "the published acceptance is assumed, unless --acceptance is set",
        "disable_padded_drafter_batch": "the engine's default padding of draft batches is assumed",
    },
    "attention_config": {"": "the backend of the fitted kernels is assumed"},
}
COUNTS = ("num_speculative_tokens", "draft_tensor_parallel_size")
ROLES = {"kv_producer": "prefill", "kv_consumer": "decode", "kv_both": "both"}
OTHER_OFFLOADING = ("lmcache", "sharedstorage")
GIB = 2**30

JsonObject = dict[str, object]


def parse_speculative_config(config: str | JsonObject) -> JsonObject:
    """Return the `Pool` fields that `--speculative-config` sets: drafting method, draft model and counts."""
    options = _parse_object(config)
    if not options:
        return {}
    if unknown := [key for key in options if key not in SPECULATIVE_KEYS]:
        raise ValueError(f"{unknown[0]!r} is not modelled; use one of {', '.join(SPECULATIVE_KEYS)}")
    method, checkpoint = options.get("method"), options.get("model")
    if checkpoint is not None and not isinstance(checkpoint, str):
        raise ValueError(f"model is {checkpoint!r}: must be the name of a draft checkpoint")
    known_method = isinstance(method, str) and method in METHODS
    if not known_method and (method is not None or checkpoint is None):
        known = ", ".join(METHODS)
        raise ValueError(
            f"method {method!r} is not one of {known}; for others, use --speculator and --acceptance"
        )
    counts = {name: options[name] for name in COUNTS if options.get(name) is not None}
    if (length := options.get("synthetic_acceptance_length")) is not None:
        counts["acceptance"] = f"length:{length}"
    return drafting_fields(None if method is None else METHODS[str(method)], checkpoint) | counts


def split_config(name: str, text: str) -> tuple[JsonObject, dict[str, str]]:
    """Split a JSON option of a launch command into supported keys, and other keys with the assumption used instead.

    `name`: name of the option, without dashes. Raises ValueError if the text is not a JSON object.
    """
    options, reasons = _parse_object(text), NOT_MODELLED[name]
    others = {
        key: reasons.get(key, reasons.get("", ""))
        for key in options
        if key in reasons or ("" in reasons and key != "indexer_kv_dtype")
    }
    return {key: value for key, value in options.items() if key not in others}, others


def parse_kv_transfer_config(config: str | JsonObject) -> JsonObject:
    """Return the `Pool` fields that `--kv-transfer-config` sets: the `role` of an engine, or memory for KV offloading.

    The result is empty if it sets neither. Raises ValueError for an unknown role or an unsupported connector.
    """
    options = _parse_object(config)
    if not options:
        return {}
    connector = str(options.get("kv_connector", ""))
    if connector == "OffloadingConnector":
        extra = options.get("kv_connector_extra_config")
        return _offloading_size(extra.get("cpu_bytes_to_use") if isinstance(extra, dict) else None)
    if connector.lower().startswith(OTHER_OFFLOADING):
        raise ValueError(
            f"connector {connector} offloads KV and does not transfer it: remove it, and use --kv-offloading-size and "
            "--kv-offloading-backend (lmcache, native)"
        )
    role = options.get("kv_role")
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"kv_role {role!r} is not one of {', '.join(ROLES)}")
    return {} if role == "kv_both" else {"role": ROLES[role]}


SAME_TIME_PENALTY = 1.1  # any value but 1 takes the same time


def parse_generation_config(config: str | JsonObject) -> JsonObject:
    """Return the sampling parameters that change step times. Raises ValueError if the text is not a JSON object.

    Presence and frequency penalties become a repetition penalty, which takes the same time.
    """
    options = _parse_object(config)
    fields: JsonObject = {
        name: options[name] for name in ("top_p", "top_k", "repetition_penalty") if name in options
    }
    if fields.get("top_k") == -1:  # off, as 0
        fields["top_k"] = 0
    if options.get("presence_penalty") or options.get("frequency_penalty"):
        fields.setdefault("repetition_penalty", SAME_TIME_PENALTY)
    return fields


def _offloading_size(size: object) -> JsonObject:
    """Return the `Pool` fields for KV offloading with vLLM's OffloadingConnector; `size`: bytes of host memory."""
    if isinstance(size, bool) or not isinstance(size, int | float) or not size >= 0:
        raise ValueError(
            f"cpu_bytes_to_use of OffloadingConnector is {size!r}: must be a number of bytes of host memory; or use "
            "--kv-offloading-size"
        )
    return {"kv_offloading_size": size / GIB, "kv_offloading_backend": "native"}


def _parse_object(config: str | JsonObject) -> JsonObject:
    if isinstance(config, dict):
        return config
    try:
        options = json.loads(config) if config.strip() else {}
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise ValueError("it must be a JSON object")
    return options


JSON_OPTIONS: dict[str, Callable[[str | JsonObject], JsonObject]] = {
    "speculative_config": parse_speculative_config,
    "kv_transfer_config": parse_kv_transfer_config,
    "override_generation_config": parse_generation_config,
}


def set_lora_slots(fields: JsonObject) -> JsonObject:
    """Return the fields with `enable_lora` replaced by `max_loras`, the number of slots (vLLM's default: 1)."""
    if fields.get("enable_lora") is not True:
        return fields
    plain = {name: value for name, value in fields.items() if name != "enable_lora"}
    return plain if plain.get("max_loras") is not None else plain | {"max_loras": 1}


def replace_json_options(fields: JsonObject) -> JsonObject:
    """Replace vLLM's JSON options by `Pool` fields. Raises InvalidInput if an option contradicts a field."""
    plain = dict(fields)
    for name, read in JSON_OPTIONS.items():
        config = plain.get(name)
        if not isinstance(config, str | dict):
            continue
        try:
            meant = read(config)
        except ValueError:
            continue
        del plain[name]
        for field, value in meant.items():
            if field in plain and plain[field] != value:
                raise InvalidInput(
                    f"{name} sets {field} to {value}, but {field} is {plain[field]}: use one of them"
                )
        plain |= meant
    return plain
