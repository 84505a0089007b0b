"""Compilation of the core into one shared library when the package is built, and when its sources have changed.

This module imports nothing from the package, so that the build hook can load it before the package is installed.
"""

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
HEADERS = ("math.h", "setjmp.h", "stdint.h", "stdlib.h")
TEST_SOURCE = "".join(f"#include <{header}>\n" for header in HEADERS) + "unsigned __int128 wide;\n"
TIMEOUT_MINUTES = 5  # timeout per file, so that a hanging compiler does not block the installation


class CannotCompile(Exception):
    """Compilation failed; the message is one line."""


def library_name(platform: str = sys.platform) -> str:
    """Return the file name of the library, with the suffix of a platform (a value of `sys.platform`)."""
    return "_core" + {"darwin": ".dylib", "win32": ".dll"}.get(platform, ".so")


def source_files(folder: Path) -> list[Path]:
    """Return the C files and headers; empty if there are no C files, as in a package installed from a wheel."""
    found = sorted(path for path in folder.iterdir() if path.suffix in (".c", ".h"))
    return found if any(path.suffix == ".c" for path in found) else []


def source_version(folder: Path) -> str:
    """Return a hash of all sources and compiler flags, which the library contains as its version."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in source_files(folder):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def compiler_commands() -> Iterator[list[str]]:
    """Yield commands that may be C compilers: $CC, the compilers on PATH, and the ziglang package."""
    if named := os.environ.get("CC"):
        yield shlex.split(named)
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            yield [found]
    if importlib.util.find_spec("ziglang"):
        # without -mcpu it compiles for the processor of this machine only
        yield [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]


def working_compiler() -> list[str] | None:
    """Return the first command that compiles a test program; some compilers lack the headers of the C library."""
    with tempfile.TemporaryDirectory() as scratch:
        trial = Path(scratch, "trial.c")
        trial.write_text(TEST_SOURCE)
        for command in compiler_commands():
            with contextlib.suppress(CannotCompile):
                _run([*command, "-c", str(trial), "-o", str(trial.with_suffix(".o"))], scratch)
                return command
    return None


def compile_core(folder: Path, target: Path, platform: str = sys.platform) -> None:
    """Compile all C files of a folder into one library and write it to `target` atomically."""
    sources = [path for path in source_files(folder) if path.suffix == ".c"]
    compile_library(sources, target, [*FLAGS, f'-DCORE_VERSION="{source_version(folder)}"'], platform)


def compile_library(
    sources: Iterable[Path], target: Path, flags: Sequence[str], platform: str = sys.platform
) -> None:
    """Compile C files in parallel and link them to the library `target`, whose bytes do not depend on the folder.

    If `platform` is not that of this machine, $CC must be a compiler for it. Raises CannotCompile.
    """
    from concurrent.futures import ThreadPoolExecutor

    command = working_compiler()
    if command is None:
        raise CannotCompile("no C compiler was found")
    position = () if platform == "win32" else ("-fPIC",)
    with tempfile.TemporaryDirectory() as scratch:

        def compile_source(source: Path) -> str:
            out = str(Path(scratch, source.stem + ".o"))
            nameless = () if platform == "win32" else (f"-ffile-prefix-map={source.parent}=core",)
            _run([*command, *flags, *position, *WARNINGS, *nameless, "-c", str(source), "-o", out], scratch)
            return out

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_source, sources))
        library = Path(scratch, target.name)
        _run(
            [*command, *flags, "-shared", *_link_flags(flags, platform), *objects, "-o", str(library), "-lm"],
            scratch,
        )
        _move(library, target)


def _link_flags(flags: Sequence[str], platform: str) -> tuple[str, ...]:
    """Return linker flags that report missing functions; empty with sanitizers, which add functions at load time."""
    sanitized = any(flag.startswith("-fsanitize") for flag in flags)
    return ("-Wl,-z,defs", "-s") if platform == "linux" and not sanitized else ()


def _run(command: list[str], scratch: str) -> None:
    # two folders: with one for both, ziglang 0.17 never ends when it links for Windows
    caches = {f"ZIG_{kind}_CACHE_DIR": str(Path(scratch, kind)) for kind in ("LOCAL", "GLOBAL")}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=60 * TIMEOUT_MINUTES,
            env={**os.environ, **caches, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotCompile(str(error)) from error
    if done.returncode:
        raise CannotCompile(
            _first_error(done.stderr) or f"{command[0]} failed with exit code {done.returncode}"
        )


def _first_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = (line for line in lines if "error:" in line or "undefined" in line)
    return next(telling, lines[0] if lines else "")


def _move(library: Path, target: Path) -> None:
    """Copy the library to `target` atomically, so that other processes load either the old or the new one."""
    fd, temporary = tempfile.mkstemp(dir=target.parent, prefix="_core.", suffix=".tmp")
    os.close(fd)
    try:
        shutil.copy(library, temporary)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
