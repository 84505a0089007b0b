"""A pasted `vllm serve ...` as a model and a pool; what has no meaning here is said, not dropped silently."""

from __future__ import annotations

import difflib
import json
import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from capacity.base.errors import InvalidInput
from capacity.base.keywords import flags_of
from capacity.deployment import vllm_flags
from capacity.deployment.launched import (
    OPTION,
    LaunchCommand,
    NoServer,
    is_flag,
    options_beside,
    until_operator,
    words_of,
)
from capacity.deployment.pool import Pool
from capacity.deployment.vllm_config import NOT_MODELLED, split_config

SPELLINGS = {
    alias.lstrip("-").replace("-", "_"): name
    for name, declared in Pool.model_fields.items()
    for alias in flags_of(declared)
}
SWITCHES = {
    name
    for name, declared in Pool.model_fields.items()
    if bool in (declared.annotation, *get_args(declared.annotation))
}
LORA_FIELDS = {"max_loras", "max_cpu_loras", "max_lora_rank"}
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?)")


def read_vllm_command(text: str, *, folder: Path | None = None) -> LaunchCommand:
    """`vllm serve MODEL --flag ...`, `python -m vllm.entrypoints.openai.api_server --model MODEL ...`, or `docker run`.

    Line continuations, lines of comment, environment settings before the command, underscores and `--flag=value` are
    understood, and the YAML file of `--config` in `folder`, whose flags those of the line overrule.
    Raises InvalidInput where it is neither, or names no model.
    """
    arguments, engine = _after_program(words_of(text))
    options = options_beside(_config_file(arguments), folder, "--config of vllm serve")
    model = options.pop("model", options.pop("model_tag", ""))
    read = _Read(fields={} if engine is None else {"engine": engine})
    _read_all(read, deque(f"--{key}={value}" for key, value in options.items()))
    _read_all(read, arguments)
    read.model = read.model or model
    return read.command()


def _config_file(arguments: deque[str]) -> str | None:
    """The file of `--config`, which is taken out."""
    for place, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag == "--config":
            del arguments[place]
            if equals or place == len(arguments):
                return value or None
            value = arguments[place]
            del arguments[place]
            return value
    return None


def _read_all(read: _Read, arguments: deque[str]) -> None:
    """Reads flags and words, the later ones over the earlier."""
    while arguments:
        word = arguments.popleft()
        flag, equals, value = word.partition("=")
        spelling = flag.lstrip("-").replace("-", "_")
        name = SPELLINGS.get(spelling, spelling)
        switch = name.removeprefix("no_")
        if not word.startswith("-"):
            read.word(word)
        elif switch in SWITCHES | vllm_flags.SWITCHES:
            if not equals and arguments and arguments[0].lower() in ("true", "false"):
                value = arguments.popleft()
            read.switch(word, switch, on=name == switch and value.lower() not in ("false", "0"))
        else:
            if not equals and arguments and not is_flag(arguments[0]):
                value = arguments.popleft()
            read.value(flag, name, value)


@dataclass(slots=True)
class _Read:
    """What was read so far."""

    fields: dict[str, str | bool]
    model: str = ""
    lora: bool = False
    ignored: list[str] = field(default_factory=list)
    not_modelled: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def word(self, word: str) -> None:
        """A word that is no flag: the model, the first time."""
        if self.model:
            self.unknown.append(word)
        self.model = self.model or word

    def switch(self, word: str, name: str, *, on: bool) -> None:
        """A flag without a value."""
        self.lora |= name == "enable_lora" and on
        if name in SWITCHES:
            self.fields[name] = on
        else:
            self.other(name, word)

    def value(self, flag: str, name: str, value: str) -> None:
        """A flag with its value."""
        if name == "model":
            self.model = value
        elif name in NOT_MODELLED:
            self.json_option(flag, name, value)
        elif name in Pool.model_fields and name not in ("gpu", "engine"):
            self.fields[name] = _FORCED.get(value, value) if name == "quantization" else value
        else:
            self.other(name, f"{flag} {value}".strip())

    def json_option(self, flag: str, name: str, value: str) -> None:
        """A JSON option: the keys that a pool reads, and the others with what is taken instead."""
        try:
            options, others = split_config(name, value)
        except ValueError as error:
            raise InvalidInput(f"{flag} {value}: {error}") from None
        self.not_modelled += [f"{flag} {key} ({reason})" for key, reason in others.items()]
        if name in Pool.model_fields:
            self.fields[name] = json.dumps(options)
        else:
            self.fields |= {key: str(option) for key, option in options.items()}

    def other(self, name: str, text: str) -> None:
        """A flag that no field stands for, where it belongs."""
        name = name.partition(".")[0]  # --compilation-config.level 3
        if name in vllm_flags.NOT_MODELLED:
            self.not_modelled.append(f"{text} ({vllm_flags.NOT_MODELLED[name]})")
        elif name in vllm_flags.IS_HARMLESS:
            self.ignored.append(text)
        else:
            self.unknown.append(text + _near(name))

    def command(self) -> LaunchCommand:
        """All of it. Raises InvalidInput without a model."""
        if not self.model:
            raise InvalidInput(f"{OPTION} names no model: paste the whole `vllm serve MODEL ...`")
        if not self.lora:  # these are of no effect without it
            for name in sorted(LORA_FIELDS.intersection(self.fields)):
                flag = f"--{name.replace('_', '-')} {self.fields.pop(name)}"
                self.not_modelled.append(f"{flag} (--enable-lora is not on)")
        return LaunchCommand(
            model=self.model,
            fields=self.fields,
            ignored=tuple(self.ignored),
            not_modelled=tuple(self.not_modelled),
            unknown=tuple(self.unknown),
        )


# vLLM takes Marlin by itself where it can; these names forbid it.
_FORCED = {"awq": "awq-no-marlin", "gptq": "gptq-no-marlin"}


def _after_program(words: list[str]) -> tuple[deque[str], str | None]:
    """The arguments, and the engine that an image's tag names; an image may be told which program to run."""
    engine, start = None, None
    for place, word in enumerate(words):
        image, _, tag = word.rpartition("/")[2].partition(":")
        if image == "vllm-openai":
            engine, start = _engine_of(tag), place + 1
        elif word.startswith("vllm.entrypoints."):
            start = place + 1
        elif word.endswith("vllm") and words[place + 1 : place + 2] == ["serve"]:
            start = place + 2
        else:
            continue
        if image != "vllm-openai":
            break
    if start is None:
        raise NoServer(f"{OPTION} must hold `vllm serve MODEL ...`")
    return deque(until_operator(words[start:])), engine


def _engine_of(tag: str) -> str | None:
    """The release that a tag names, as v0.11.0 or v0.11.0-cu128; None for one that moves, such as latest."""
    version = _VERSION.match(tag)
    return None if version is None else f"vllm@{version[1].removesuffix('.0')}"


def _near(name: str) -> str:
    """The flag that an unknown one is a slip of the pen from, if any."""
    close = difflib.get_close_matches(name, Pool.model_fields, n=1, cutoff=0.9)
    return f" (did you mean --{close[0].replace('_', '-')}?)" if close else ""
