"""The build hooks: the simulator's compiled core, and metadata of a release.

`pip install .` compiles the core with the machine's compiler where there is one, else with ziglang, a compiler that the
package index has as a wheel. Where neither works the package is built without the library, and simulations run on the
Python engines. `CAPACITY_WHEEL=manylinux2014_aarch64` compiles for another platform with ziglang, and must succeed.

`CAPACITY_REPOSITORY=https://HOST/OWNER/NAME` gives the metadata its URLs, and the README absolute links to it.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from packaging.tags import platform_tags

CORE = Path("capacity", "simulator", "core")
ZIGLANG = "ziglang>=0.13"
ZIGLANG_TARGETS = {  # platform tag of a wheel: its `sys.platform` and its target; manylinux2014 is glibc 2.17
    "manylinux2014_x86_64": ("linux", "x86_64-linux-gnu.2.17"),
    "manylinux2014_aarch64": ("linux", "aarch64-linux-gnu.2.17"),
    "musllinux_1_2_x86_64": ("linux", "x86_64-linux-musl"),
    "musllinux_1_2_aarch64": ("linux", "aarch64-linux-musl"),
    "macosx_11_0_x86_64": ("darwin", "x86_64-macos.11.0"),
    "macosx_11_0_arm64": ("darwin", "aarch64-macos.11.0"),
    "win_amd64": ("win32", "x86_64-windows-gnu"),
    "win_arm64": ("win32", "aarch64-windows-gnu"),
}
ZIGLANG_PROCESSORS = ("x86_64", "amd64", "aarch64", "arm64")  # others have no wheel of it on every system


class CoreBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """One wheel a platform for all Pythons: the core knows no Python headers."""

    PLUGIN_NAME = "custom"
    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        if self._wanted() and self._target():
            return [ZIGLANG]
        if not self._wanted() or self._build().working_compiler() is not None:
            return []
        known = (
            sys.platform in ("linux", "darwin", "win32") and platform.machine().lower() in ZIGLANG_PROCESSORS
        )
        return [ZIGLANG] if known else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not self._wanted():
            return
        tag = self._target()
        system, compiler_target = ZIGLANG_TARGETS[tag] if tag else (sys.platform, "")
        build, folder = self._build(), Path(self.root, CORE)
        name = build.library_name(system)
        self._scratch = None if version == "editable" else tempfile.TemporaryDirectory()
        target = (Path(self._scratch.name) if self._scratch else folder) / name
        if tag:
            os.environ["CC"] = (
                f"{shlex.quote(sys.executable)} -m ziglang cc -target {compiler_target} -mcpu=baseline"
            )
        try:
            build.compile_core(folder, target, system)
        except (build.CannotCompile, OSError) as error:
            if tag:
                raise
            self.app.display_warning(
                f"the compiled engines are left out, simulations will be about 500 times slower: {error}"
            )
            return
        if self._scratch:
            build_data["force_include"][str(target)] = (CORE / name).as_posix()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag or _platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        if self._scratch:
            self._scratch.cleanup()

    def _wanted(self) -> bool:
        return self.target_name == "wheel" and os.environ.get("CAPACITY_CORE") != "off"

    def _target(self) -> str:
        """The platform that `CAPACITY_WHEEL` names, or "" for this one."""
        tag = os.environ.get("CAPACITY_WHEEL", "")
        if tag and tag not in ZIGLANG_TARGETS:
            raise ValueError(f"CAPACITY_WHEEL={tag} is not one of {', '.join(ZIGLANG_TARGETS)}")
        return tag

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


class ReleaseMetadataHook(MetadataHookInterface):
    """URLs and the README of a release; without `CAPACITY_REPOSITORY` the README as it is, and no URLs."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        if repository := os.environ.get("CAPACITY_REPOSITORY", "").rstrip("/"):
            release = f"v{metadata['version']}"
            text = _absolute_links(text, repository, release)
            metadata["urls"] = {
                "Source": repository,
                "Documentation": f"{repository}/blob/{release}/docs/README.md",
                "Changelog": f"{repository}/blob/{release}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
                "Security": f"{repository}/security/advisories/new",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def _absolute_links(text: str, repository: str, release: str) -> str:
    """Links and images of a Markdown text that are relative to its repository, as addresses of this release."""

    def absolute(match: re.Match[str]) -> str:
        kind = "raw" if match["image"] else "blob"
        return f"{match['image']}{match['label']}({repository}/{kind}/{release}/{match['path']})"

    relative = r"(?P<path>(?!\w+:|#)[^)\s]+)"
    text = re.sub(rf"(?P<image>!)(?P<label>\[[^]]*\])\({relative}\)", absolute, text)
    return re.sub(rf"(?P<image>)(?P<label>\])\({relative}\)", absolute, text)


def _platform() -> str:
    """This very platform: a library linked to this machine's C library is not called manylinux."""
    return next(tag for tag in platform_tags() if "manylinux" not in tag and "musllinux" not in tag)
