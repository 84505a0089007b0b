"""Launch commands as words and flags, for the modules that read and write these commands."""

import json
import re
import shlex
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from capacity.base.errors import InvalidInput
from capacity.base.external_files import is_inside, outside_path, parse_yaml, read_text
from capacity.deployment.building import build
from capacity.deployment.pool import Pool

OPTION = "--from-launch"
PORT = 8000
PROXY_PORT = 8080
COMMAND_WIDTH = 96  # characters of a line of a wrapped command
MAX_COMMAND = 131_072  # characters of one argument in Linux (MAX_ARG_STRLEN)
_OPERATOR = re.compile(r"\||\|\||&|&&|;|(?:\d|&)?>{1,2}.*|<.*")

Fields = dict[str, object]


# settings that affect interval widths; without the flag, the engine's default applies
LAUNCH_DEFAULTS: Mapping[str, object] = {
    "max_num_batched_tokens": None,
    "max_num_seqs": None,
    "kv_cache_dtype": "auto",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch command as words, with notes on settings that it cannot express and the files that it reads."""

    words: tuple[str, ...]
    notes: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """Return the command quoted for a shell, with one flag per line."""
        lines: list[list[str]] = [[]]
        for word in self.words:
            if word.startswith("--") and lines[-1]:
                lines.append([])
            lines[-1].append(shlex.quote(word))
        return " \\\n    ".join(" ".join(line) for line in lines)


def flag_words(values: Sequence[tuple[str, object]]) -> list[str]:
    """Return `--flag value` for each pair; True gives the flag without a value, None and False give nothing."""
    words: list[str] = []
    for flag, value in values:
        if value is None or value is False:
            continue
        words += [flag] if value is True else [flag, str(value)]
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """Content of a pasted command: the model, the `Pool` fields except the GPU, and the flags that set no field.

    `ignored`: flags that do not affect an answer. `not_modelled`: flags that would affect it, each with the assumption
    that replaces it. `unknown`: flags that the engine does not have. `gpu`: GPU named in a manifest.
    """

    model: str
    fields: Mapping[str, object]
    ignored: tuple[str, ...]
    not_modelled: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    gpu: str | None = None

    def pool(self, gpu: str) -> Pool:
        """Return the pool of the command on GPUs of type `gpu`. Raises InvalidInput for an invalid value."""
        return build(Pool, {"gpu": gpu, **LAUNCH_DEFAULTS, **self.fields}, flags=True)


def split_command(text: str) -> list[str]:
    """Split a command into words as a shell does, without comment lines; shell operators become separate words.

    Raises InvalidInput if a quote is not closed or the text is too long.
    """
    if len(text) > MAX_COMMAND:
        raise InvalidInput(
            f"{OPTION} contains a command of {len(text):,} characters; the limit is {MAX_COMMAND:,}: remove the rest"
        )
    lines = [line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#")]
    try:
        reader = shlex.shlex(
            "".join(lines).replace("\\\r\n", " ").replace("\\\n", " "), posix=True, punctuation_chars=";&|"
        )
        reader.whitespace_split, reader.commenters = True, ""
        return list(reader)
    except ValueError as error:
        raise InvalidInput(f"{OPTION} cannot be split into words: {str(error).lower()}") from None


def words_before_operator(words: list[str]) -> list[str]:
    """Return the words before the first shell operator: a redirection, a pipe or another command."""
    ends = (place for place, word in enumerate(words) if _OPERATOR.fullmatch(word))
    return words[: next(ends, len(words))]


def is_flag(word: str) -> bool:
    """Return whether a word of a command is a flag; a negative number such as -1 is not a flag."""
    return word.startswith("--") or (len(word) > 1 and word[0] == "-" and word[1].isalpha())


class NoServerError(InvalidInput):
    """Error for a line that does not launch a server of a known engine."""


class Flags:
    """Flags of a command. A reader removes each flag that it understands, so that the remaining ones can be reported.

    Names are as returned by `flag_name`. `switches`: flags without a value; `several`: flags with more than one value;
    `aliases` maps additional spellings to names. If a flag is repeated, the last value applies.
    """

    def __init__(
        self,
        words: Collection[str],
        switches: Collection[str],
        *,
        several: Collection[str] = (),
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.words: list[str] = []  # words that are not flags
        self._values: dict[str, str] = {}
        self._spelled: dict[str, str] = {}
        arguments = deque(words)
        while arguments:
            word = arguments.popleft()
            if not is_flag(word):
                self.words.append(word)
                continue
            flag, equals, value = word.partition("=")
            name = flag_name(flag)
            name = aliases.get(name, name)
            positive = name.removeprefix("no_")
            if name in switches or positive in switches:
                if not equals and arguments and arguments[0].lower() in ("true", "false"):
                    value = arguments.popleft()
                on = (value or "true") if name in switches else "false"
                self._values[name if name in switches else positive] = on
                self._spelled[name if name in switches else positive] = word
                continue
            if not equals and arguments and not is_flag(arguments[0]):
                value = arguments.popleft()
                while name in several and arguments and not is_flag(arguments[0]):
                    value = f"{value} {arguments.popleft()}"
            self._values[name] = value
            self._spelled[name] = f"{flag} {value}".strip()

    def take(self, name: str, *, known: Collection[str] | None = None) -> str | None:
        """Remove a flag and return its value (empty: no value); None if absent or if the value is not in `known`."""
        if known is not None and self._values.get(name) not in known:
            return None
        return self._values.pop(name, None)

    def remaining_flags(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the original spelling of each remaining flag."""
        for name in self._values:
            yield name, self._spelled[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A parsed command: its flags, environment variables, folder, and the options in its YAML file."""

    flags: Flags
    environment: Mapping[str, str]
    folder: Path | None
    options: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # differences between the command and the answer


def flag_name(flag: str) -> str:
    """Return a flag without leading dashes and with underscores."""
    return flag.lstrip("-").replace("-", "_")


def find_key(words: Mapping[str, str], word: str | None) -> str | None:
    """Return the first key of `words` whose value is `word`; if there is none, `word` itself."""
    return next((key for key, value in words.items() if value == word), word)


def read_options_file(name: str | None, folder: Path | None, flag: str) -> dict[str, str]:
    """Return the options in a YAML file, with dotted keys for nested ones (`key.key`); empty if `name` is None.

    `flag`: the flag that names the file, with its engine, for messages. Raises InvalidInput if the file does not exist
    or is not YAML, and the errors of `read_named_file`.
    """
    if name is None:
        return {}
    documents = parse_yaml(read_named_file(name, folder, flag), f"{flag} {name}")
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise InvalidInput(
            f"{flag} is {name}, which is not a YAML mapping of options: correct it, or remove the flag"
        )
    return dict(flatten(documents[0]))


def read_named_file(name: str, folder: Path | None, flag: str) -> str:
    """Return the text of a file that a launch command names.

    `folder`: folder of the launch file with the command; None for a pasted command.


    Raises InvalidInput if the file does not exist, or is not below the folder of the launch file that names it.
    """
    path = (folder or Path()) / name
    if folder is not None and not is_inside(path, folder):
        raise InvalidInput(
            f"{flag} is {name}, which is not below the folder of the launch file, so it is not read: copy it there, or "
            "paste the command"
        )
    if not outside_path(path).exists():
        raise InvalidInput(
            f"{flag} is {name}, which does not exist: it must be next to the launch file; set {OPTION} to the path of "
            f"that file, or remove {flag.partition(' ')[0]}"
        )
    return read_text(path, "a launch file")


def flatten(node: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaf values of a YAML node with their dotted keys; a list as JSON, a boolean as true or false."""
    if isinstance(node, dict):
        for key, part in node.items():
            yield from flatten(part, f"{name}.{key}" if name else str(key))
    elif name and node is not None:
        yield name, node if isinstance(node, str) else json.dumps(node, default=str)


def wrap_command(command: str) -> list[str]:
    """Wrap a shell command to lines of `COMMAND_WIDTH`; a flag and its value stay on one line."""
    groups: list[str] = []
    for word in shlex.split(command):
        text = shlex.quote(word)
        alone = not groups or word.startswith("-") or not groups[-1].startswith("-") or " " in groups[-1]
        groups = [*groups, text] if alone else [*groups[:-1], f"{groups[-1]} {text}"]
    lines: list[str] = []
    for group in groups:
        if lines and len(lines[-1]) + len(group) + 3 <= COMMAND_WIDTH:
            lines[-1] += f" {group}"
        else:
            lines.append(f"  {group}" if not lines else f"    {group}")
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]
