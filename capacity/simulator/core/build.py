"""Compiling the core into one shared library: when the package is built, and again where its sources have changed.

It stands alone, so that the build hook can load it from a checkout in which nothing is installed yet.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

FLAGS = ("-std=c11", "-O2", "-ffp-contract=off", "-fno-fast-math", "-fvisibility=default")
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion")
TRIAL = "#include <math.h>\n#include <setjmp.h>\n#include <stdint.h>\n#include <stdlib.h>\nunsigned __int128 wide;\n"
MINUTES = 5  # for one file, at most: a compiler that hangs must not hang an installation


class CannotCompile(Exception):
    """Why, in one line."""


def library_name() -> str:
    """The library's file beside the sources, under this machine's ending."""
    return "_core" + {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")


def source_files(folder: Path) -> list[Path]:
    """Return the C files and headers; none where the package was installed from a wheel, which has no C files."""
    found = sorted(path for path in folder.iterdir() if path.suffix in (".c", ".h"))
    return found if any(path.suffix == ".c" for path in found) else []


def source_version(folder: Path) -> str:
    """A hash of all sources and of how they are compiled: the library says from which it was compiled."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in source_files(folder):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def compilers() -> Iterator[list[str]]:
    """Commands that may be C compilers here: the one that $CC names, the machine's, ziglang from the package index."""
    if named := os.environ.get("CC"):
        yield shlex.split(named)
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            yield [found]
    if importlib.util.find_spec("ziglang"):
        # else it compiles for the very processor that it runs on
        yield [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]


def working_compiler() -> list[str] | None:
    """The first of them that compiles: some machines have a compiler without a C library's headers."""
    with tempfile.TemporaryDirectory() as scratch:
        trial = Path(scratch, "trial.c")
        trial.write_text(TRIAL)
        for command in compilers():
            with contextlib.suppress(CannotCompile):
                _run([*command, "-c", str(trial), "-o", str(trial.with_suffix(".o"))], scratch)
                return command
    return None


def compile_core(folder: Path, target: Path) -> None:
    """Compile all C files of a folder into one library, which appears at `target` at once and whole."""
    sources = [path for path in source_files(folder) if path.suffix == ".c"]
    compile_library(sources, target, [*FLAGS, f'-DCORE_VERSION="{source_version(folder)}"'])


def compile_library(sources: Iterable[Path], target: Path, flags: Sequence[str]) -> None:
    """Compile these files, several at a time; the same bytes wherever they stand."""
    from concurrent.futures import ThreadPoolExecutor

    command = working_compiler()
    if command is None:
        raise CannotCompile("no C compiler was found")
    position = () if sys.platform == "win32" else ("-fPIC",)
    with tempfile.TemporaryDirectory() as scratch:

        def compile_source(source: Path) -> str:
            out = str(Path(scratch, source.stem + ".o"))
            nameless = () if sys.platform == "win32" else (f"-ffile-prefix-map={source.parent}=core",)
            _run([*command, *flags, *position, *WARNINGS, *nameless, "-c", str(source), "-o", out], scratch)
            return out

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_source, sources))
        library = Path(scratch, target.name)
        _run([*command, *flags, "-shared", *_link_flags(flags), *objects, "-o", str(library), "-lm"], scratch)
        _move(library, target)


def _link_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """A function that is missing is an error now, not when the library is loaded; sanitizers bring theirs later."""
    sanitized = any(flag.startswith("-fsanitize") for flag in flags)
    return ("-Wl,-z,defs", "-s") if sys.platform == "linux" and not sanitized else ()


def _run(command: list[str], scratch: str) -> None:
    caches = {"ZIG_LOCAL_CACHE_DIR": scratch, "ZIG_GLOBAL_CACHE_DIR": scratch}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=60 * MINUTES,
            env={**os.environ, **caches, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotCompile(str(error)) from error
    if done.returncode:
        raise CannotCompile(_first_error(done.stderr) or f"{command[0]} ended with {done.returncode}")


def _first_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = (line for line in lines if "error:" in line or "undefined" in line)
    return next(telling, lines[0] if lines else "")


def _move(library: Path, target: Path) -> None:
    """Whoever loads the target meanwhile finds the old one or the new one, whole."""
    fd, beside = tempfile.mkstemp(dir=target.parent, prefix="_core.", suffix=".tmp")
    os.close(fd)
    try:
        shutil.copy(library, beside)
        Path(beside).replace(target)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
