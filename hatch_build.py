"""The build hook: compiles the simulator's core, so that `pip install .` alone gives the fast engines.

With the machine's compiler where there is one, else with ziglang, a compiler that the package index has as a wheel.
Where neither works the package is built without the library, and simulations run on the Python engines.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

CORE = Path("capacity", "simulator", "core")
ZIGLANG = "ziglang>=0.13"
ZIGLANG_PROCESSORS = ("x86_64", "amd64", "aarch64", "arm64")  # others have no wheel of it on every system


class CoreBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """One wheel a platform for all Pythons: the core knows no Python headers."""

    PLUGIN_NAME = "custom"
    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        if not self._wanted() or self._build().working_compiler() is not None:
            return []
        known = (
            sys.platform in ("linux", "darwin", "win32") and platform.machine().lower() in ZIGLANG_PROCESSORS
        )
        return [ZIGLANG] if known else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not self._wanted():
            return
        build, name, folder = self._build(), self._build().library_name(), Path(self.root, CORE)
        self._scratch = None if version == "editable" else tempfile.TemporaryDirectory()
        target = (Path(self._scratch.name) if self._scratch else folder) / name
        try:
            build.compile_core(folder, target)
        except (build.CannotCompile, OSError) as error:
            self.app.display_warning(
                f"the compiled engines are left out, simulations will be about 500 times slower: {error}"
            )
            return
        if self._scratch:
            build_data["force_include"][str(target)] = (CORE / name).as_posix()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        if self._scratch:
            self._scratch.cleanup()

    def _wanted(self) -> bool:
        return self.target_name == "wheel" and os.environ.get("CAPACITY_CORE") != "off"

    def _build(self) -> ModuleType:
        """capacity/simulator/core/build.py, by its path: nothing of the package is installed yet."""
        spec = importlib.util.spec_from_file_location(
            "capacity_core_build", Path(self.root, CORE, "build.py")
        )
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def _platform() -> str:
    """This very platform: a library linked to this machine's C library is not called manylinux."""
    return next(tag for tag in platform_tags() if "manylinux" not in tag and "musllinux" not in tag)
