"""Loading of the compiled core: the library in this folder, if it was compiled from the current sources.

`CAPACITY_CORE=off` disables it; `CAPACITY_CORE=require` raises an error if it is not available.
"""

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from capacity.base.errors import InvalidInput
from capacity.simulator.core import build

FOLDER = Path(__file__).parent


@functools.cache
def load() -> ctypes.CDLL | None:
    """Return the compiled core, or None after printing the reason once. Raises InvalidInput if it is required."""
    wish = os.environ.get("CAPACITY_CORE", "")
    if wish == "off":
        return None
    try:
        return load_library(FOLDER)
    except (build.CannotCompile, OSError) as error:
        line = _unavailable_message(error)
    if wish == "require":
        raise InvalidInput(line)
    print(line, file=sys.stderr)
    return None


def load_library(folder: Path) -> ctypes.CDLL:
    """Load the library of a folder; if the folder has C sources, compile a missing or outdated library first."""
    path = folder / build.library_name()
    sources = build.source_files(folder)
    if not sources:
        return ctypes.CDLL(str(path))
    version = build.source_version(folder)
    library = _load_if_current(path, version)
    if library is None:
        with _compile_lock(folder):
            library = _load_if_current(path, version)
            if library is None:
                build.compile_core(folder, path)
                library = ctypes.CDLL(str(path))
    return library


def _load_if_current(path: Path, version: str) -> ctypes.CDLL | None:
    try:
        if version.encode() not in path.read_bytes():
            return None
        return ctypes.CDLL(str(path))
    except OSError:
        return None


@contextlib.contextmanager
def _compile_lock(folder: Path) -> Iterator[None]:
    """Let one of several processes compile while the others wait, if the platform supports file locks."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with (folder / "_core.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _unavailable_message(error: Exception) -> str:
    why = "; ".join(str(error).splitlines())
    if build.source_files(FOLDER):
        fix = "install gcc or clang, or run `pip install ziglang`, and the next run compiles them"
    else:
        fix = "install gcc or clang and reinstall this package from its sources"
    return (
        f"the compiled engines are not available ({why}): simulations use the Python engines, "
        f"about 500 times slower; {fix}"
    )
