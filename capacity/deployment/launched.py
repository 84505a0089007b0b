"""A launch line: the command that is written, and one that was read, with its words and flags."""

import json
import re
import shlex
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from capacity.base.errors import InvalidInput
from capacity.deployment.building import build
from capacity.deployment.pool import Pool

OPTION = "--from-launch"
PORT = 8000
PROXY_PORT = 8080
_OPERATOR = re.compile(r"\||\|\||&|&&|;|(?:\d|&)?>{1,2}.*|<.*")

Fields = dict[str, object]


# settings that decide an interval: without the flag, the default is known
LAUNCH_DEFAULTS: Mapping[str, object] = {
    "max_num_batched_tokens": None,
    "max_num_seqs": None,
    "kv_cache_dtype": "auto",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command as its words, what it cannot say, and the files that it reads (name, text)."""

    words: tuple[str, ...]
    notes: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The command, quoted for a shell, a flag a line."""
        lines: list[list[str]] = [[]]
        for word in self.words:
            if word.startswith("--") and lines[-1]:
                lines.append([])
            lines[-1].append(shlex.quote(word))
        return " \\\n    ".join(" ".join(line) for line in lines)


def flag_words(values: Sequence[tuple[str, object]]) -> list[str]:
    """Return `--flag value` for each pair; True gives the flag alone, None and False give nothing."""
    words: list[str] = []
    for flag, value in values:
        if value is None or value is False:
            continue
        words += [flag] if value is True else [flag, str(value)]
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """What a pasted command says: the model, fields of `Pool` (without a GPU), and the flags that no field stands for.

    `ignored` change no answer; `not_modelled` would, each with what is taken instead; `unknown` are not the engine's as
    far as this package knows. `gpu`: the GPU that a manifest names.
    """

    model: str
    fields: Mapping[str, object]
    ignored: tuple[str, ...]
    not_modelled: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    gpu: str | None = None

    def pool(self, gpu: str) -> Pool:
        """The pool on `gpu`. Raises InvalidInput for a value that cannot be."""
        return build(Pool, {"gpu": gpu, **LAUNCH_DEFAULTS, **self.fields}, flags=True)


def words_of(text: str) -> list[str]:
    """The words of a command as a shell reads them, comments and continued lines too, operators apart. Raises
    InvalidInput.
    """
    lines = [line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#")]
    try:
        reader = shlex.shlex(
            "".join(lines).replace("\\\r\n", " ").replace("\\\n", " "), posix=True, punctuation_chars=";&|"
        )
        reader.whitespace_split, reader.commenters = True, ""
        return list(reader)
    except ValueError as error:
        raise InvalidInput(f"{OPTION} cannot be split into words: {str(error).lower()}") from None


def until_operator(words: list[str]) -> list[str]:
    """The words up to where the shell redirects, pipes or goes on to another command."""
    ends = (place for place, word in enumerate(words) if _OPERATOR.fullmatch(word))
    return words[: next(ends, len(words))]


def is_flag(word: str) -> bool:
    """Whether a word names a flag: -1 is a number."""
    return word.startswith("--") or (len(word) > 1 and word[0] == "-" and word[1].isalpha())


class NoServer(InvalidInput):
    """A line that launches no server of any engine known here."""


class Flags:
    """The flags of a command, to be taken out one by one; what is left was not understood.

    Names are as `flag_name` makes them. `switches` have no value, `several` have more than one; `aliases` are names by
    further spellings. Of a flag that is repeated the last value counts.
    """

    def __init__(
        self,
        words: Collection[str],
        switches: Collection[str],
        *,
        several: Collection[str] = (),
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.words: list[str] = []  # that are no flags
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
        """Take out the value of a flag, empty where it has none; None where it was not given, or is none of `known`."""
        if known is not None and self._values.get(name) not in known:
            return None
        return self._values.pop(name, None)

    def left(self) -> Iterator[tuple[str, str]]:
        """Flags that nobody took: the name, and how it was written."""
        for name in self._values:
            yield name, self._spelled[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A command after its program: its flags, the environment before it, the folder that its files lie in, and the
    options of the file that it names."""

    flags: Flags
    environment: Mapping[str, str]
    folder: Path | None
    options: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what is taken otherwise than the line says


def flag_name(flag: str) -> str:
    """A flag without dashes in front, with underscores."""
    return flag.lstrip("-").replace("-", "_")


def backwards(words: Mapping[str, str], word: str | None) -> str | None:
    """The key of a table whose value this is, the first; what is not in it stays."""
    return next((key for key, value in words.items() if value == word), word)


def options_beside(name: str | None, folder: Path | None, flag: str) -> dict[str, str]:
    """The options of a YAML file as `key`, `key.key` and so on; none without a file. `flag` names it, and whose it is.

    Raises InvalidInput where it is not there, or no YAML.
    """
    if name is None:
        return {}
    import yaml  # few questions read a file of it

    path = (folder or Path()) / name
    try:
        return dict(_flat(yaml.safe_load(path.read_text(encoding="utf-8")), ""))
    except (OSError, UnicodeDecodeError):
        raise InvalidInput(
            f"{flag} is {name}, which is not there: give the path of the launch file to {OPTION}, beside which it "
            f"lies, or leave {flag.partition(' ')[0]} out"
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise InvalidInput(f"{flag} is {name}, which is not YAML: mend it, or leave it out") from None


def _flat(node: object, name: str) -> Iterator[tuple[str, str]]:
    """What has a value, by its keys; a list as JSON, a switch as true or false."""
    if isinstance(node, dict):
        for key, part in node.items():
            yield from _flat(part, f"{name}.{key}" if name else str(key))
    elif name and node is not None:
        yield name, node if isinstance(node, str) else json.dumps(node, default=str)
