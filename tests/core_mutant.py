"""The compiled engines with one wrong rule each: compiled, and run in a child against what the readable ones did."""

from __future__ import annotations

import atexit
import ctypes
import functools
import multiprocessing
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from core_mutations import CoreMutation
from random_deployments import Deployment, outcome, random_deployment, unlike
from reference_schedules import NAMED, POLICIES, lines
from rule_scenarios import RULES
from ruled_deployments import RULED, ruled

from capacity.simulator.core import build, fleet, library
from capacity.simulator.scenarios import schedule_scenario

SOURCES = Path(build.__file__).parent
FLAGS = [
    *build.FLAGS,
    "-fPIC",
    "-Werror=implicit-function-declaration",
    '-DCORE_VERSION="mutant"',
    f"-I{SOURCES}",
]
TIMEOUT_S = 60  # a mutant that never ends is shown too


def written(engine: str) -> list[dict[str, Any]]:
    """The scenarios of an engine that come with the project, and those worked by hand."""
    named = [line["scenario"] for line in lines(NAMED / f"{engine}_named.jsonl.gz")]
    return [*named, *(case.scenario for case in RULES if engine != "v0")]


@functools.cache
def compiler() -> list[str]:
    command = build.working_compiler()
    assert command is not None
    return command


def run(*arguments: str) -> None:
    """The compiler with these arguments beside the flags of all."""
    subprocess.run([*compiler(), *FLAGS, *arguments], check=True, capture_output=True)


def compiled(source: Path, folder: Path) -> Path:
    """The object of a source, in a folder."""
    target = folder / f"{source.stem}.o"
    run("-c", str(source), "-o", str(target))
    return target


@functools.cache
def compiled_sources() -> dict[str, Path]:
    """The objects of the engines as they are, by source; compiled once a process, and gone with it."""
    folder = Path(tempfile.mkdtemp(prefix="engines-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sources = [path for path in build.source_files(SOURCES) if path.suffix == ".c"]
    with ThreadPoolExecutor() as pool:
        return dict(
            zip([path.name for path in sources], pool.map(lambda path: compiled(path, folder), sources))
        )


@functools.cache
def read_schedules() -> list[tuple[Any, dict[str, Any], Any]]:
    """What the Python engines do with the scenarios, by policy."""
    return [
        (policy, scenario, schedule_scenario(scenario, policy, engine_loop="events"))
        for engine, policy in POLICIES.items()
        for scenario in written(engine)
    ]


@functools.cache
def read_ruled() -> dict[str, tuple[Deployment, Any]]:
    """What they do with the deployments that are made for a rule each."""
    made = {", ".join(map(str, rule)): ruled(*rule) for rule in RULED}
    return {name: (deployment, outcome(deployment, "events")) for name, deployment in made.items()}


class CoreMutants:
    """The engines' objects, and what the Python engines did with some random deployments."""

    def __init__(
        self, folder: Path, seeds: Iterable[int], deployments: Mapping[str, Deployment] | None = None
    ) -> None:
        self._folder = folder
        self._objects = compiled_sources()
        self._schedules = read_schedules()
        met = {str(seed): random_deployment(seed) for seed in seeds} | dict(deployments or {})
        read = {name: (deployment, outcome(deployment, "events")) for name, deployment in met.items()}
        self._read = read_ruled() | read

    def library(self, mutation: CoreMutation | None) -> Path:
        """The engines with a mutation; None: as they are."""
        objects, name = dict(self._objects), "core"
        if mutation is not None:
            name = mutation.name.replace(" ", "-").replace("/", "-")
            mutated = mutation.applied((SOURCES / mutation.file).read_text())
            if mutation.file.endswith(".h"):
                objects = self._with_header(name, mutation.file, mutated)
            else:
                source = self._folder / f"{name}.c"
                source.write_text(mutated)
                objects[mutation.file] = compiled(source, self._folder)
        target = self._folder / f"{name}{Path(build.library_name()).suffix}"
        run("-shared", *map(str, objects.values()), "-o", str(target), "-lm")
        return target

    def _with_header(self, name: str, file: str, mutated: str) -> dict[str, Path]:
        """All objects again, in a folder of their own: who includes it is not known."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        for path in build.source_files(SOURCES):
            (folder / path.name).write_text(mutated if path.name == file else path.read_text())
        with ThreadPoolExecutor() as pool:
            made = pool.map(lambda name: compiled(folder / name, folder), self._objects)
            return dict(zip(self._objects, made))

    def shown_by(self, mutation: CoreMutation | None) -> str | None:
        """What shows a mutant, None if nothing does: a deployment, a crash or a run without end."""
        path, context = self.library(mutation), multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=self._compare, args=(path, theirs))
        child.start()
        theirs.close()
        try:
            if not ours.poll(TIMEOUT_S):
                return "it never ends"
            found: str | None = ours.recv()
            return found
        except EOFError:
            return "it crashes"
        finally:
            child.kill()
            child.join()

    def _compare(self, path: Path, tell: Connection) -> None:
        mutant = ctypes.CDLL(str(path))
        library.load = functools.cache(lambda: mutant)
        fleet._load_core.cache_clear()
        for policy, scenario, schedule in self._schedules:
            try:
                same = schedule_scenario(scenario, policy, engine_loop="core") == schedule
            except Exception:
                same = False
            if not same:
                tell.send(f"{policy}, {scenario.get('name')}")
                return
        for name, (deployment, read) in self._read.items():
            try:
                found = unlike(read, outcome(deployment, "core"))
            except Exception as error:
                found = [repr(error)]
            if found:
                tell.send(f"{name}: {', '.join(found)[:200]}")
                return
        tell.send(None)
