"""Fuzz every parser, guided by coverage, and the C interface of the core: `python -m tests.fuzz --minutes 30`.

Needs atheris for the parsers, and gcc with its sanitizers for the core. The two run at the same time. `--corpus` is a
folder that grows; a fault is printed once by kind, and its input is kept beside the folder in CORPUS.found. An input is
the name of a parser, a line break, and what the parser is given. `--keep` instead makes the archive that the tests
replay, and `--only` limits the fuzzer to parsers whose names contain a text.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
KEPT = Path(__file__).parent / "data" / "fuzzed.tar.xz"
MOST_KEPT_BYTES = 300_000  # before compression
LONGEST = 6000
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 2**31, 2**53, 2**63, 10**40, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x",
    "\x1b]0;x\x07", "\ud800", "re:((a|.)*)*!$", "\0", "9" * 30, [], {}, [[]], [None], {"a": {}}, [1, 2], "auto", [""],
)  # fmt: skip


def seeds() -> list[bytes]:
    """Sound examples of every parser, as inputs."""
    from parsers import PARSERS

    return [
        f"{name}\n{text}".encode("utf-8", "surrogateescape")
        for name, p in PARSERS.items()
        for text in p.sound
    ]


def changed(content: str, rng: random.Random) -> str:
    """One value, line, word or number of a text exchanged."""
    try:
        document = json.loads(content)
    except ValueError:
        return _words_changed(content, rng)
    return json.dumps(_value_changed(document, rng))


def _value_changed(document: Any, rng: random.Random) -> Any:
    if isinstance(document, dict | list) and document and rng.random() < 0.85:
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        key = rng.choice(keys)
        if rng.random() < 0.1:
            del document[key]
        else:
            document[key] = _value_changed(document[key], rng)
        return document
    return rng.choice(VALUES)


def _words_changed(content: str, rng: random.Random) -> str:
    lines = content.split("\n")
    at = rng.randrange(len(lines))
    how = rng.random()
    if how < 0.15:
        lines[at] = rng.choice(lines)
    elif how < 0.25:
        del lines[at]
    else:
        words = re.split(r'([\s,=:"\[\]{}]+)', lines[at])
        words[rng.randrange(len(words))] = str(rng.choice(VALUES))
        lines[at] = "".join(words)
    return "\n".join(lines)


def mutated(raw: bytes, most: int, seed: int) -> bytes:
    """The next input: its parser stays, its text changes by structure or by bytes."""
    import atheris

    name, _, content = raw.partition(b"\n")
    rng = random.Random(seed)
    if rng.random() < 0.6:
        text = content.decode("utf-8", "surrogateescape")
        for _ in range(rng.choice((1, 1, 2, 4))):
            text = changed(text, rng)
        content = text.encode("utf-8", "backslashreplace")
    else:
        content = atheris.Mutate(content, max(most - len(name) - 1, 1))
    return (name + b"\n" + content)[:most]


def fuzz_parsers(corpus: Path, seconds: int, seed: int, only: str = "") -> None:
    """Run until the time is over; findings are written, not fatal."""
    import atheris

    with atheris.instrument_imports(include=["capacity", "capacity_validate"]):
        from parsers import PARSERS, fault

    found = Path(f"{corpus}.found")
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    for raw in seeds():
        if only not in raw.partition(b"\n")[0].decode():
            continue
        (corpus / hashlib.sha1(raw).hexdigest()).write_bytes(raw)
    known: set[str] = set()
    file = Path(tempfile.mkdtemp()) / "input.toml"
    config = file.with_suffix(".json")

    def one(raw: bytes) -> None:
        name, _, content = raw.partition(b"\n")
        parser = name.decode("utf-8", "replace")
        if parser not in PARSERS or only not in parser:
            return
        wrong = fault(parser, content, config if parser == "config.json" else file)
        kind = wrong and f"{parser}: {re.sub(r'[0-9]+ characters.*|(?<=: ).* at ', '', wrong)}"
        if wrong and kind not in known:
            known.add(str(kind))
            (found / hashlib.sha1(raw).hexdigest()).write_bytes(raw)
            print(f"FOUND {parser}: {wrong}", flush=True)

    options = [
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST}",
        f"-seed={seed}",
        "-timeout=600",  # of wall time; `fault` judges the CPU time
        "-print_final_stats=1",
    ]
    options += ["-rss_limit_mb=2048", "-detect_leaks=0", f"-artifact_prefix={found}/"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one, custom_mutator=mutated)
    atheris.Fuzz()


def keep(corpus: Path) -> None:
    """The smallest inputs of each parser, in turn, and everything found, as far as the archive may grow."""
    from parsers import PARSERS

    found = sorted(Path(f"{corpus}.found").glob("*"))
    of: dict[str, list[Path]] = {name: [] for name in PARSERS}
    for path in sorted(corpus.iterdir(), key=lambda each: each.stat().st_size):
        name = path.read_bytes().partition(b"\n")[0].decode("utf-8", "replace")
        if name in of:
            of[name].append(path)
    turns = [path for row in zip(*(_spread(paths, 60) for paths in of.values())) for path in row if path]
    room = MOST_KEPT_BYTES
    with tarfile.open(KEPT, "w:xz") as archive:
        for path in dict.fromkeys([*found, *turns]):
            raw = path.read_bytes()
            if raw.partition(b"\n")[0].decode("utf-8", "replace") in PARSERS and len(raw) <= min(
                LONGEST, room
            ):
                member = tarfile.TarInfo(path.name[:16])
                member.size = len(raw)
                archive.addfile(member, io.BytesIO(raw))
                room -= len(raw)


def _spread(paths: list[Path], count: int) -> list[Path | None]:
    step = max(len(paths) / count, 1.0)
    chosen: list[Path | None] = [paths[int(i * step)] for i in range(min(count, len(paths)))]
    return chosen + [None] * (count - len(chosen))


def fuzz_core(seconds: int, seed: int) -> bool:
    """Random fleets through the core under sanitizers, in processes of 200 seeds, until the time is over."""
    sys.path.insert(0, str(Path(__file__).parent / "simulator" / "core"))
    from test_sanitizers import SANITIZERS, compile_sanitized, fuzz, runtime

    if runtime() is None:
        print("no gcc with sanitizers: the core is not fuzzed", flush=True)
        return True
    core = compile_sanitized(Path(tempfile.mkdtemp()))
    end_s, first = time.monotonic() + seconds, seed * 10**6
    while time.monotonic() < end_s:
        try:
            fuzz(str(core), first, 200, **SANITIZERS, LD_PRELOAD=str(runtime()))
        except AssertionError as error:
            print(f"FOUND core, seeds from {first}: {error}", flush=True)
            return False
        first += 200
    print(f"core: {first - seed * 10**6} random fleets, no fault", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--corpus", type=Path, default=Path(tempfile.gettempdir()) / "capacity-corpus")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--part", choices=("both", "parsers", "core"), default="both")
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    seconds = round(60 * given.minutes)
    if given.keep:
        keep(given.corpus)
    elif given.part == "parsers":
        fuzz_parsers(given.corpus, seconds, given.seed, given.only)
    elif given.part == "core":
        return 0 if fuzz_core(seconds, given.seed) else 1
    else:  # libFuzzer ends its process
        commands = [[sys.executable, *sys.orig_argv[1:], "--part", part] for part in ("parsers", "core")]
        return max(process.wait() for process in [subprocess.Popen(command) for command in commands])
    return 0


if __name__ == "__main__":
    sys.exit(main())
