"""Loading the compiled core: compiled again where its sources have changed, one line where it cannot be had."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from capacity.base.errors import InvalidInput
from capacity.simulator.core import build, library

needs_compiler = pytest.mark.skipif(build.working_compiler() is None, reason="no C compiler")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A core of one file."""
    for name in ("version.c", "core.h"):
        shutil.copy(library.FOLDER / name, tmp_path)
    return tmp_path


@pytest.fixture
def forgotten() -> Iterator[None]:
    library.load.cache_clear()
    yield
    library.load.cache_clear()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compiler_commands", lambda: iter(()))


def version_of(core: ctypes.CDLL) -> str:
    core.core_version.restype = ctypes.c_char_p
    found = core.core_version()
    assert isinstance(found, bytes)
    return found.decode()


@needs_compiler
def test_a_missing_library_is_compiled_once(sources: Path) -> None:
    assert version_of(library.load_library(sources)) == build.source_version(sources)
    written = (sources / build.library_name()).stat().st_mtime_ns
    library.load_library(sources)
    assert (sources / build.library_name()).stat().st_mtime_ns == written
    assert {path.name for path in sources.glob("_core.*")} <= {build.library_name(), "_core.lock"}


@needs_compiler
def test_a_stale_library_is_compiled_again(sources: Path) -> None:
    before = build.source_version(sources)
    build.compile_core(sources, sources / build.library_name())
    with (sources / "core.h").open("a") as header:
        header.write("/* more */\n")
    after = version_of(library.load_library(sources))
    assert before != after == build.source_version(sources)


@needs_compiler
def test_a_broken_library_is_compiled_again(sources: Path) -> None:
    (sources / build.library_name()).write_bytes(build.source_version(sources).encode())
    assert version_of(library.load_library(sources)) == build.source_version(sources)


@needs_compiler
def test_processes_that_start_together_compile_once(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    compile_core = build.compile_core
    monkeypatch.setattr(build, "compile_core", lambda *a: (calls.append(a), compile_core(*a)))
    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(library.load_library, [sources] * 8))) == 8
    assert len(calls) == 1


@needs_compiler
def test_a_function_that_nobody_wrote_is_an_error_of_the_build(sources: Path) -> None:
    (sources / "more.c").write_text(
        "int missing(void);\nint caller(void);\nint caller(void) { return missing(); }\n"
    )
    with pytest.raises(build.CannotCompile, match="missing"):
        library.load_library(sources)
    assert not (sources / build.library_name()).exists()


@needs_compiler
def test_an_error_in_a_source_is_said_in_one_line(sources: Path) -> None:
    (sources / "more.c").write_text("int broken(\n")
    with pytest.raises(build.CannotCompile, match=r"more\.c:.*error") as caught:
        library.load_library(sources)
    assert "\n" not in str(caught.value)


@needs_compiler
def test_the_named_compiler_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    found = build.working_compiler()
    assert found is not None
    monkeypatch.setenv("CC", f"{found[0]} -O1")
    assert build.working_compiler() == [found[0], "-O1"]
    monkeypatch.setenv("CC", "/no/such/compiler")
    assert build.working_compiler() == found


def test_a_library_without_sources_is_taken_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="_core"):
        library.load_library(tmp_path)


@pytest.mark.usefixtures("forgotten", "no_compiler")
def test_one_line_says_that_it_is_not_there(
    sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "FOLDER", sources)
    monkeypatch.delenv("CAPACITY_CORE", raising=False)
    assert library.load() is None
    assert library.load() is None
    said = capsys.readouterr().err
    assert said == (
        "the compiled engines are not available (no C compiler was found): simulations use the Python engines, "
        "about 500 times slower; install gcc or clang, or run `pip install ziglang`, and the next run compiles them\n"
    )


@pytest.mark.usefixtures("forgotten", "no_compiler")
def test_it_can_be_required_or_left_out(
    sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "FOLDER", sources)
    monkeypatch.setenv("CAPACITY_CORE", "require")
    with pytest.raises(InvalidInput, match="no C compiler was found"):
        library.load()
    monkeypatch.setenv("CAPACITY_CORE", "off")
    assert library.load() is None
    assert capsys.readouterr().err == ""


def test_a_checkout_that_cannot_be_written_is_no_crash(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(build, "_move", refuse)
    if build.working_compiler() is not None:
        with pytest.raises(OSError, match="read-only"):
            library.load_library(sources)


def test_the_hook_can_load_the_builder_by_its_path() -> None:
    """Without anything of the package: it is not installed yet."""
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); assert 'capacity' not in sys.modules"
    command = [sys.executable, "-I", "-c", code, str(library.FOLDER / "build.py")]
    subprocess.run(command, check=True, env={**os.environ})
