"""A pasted `vllm serve ...` as a model and a pool; what has no meaning here is said, not dropped silently."""

from __future__ import annotations

import difflib
import shlex
from dataclasses import dataclass
from typing import Any

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, build

SHORT = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dcp": "decode_context_parallel_size",
    "dp": "data_parallel_size",
    "ep": "enable_expert_parallel",
    "q": "quantization",
    "device_memory_utilization": "gpu_memory_utilization",
}
SWITCHES = {
    "enable_expert_parallel",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "async_scheduling",
    "enforce_eager",
}
OTHER_SWITCHES = {
    "trust_remote_code", "disable_log_requests", "disable_log_stats", "enable_auto_tool_choice", "enable_lora",
    "enable_log_requests", "disable_custom_all_reduce", "enable_eplb", "disable_uvicorn_access_log", "headless",
    "enable_sleep_mode", "disable_hybrid_kv_cache_manager", "disable_frontend_multiprocessing", "enable_dbo",
    "enable_server_load_tracking", "enable_prompt_tokens_details", "enable_force_include_usage", "skip_tokenizer_init",
}  # fmt: skip
SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
COUNTS = {"max_model_len", "max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmCommand:
    """What a pasted command says: the model, fields of `Pool` (without a GPU), and flags that mean nothing here."""

    model: str
    fields: dict[str, Any]
    ignored: tuple[str, ...]

    def pool(self, gpu: str) -> Pool:
        """The pool on `gpu`. Raises InvalidInput for a value that cannot be."""
        found: Pool = build(Pool, {"gpu": gpu, **self.fields}, flags=True)
        return found


def read_vllm_command(text: str) -> VllmCommand:
    """`vllm serve MODEL --flag ...`, `python -m vllm.entrypoints.openai.api_server --model MODEL ...`, or `docker run`.

    Line continuations, lines of comment, environment settings before the command, underscores and `--flag=value` are
    understood.
    Raises InvalidInput where it is neither, or names no model.
    """
    lines = [line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#")]
    try:
        words = shlex.split("".join(lines).replace("\\\r\n", " ").replace("\\\n", " "))
    except ValueError as error:
        raise InvalidInput(f"--from-vllm cannot be split into words: {str(error).lower()}") from None
    arguments = _after_program(words)
    model: str | None = None
    fields: dict[str, Any] = {}
    ignored: list[str] = []
    position = 0
    while position < len(arguments):
        word = arguments[position]
        position += 1
        if not word.startswith("-"):
            if model is None:
                model = word
            else:
                ignored.append(word)
            continue
        flag, equals, value = word.partition("=")
        name = flag.lstrip("-").replace("-", "_")
        name = SHORT.get(name, name)
        negated = name.startswith("no_") and name[3:] in SWITCHES | OTHER_SWITCHES
        name = name[3:] if negated else name
        if name in SWITCHES | OTHER_SWITCHES:
            given = not negated and value.lower() not in ("false", "0")
            if not equals and position < len(arguments) and arguments[position].lower() in ("true", "false"):
                given = arguments[position].lower() == "true"
                position += 1
            if name in SWITCHES:
                fields[name] = given
            else:
                ignored.append(word)
            continue
        if not equals:
            follows = position < len(arguments) and not _is_flag(arguments[position])
            value = arguments[position] if follows else ""
            position += follows
        if name == "model":
            model = value
        elif name in Pool.model_fields and name != "gpu":
            fields[name] = _count(value) if name in COUNTS else value
        elif not _is_default(name, value):
            ignored.append(f"{flag} {value}".strip() + _near(name))
    if not model:
        raise InvalidInput("--from-vllm names no model: paste the whole `vllm serve MODEL ...`")
    return VllmCommand(model=model, fields=fields, ignored=tuple(ignored))


def _after_program(words: list[str]) -> list[str]:
    for place in range(len(words)):
        if words[place].endswith("vllm") and words[place + 1 : place + 2] == ["serve"]:
            return words[place + 2 :]
        image = words[place].rpartition("/")[2].partition(":")[0]
        if words[place].startswith("vllm.entrypoints.") or image == "vllm-openai":
            return words[place + 1 :]
    raise InvalidInput("--from-vllm must hold `vllm serve MODEL ...`")


def _near(name: str) -> str:
    """The flag that an unknown one is a slip of the pen from, if any."""
    close = difflib.get_close_matches(name, Pool.model_fields, n=1, cutoff=0.9)
    return f" (did you mean --{close[0].replace('_', '-')}?)" if close else ""


def _is_flag(word: str) -> bool:
    return word.startswith("--") or (len(word) > 1 and word[0] == "-" and word[1].isalpha())


def _is_default(name: str, value: str) -> bool:
    """Flags that ask for what is modelled anyway."""
    return (name, value) in {
        ("load_format", "auto"),
        ("seed", "0"),
    }


def _count(value: str) -> str | int:
    """vLLM reads 1k as 1000, 1K as 1024 and 25.6k as 25600."""
    if value[-1:] not in SUFFIXES:
        return value
    try:
        return round(float(value[:-1]) * SUFFIXES[value[-1]])
    except (ValueError, OverflowError):
        return value
