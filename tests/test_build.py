"""`pip install .` compiles the core: what the wheel carries with a compiler, with ziglang, with neither."""

from __future__ import annotations

import email
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from capacity.simulator.core import build
from capacity.simulator.core.interface import HEADERS

pytest.importorskip("hatchling")
pytestmark = pytest.mark.ci  # builds

ROOT = Path(__file__).parent.parent
LIBRARY = f"capacity/simulator/core/{build.library_name()}"
without_ziglang = pytest.mark.skipif(
    bool(importlib.util.find_spec("ziglang")), reason="ziglang is a compiler"
)
needs_compiler = pytest.mark.skipif(build.working_compiler() is None, reason="no C compiler")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The package's sources, to build in and to spoil, with a core of one file."""
    copy = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("__pycache__", "_core.*", "*.c")
    for name in ("capacity", "app", "validate", "hardware_profiles"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, copy)
    core = "capacity/simulator/core/version.c"
    shutil.copy(ROOT / core, copy / core)
    return copy


def hatchling(checkout: Path, kind: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As pip calls it: `kind` is wheel, editable or sdist."""
    (checkout / "dist").mkdir()
    code = f"import hatchling.build as b; b.build_{kind}('dist')"
    command, env = [sys.executable, "-c", code], {**os.environ, **environment}
    return subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=True)


def built(checkout: Path) -> Path:
    (found,) = (checkout / "dist").iterdir()
    return found


def without_compiler(folder: Path) -> dict[str, str]:
    """An environment in which no C compiler is found."""
    folder.mkdir()
    return {"PATH": str(folder), "CC": ""}


@needs_compiler
def test_one_wheel_a_platform_for_all_pythons(checkout: Path) -> None:
    hatchling(checkout, "wheel")
    wheel = built(checkout)
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    assert "manylinux" not in wheel.name, "it stands on this machine's C library"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/WHEEL"))
        assert b"Root-Is-Purelib: false" in archive.read(metadata)
    assert LIBRARY in names
    headers = {f"capacity/simulator/core/{header}" for header in HEADERS}
    assert {name for name in names if name.endswith((".c", ".h"))} == headers, "Python reads these"
    assert not (checkout / LIBRARY).exists(), "a wheel leaves the checkout as it is"


@needs_compiler
def test_an_editable_install_compiles_into_the_checkout(checkout: Path) -> None:
    pytest.importorskip("editables")
    hatchling(checkout, "editable")
    assert (checkout / LIBRARY).is_file()
    with zipfile.ZipFile(built(checkout)) as archive:
        assert LIBRARY not in archive.namelist()


def test_the_source_distribution_carries_what_compiles_it(checkout: Path) -> None:
    (checkout / LIBRARY).write_bytes(b"compiled here")
    hatchling(checkout, "sdist")
    with tarfile.open(built(checkout)) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    core = "capacity/simulator/core"
    assert {"hatch_build.py", f"{core}/version.c", f"{core}/core.h", f"{core}/build.py"} <= names
    assert LIBRARY not in names


@without_ziglang
def test_without_a_compiler_the_package_is_built_without_the_library(checkout: Path, tmp_path: Path) -> None:
    done = hatchling(checkout, "wheel", **without_compiler(tmp_path / "empty"))
    assert built(checkout).name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(built(checkout)) as archive:
        assert LIBRARY not in archive.namelist()
    warnings = [line for line in done.stderr.splitlines() if "500 times" in line]
    assert len(warnings) == 1
    assert "no C compiler was found" in warnings[0]


@needs_compiler
def test_sources_that_do_not_compile_are_left_out_too(checkout: Path) -> None:
    (checkout / "capacity/simulator/core/broken.c").write_text("int broken(\n")
    done = hatchling(checkout, "wheel")
    assert built(checkout).name.endswith("-py3-none-any.whl")
    assert "broken.c" in done.stderr


WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"


def build_hooks() -> ModuleType:
    """The module hatch_build.py."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_workflow_builds_a_wheel_for_every_target_and_tests_every_python() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    (tags,) = [step["env"]["CAPACITY_WHEELS"] for step in workflow["jobs"]["build"]["steps"] if "env" in step]
    assert tags.split() == list(build_hooks().ZIGLANG_TARGETS)
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "classifiers"
    ]
    listed = [line.rsplit(" ", 1)[1] for line in classifiers if re.search(r":: Python :: 3\.\d+$", line)]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == listed
    assert set(workflow["jobs"]["publish"]["needs"]) == {"test", "musl", "site"}


def test_an_unknown_target_is_refused(checkout: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        hatchling(checkout, "wheel", CAPACITY_WHEEL="solaris_sparc")
    assert "CAPACITY_WHEEL=solaris_sparc is not one of manylinux2014_x86_64, " in refused.value.stderr


def test_a_release_has_addresses_and_its_readme_no_relative_links(checkout: Path) -> None:
    repository = "https://example.org/some/where"
    hatchling(checkout, "wheel", CAPACITY_REPOSITORY=repository, CAPACITY_CORE="off")
    with zipfile.ZipFile(built(checkout)) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Author"]
    assert f"Security, {repository}/security/advisories/new" in metadata.get_all("Project-URL")
    links = re.findall(r"\]\(([^)\s]+)\)", metadata.get_payload())
    assert len(links) > 5
    assert all(link.startswith(("https://", "#")) for link in links)
    assert f"{repository}/raw/v{metadata['Version']}/docs/screenshots/plan-dark.png" in links


@pytest.mark.slow
@pytest.mark.parametrize("tag", build_hooks().ZIGLANG_TARGETS)
def test_a_wheel_for_each_platform_is_compiled_here(checkout: Path, tag: str) -> None:
    """Linux wheels keep the promise of their tag; of the others, the library has the format of the platform."""
    pytest.importorskip("ziglang")
    for source in (ROOT / "capacity/simulator/core").glob("*.c"):
        shutil.copy(source, checkout / "capacity/simulator/core")
    hatchling(checkout, "wheel", CAPACITY_WHEEL=tag)
    assert built(checkout).name.endswith(f"-py3-none-{tag}.whl")
    system, target = build_hooks().ZIGLANG_TARGETS[tag]
    with zipfile.ZipFile(built(checkout)) as archive:
        library = archive.read(f"capacity/simulator/core/{build.library_name(system)}")
    magic = {"linux": b"\x7fELF", "darwin": b"\xcf\xfa\xed\xfe", "win32": b"MZ"}[system]
    assert library.startswith(magic)
    if "linux-gnu" in target:
        versions = {tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_([\d.]+)", library)}
        assert versions
        assert max(versions) <= (2, 17)
    if system == "darwin" and "aarch64" in target:
        assert b"\xfa\xde\x0c\xc0" in library, "macOS loads only signed code on this processor"


def requirements(checkout: Path, **environment: str) -> str:
    code = "from hatchling.build import get_requires_for_build_wheel as r; print(r())"
    env = {**os.environ, **environment}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=True).stdout


@without_ziglang
def test_ziglang_is_asked_for_only_where_there_is_no_compiler(checkout: Path, tmp_path: Path) -> None:
    stripped = without_compiler(tmp_path / "empty")
    assert "ziglang" in requirements(checkout, **stripped)
    assert "ziglang" not in requirements(checkout, **stripped, CAPACITY_CORE="off")
    if build.working_compiler() is not None:
        assert "ziglang" not in requirements(checkout)


@pytest.mark.slow
def test_a_machine_with_nothing_but_python_installs_the_compiled_engines(
    checkout: Path, tmp_path: Path
) -> None:
    """pip fetches ziglang, a C compiler as a wheel, and compiles with it."""
    for source in (ROOT / "capacity/simulator/core").glob("*.c"):
        shutil.copy(source, checkout / "capacity/simulator/core")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    env = {**os.environ, **without_compiler(tmp_path / "empty"), "PYTHONPATH": ""}
    subprocess.run([python, "-m", "pip", "install", "-q", checkout], env=env, check=True)
    code = "from capacity.simulator.core import library; assert library.load() is not None"
    env["CAPACITY_CORE"] = "require"
    subprocess.run([python, "-c", code], env=env, cwd=tmp_path, check=True)


@needs_compiler
@pytest.mark.parametrize("whole_core", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_wheels_of_the_same_sources_are_the_same_bytes(
    checkout: Path, tmp_path: Path, whole_core: bool
) -> None:
    """Wherever the checkout is and whenever its files were written; the core contains the paths of its files."""
    core = checkout / "capacity/simulator/core"
    (core / "path.c").write_text("const char *path(void);\nconst char *path(void) { return __FILE__; }\n")
    for path in (ROOT / "capacity/simulator/core").glob("*.c" if whole_core else "version.c"):
        shutil.copy(path, core)
    other = tmp_path / "elsewhere" / "a-longer-name"
    shutil.copytree(checkout, other)
    for path in other.rglob("*"):
        os.utime(path, (1e9, 1e9))
    wheels = []
    for folder in (checkout, other):
        hatchling(folder, "wheel")
        assert "-any" not in built(folder).name, "the core is not compiled"
        wheels.append(built(folder).read_bytes())
    assert wheels[0] == wheels[1]
