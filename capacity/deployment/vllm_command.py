"""A pasted `vllm serve ...` as a model and a pool; what has no meaning here is said, not dropped silently."""

from __future__ import annotations

import difflib
import shlex
from collections import deque
from dataclasses import dataclass
from typing import get_args

from capacity.base.errors import InvalidInput
from capacity.base.keywords import flags_of
from capacity.deployment.building import build
from capacity.deployment.pool import Pool

SPELLINGS = {
    alias.lstrip("-").replace("-", "_"): name
    for name, field in Pool.model_fields.items()
    for alias in flags_of(field)
}
SWITCHES = {
    name
    for name, field in Pool.model_fields.items()
    if bool in (field.annotation, *get_args(field.annotation))
}
OTHER_SWITCHES = {
    "trust_remote_code", "disable_log_requests", "disable_log_stats", "enable_auto_tool_choice", "enable_lora",
    "enable_log_requests", "disable_custom_all_reduce", "enable_eplb", "disable_uvicorn_access_log", "headless",
    "enable_sleep_mode", "disable_hybrid_kv_cache_manager", "disable_frontend_multiprocessing", "enable_dbo",
    "enable_server_load_tracking", "enable_prompt_tokens_details", "enable_force_include_usage", "skip_tokenizer_init",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmCommand:
    """What a pasted command says: the model, fields of `Pool` (without a GPU), and flags that mean nothing here."""

    model: str
    fields: dict[str, str | bool]
    ignored: tuple[str, ...]

    def pool(self, gpu: str) -> Pool:
        """The pool on `gpu`. Raises InvalidInput for a value that cannot be."""
        return build(Pool, {"gpu": gpu, **self.fields}, flags=True)


def read_vllm_command(text: str) -> VllmCommand:
    """`vllm serve MODEL --flag ...`, `python -m vllm.entrypoints.openai.api_server --model MODEL ...`, or `docker run`.

    Line continuations, lines of comment, environment settings before the command, underscores and `--flag=value` are
    understood.
    Raises InvalidInput where it is neither, or names no model.
    """
    arguments = deque(_after_program(_words(text)))
    model = ""
    fields: dict[str, str | bool] = {}
    ignored: list[str] = []
    while arguments:
        word = arguments.popleft()
        flag, equals, value = word.partition("=")
        spelling = flag.lstrip("-").replace("-", "_")
        name = SPELLINGS.get(spelling, spelling)
        switch = name.removeprefix("no_")
        if not word.startswith("-"):
            if model:
                ignored.append(word)
            model = model or word
        elif switch in SWITCHES | OTHER_SWITCHES:
            if not equals and arguments and arguments[0].lower() in ("true", "false"):
                value = arguments.popleft()
            if switch in SWITCHES:
                fields[switch] = name == switch and value.lower() not in ("false", "0")
            else:
                ignored.append(word)
        else:
            if not equals and arguments and not _is_flag(arguments[0]):
                value = arguments.popleft()
            if name == "model":
                model = value
            elif name in Pool.model_fields and name != "gpu":
                fields[name] = _FORCED.get(value, value) if name == "quantization" else value
            elif not _is_default(name, value):
                ignored.append(f"{flag} {value}".strip() + _near(name))
    if not model:
        raise InvalidInput("--from-vllm names no model: paste the whole `vllm serve MODEL ...`")
    return VllmCommand(model=model, fields=fields, ignored=tuple(ignored))


# vLLM takes Marlin by itself where it can; these names forbid it.
_FORCED = {"awq": "awq-no-marlin", "gptq": "gptq-no-marlin"}


def _words(text: str) -> list[str]:
    lines = [line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#")]
    try:
        return shlex.split("".join(lines).replace("\\\r\n", " ").replace("\\\n", " "))
    except ValueError as error:
        raise InvalidInput(f"--from-vllm cannot be split into words: {str(error).lower()}") from None


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
