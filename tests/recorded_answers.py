"""What the product says to hundreds of questions, recorded, so that a change of an answer shows.

    python tests/recorded_answers.py record FILE [--jobs 2] [--only 'simulate/*'] [--short]
    python tests/recorded_answers.py check FILE [--jobs 2] [--only 'simulate/*']

A record tells when an answer changes, not whether it is right. It asks only what a user can: the `capacity` command
of this checkout's pyproject.toml, and the names of `capacity.__all__`. The questions are in `recorded_cases`.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import functools
import hashlib
import importlib
import inspect
import io
import itertools
import json
import math
import os
import re
import shlex
import sys
import tempfile
import tomllib
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from recorded_calls import CALLS
from recorded_cases import BORROWED, CASES, SHORT, SURFACE
from recorded_commands import COMMANDS
from recorded_files import FILES, plain

ROOT = Path(__file__).parent.parent
MOST_LEAVES = 2000  # of a full record; what comes after them is in the digest
MOST_NUMBERS = 24  # of a short record, spread over the answer
TOLERANCE = 1e-9  # relative, of a short record's numbers: another machine's last digits may differ
MOST_SHOWN = 160  # characters of a value that differs
DIGITS = 6  # significant, of all other floats of a short record
UNTOLD = ".sqlite"  # files of which only the name is recorded
MASKS = (
    (re.compile(r"[\d,.]+ s, first answer after [\d,.]+\s+s"), "<elapsed>"),
    (re.compile(r"is in doubt; [\d,.]+ s"), "<elapsed>"),
    (re.compile(r"^\d+ s: (best so far|no answer yet).*\n", re.MULTILINE), ""),
    (re.compile(r"first answer, and last</td><td>[\d,.]+ s, [\d,.]+ s"), "<elapsed>"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<chart>"),
    (re.compile(r'^date = ".*"$', re.MULTILINE), "<today>"),
    (re.compile(r'("(?:elapsed_s|first_answer_s)": )[\d.e+-]+'), r"\1null"),
)

Leaves = dict[str, Any]
Record = dict[str, Any]


# asking


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def prefer_this_checkout() -> None:
    """Its packages come before installed ones, also for the processes that are started."""
    packages = pyproject()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    sys.path[:0] = dict.fromkeys(str((ROOT / package).parent) for package in packages)


@functools.cache
def command() -> Callable[[], None]:
    """The function behind the console command, as this checkout's pyproject.toml names it."""
    module, _, function = pyproject()["project"]["scripts"]["capacity"].partition(":")
    found: Callable[[], None] = getattr(importlib.import_module(module), function)
    return found


def run_command(line: str) -> dict[str, str]:
    """Exit code, stdout and stderr of one command, run in this process."""
    out, err = io.StringIO(), io.StringIO()
    given = io.TextIOWrapper(io.BytesIO(plain().encode()))
    with (
        mock.patch.multiple(sys, argv=["capacity", *shlex.split(line)], stdin=given),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = exit_code(command())
    return {"exit": code, "stdout": out.getvalue(), "stderr": err.getvalue()}


def exit_code(main: Callable[[], None]) -> str:
    """What a command ends with; a crash by its last line."""
    try:
        main()
    except SystemExit as stopped:
        return str(stopped.code or 0)
    except Exception:
        return traceback.format_exc().splitlines()[-1]
    return "0"


def run_commands(lines: str) -> dict[str, str]:
    """What the last of some commands says, and the exit codes of all."""
    answers = [run_command(line) for line in lines.split("\n")]
    return answers[-1] | {"exit": " ".join(answer["exit"] for answer in answers)}


def call(function: str, *positional: Any, **keywords: Any) -> dict[str, str]:
    """The answer of a public function as JSON, or what it raises."""
    import capacity

    try:
        answer = getattr(capacity, function)(*positional, **keywords)
    except Exception as error:
        return {"exit": type(error).__name__, "stderr": str(error), "stdout": json.dumps(numbers_of(error))}
    return {"exit": "0", "stdout": json.dumps(as_json(answer)), "stderr": ""}


def numbers_of(error: Exception) -> dict[str, Any]:
    """What an exception carries besides its text."""
    return {name: value for name, value in vars(error).items() if isinstance(value, (int, float, str))}


def as_json(answer: Any) -> Any:
    return answer.to_dict() if hasattr(answer, "to_dict") else answer


def surface() -> dict[str, str]:
    """The public names and the parameters of each, with their defaults."""
    import capacity

    return {
        "exit": "0",
        "stdout": json.dumps({name: shape(getattr(capacity, name)) for name in capacity.__all__}),
    }


def shape(thing: Any) -> list[str]:
    """Parameters, or the kinds of error that an exception is."""
    if isinstance(thing, type) and issubclass(thing, Exception):
        return [kind.__name__ for kind in thing.__mro__]
    parameters = inspect.signature(thing).parameters.values()
    return [str(parameter.replace(annotation=inspect.Parameter.empty)) for parameter in parameters]


# reading what was said


def leaves(texts: dict[str, str]) -> Leaves:
    """What texts hold, by place: the values of JSON (also of JSON lines), else the lines (of HTML, the tags)."""
    parts = (text_leaves(place, text) for place, text in texts.items())
    return dict(itertools.chain.from_iterable(parts))


def text_leaves(place: str, text: str) -> Iterator[tuple[str, Any]]:
    try:
        yield from flattened(place, json.loads(text))
    except ValueError:
        for number, line in enumerate(text.replace("><", ">\n<").splitlines(), 1):
            yield from line_leaves(f"{place}:{number}", line)


def line_leaves(place: str, line: str) -> Iterator[tuple[str, Any]]:
    try:
        yield from flattened(place, json.loads(line) if line.startswith("{") else line)
    except ValueError:
        yield place, line


def flattened(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every value of nested JSON with its place; what is empty is a value too."""
    if not value or not isinstance(value, (dict, list)):
        yield place, value
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from flattened(f"{place}.{key}", inner)


def masked(text: str) -> str:
    for pattern, instead in MASKS:
        text = pattern.sub(instead, text)
    return text


def new_files(folder: Path) -> Iterator[tuple[str, str]]:
    """Names and texts of what was written beside the given files."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in FILES and name not in BORROWED:
            yield name, "" if name.endswith(UNTOLD) else path.read_text(encoding="utf-8", errors="replace")


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


# recording


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A working folder with the given files; no colours, one width, nobody's home."""
    quiet = {
        "COLUMNS": "110",
        "LINES": "40",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PATH": os.environ.get("PATH", ""),
        "MPLCONFIGDIR": str(
            Path(tempfile.gettempdir()) / "capacity-recorded-matplotlib"
        ),  # no new font cache a case
    }
    kept = {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(place).resolve()
        homes = {"HOME": str(folder / "home"), "XDG_CONFIG_HOME": str(folder / "home")}
        with mock.patch.dict(os.environ, quiet | kept | homes, clear=True), contextlib.chdir(folder):
            for name, content in FILES.items():
                Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
            yield folder


def ask(name: str, folder: Path) -> dict[str, str]:
    """The texts of a case's answer in its folder: exit, stdout, stderr, and the files that it wrote."""
    if name in COMMANDS:
        for needed, place in BORROWED.items():
            if needed in COMMANDS[name]:
                Path(needed).write_bytes((ROOT / place).read_bytes())
        texts = run_commands(COMMANDS[name])
    elif name == SURFACE:
        texts = surface()
    else:
        function, positional, keywords = CALLS[name]
        texts = call(function, *positional, **keywords)
    return texts | dict(new_files(folder))


def said(name: str) -> tuple[str, dict[str, str]]:
    """How a case ends, and the texts of its answer without what depends on time and place."""
    with own_folder() as folder:
        texts = ask(name, folder)
    texts = {part: masked(text).replace(str(folder), "FOLDER") for part, text in texts.items()}
    return texts.pop("exit"), texts


def record(name: str) -> Record:
    """The full record of a case: how it ends, a digest of all texts, and what they hold by place."""
    ending, texts = said(name)
    kept = dict(itertools.islice(leaves(texts).items(), MOST_LEAVES))
    return {"exit": ending, "sha256": digest(texts), "says": kept}


def short_record(name: str) -> Record:
    """The same to keep in git: some floats in full, and all of them to a few digits within the digest."""
    ending, texts = said(name)
    found = leaves(texts)
    floats = {place: value for place, value in found.items() if isinstance(value, float)}
    step = max(1, math.ceil(len(floats) / MOST_NUMBERS))
    numbers = dict(itertools.islice(floats.items(), 0, None, step))
    rounded = found | {place: f"{value:.{DIGITS}g}" for place, value in floats.items()}
    return {"exit": ending, "sha256": digest(rounded), "numbers": numbers}


def record_all(names: Iterable[str], make: Callable[[str], Record], jobs: int) -> dict[str, Record]:
    chosen = list(names)
    if jobs == 1:
        return {name: make(name) for name in chosen}
    with ProcessPoolExecutor(jobs) as workers:
        return dict(zip(chosen, workers.map(make, chosen)))


# comparing


def differences(old: Record, new: Record) -> list[str]:
    """Where two records of a case differ, in the order of the answer; none where they are the same."""
    held, tolerance = ("numbers", TOLERANCE) if "numbers" in old else ("says", 0.0)
    found = changed({"exit": old["exit"]}, {"exit": new["exit"]}, tolerance)
    found += changed(old[held], new[held], tolerance)
    return found or changed({"sha256": old["sha256"]}, {"sha256": new["sha256"]}, tolerance)


def changed(old: Leaves, new: Leaves, tolerance: float) -> list[str]:
    """Each place whose value is another, with both values."""
    places = dict.fromkeys((*old, *new))
    pairs = {place: (old.get(place, "nothing"), new.get(place, "nothing")) for place in places}
    return [
        f"{place}: {brief(was)} -> {brief(now)}"
        for place, (was, now) in pairs.items()
        if not same(was, now, tolerance)
    ]


def same(was: Any, now: Any, tolerance: float) -> bool:
    """Equal; floats within the relative tolerance."""
    if isinstance(was, float) and isinstance(now, float):
        return math.isclose(was, now, rel_tol=tolerance) or (was != was and now != now)
    return type(was) is type(now) and was == now


def brief(value: Any) -> str:
    return repr(value) if len(repr(value)) <= MOST_SHOWN else repr(value)[:MOST_SHOWN] + "..."


# the command line


def chosen(pattern: str | None, known: Iterable[str]) -> list[str]:
    return [name for name in known if pattern is None or fnmatch.fnmatch(name, pattern)]


def write_record(options: argparse.Namespace) -> int:
    names = chosen(options.only, SHORT if options.short else CASES)
    found = record_all(names, short_record if options.short else record, options.jobs)
    Path(options.file).write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", encoding="utf-8")
    print(f"{len(found)} answers in {options.file}")
    return 0


def check_record(options: argparse.Namespace) -> int:
    old = json.loads(Path(options.file).read_text(encoding="utf-8"))
    names = chosen(options.only, [name for name in CASES if name in old])
    short = any("numbers" in answer for answer in old.values())
    new = record_all(names, short_record if short else record, options.jobs)
    found = {name: differences(old[name], new[name]) for name in names}
    different = {name: lines for name, lines in found.items() if lines}
    for name, lines in different.items():
        more = f" (and {len(lines) - options.most} more)" if len(lines) > options.most else ""
        print(f"{name}{more}", *lines[: options.most], sep="\n  ")
    unasked = chosen(options.only, [name for name in old if name not in CASES])
    print(*(f"no such case: {name}" for name in unasked), sep="\n", end="\n" if unasked else "")
    print(f"{len(different)} of {len(names)} answers differ")
    return 1 if different or unasked else 0


def main() -> int:
    """Record answers, or check them against a record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("record", "check"))
    parser.add_argument("file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", help="a pattern of names, such as 'simulate/*'")
    parser.add_argument("--short", action="store_true", help="record what the tests check, to keep in git")
    parser.add_argument("--most", type=int, default=5, help="differences shown of each answer")
    options = parser.parse_args()
    prefer_this_checkout()
    return write_record(options) if options.what == "record" else check_record(options)


if __name__ == "__main__":
    sys.exit(main())
