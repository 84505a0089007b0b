"""Calibrated GPU profiles of a browser session, in a temporary folder that only this session searches."""

import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from capacity.hardware.profile_search import FIRST_FOLDERS

Content = TypeVar("Content", bound=str | bytes)
_KEY = "_variants"
_KEPT: ContextVar[tuple[Path, ...]] = ContextVar("folders of a download", default=())


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A profile `GPU@NAME` in `folder`. It was calibrated on `files` from the profile `gpu`, found in `profiles`.

    `earlier`: the files that `gpu` was itself calibrated on in this session.
    """

    folder: Path
    gpu: str
    profiles: tuple[Path, ...]
    files: tuple[str, ...]
    earlier: tuple[str, ...] = ()


@dataclass
class SessionVariants:
    """The variants of one session by name, each in its own folder below `root`, which is deleted with the session."""

    by_name: dict[str, Variant] = field(default_factory=dict)
    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="capacity-variants-")))

    def __post_init__(self) -> None:
        weakref.finalize(self, shutil.rmtree, self.root, ignore_errors=True)

    def source_of(self, gpu: str, files: tuple[str, ...]) -> tuple[str, tuple[Path, ...]]:
        """Return the GPU whose profile to calibrate on `files`, and the folders with profiles that it needs.

        This is the selected `gpu`, or the GPU that it was calibrated from if it is a variant calibrated on one of the
        files. So no file counts twice.
        """
        variant = self.by_name.get(gpu)
        if variant is not None and variant.files == files:
            return variant.gpu, variant.profiles
        if variant is None or not {*variant.files, *variant.earlier}.isdisjoint(files):
            return gpu if variant is None else gpu.partition("@")[0], ()
        return gpu, (variant.folder,)

    def add(self, name: str, variant: Variant) -> None:
        """Make a calibrated variant selectable."""
        known = self.by_name.get(name)
        if known is None or known.folder != variant.folder:
            prior = self.by_name.get(variant.gpu) if variant.profiles else None
            earlier = () if prior is None else (*prior.files, *prior.earlier)
            self.by_name[name] = replace(variant, earlier=earlier)


def session_variants() -> SessionVariants:
    """Return the variants of the session whose page is being drawn."""
    found: SessionVariants = st.session_state.setdefault(_KEY, None) or SessionVariants()
    st.session_state[_KEY] = found
    return found


def session_folders() -> tuple[Path, ...]:
    """Return the folders of the session's variants; outside a page, those of `keep_session_folders`, if any."""
    if get_script_run_ctx(suppress_warning=True) is None:
        return _KEPT.get()
    found: SessionVariants | None = st.session_state.get(_KEY)
    return () if found is None else tuple(variant.folder for variant in found.by_name.values())


def keep_session_folders(content: Callable[[], Content]) -> Callable[[], Content]:
    """Return a function that calls `content` with this session's variants and currency, also from another thread."""
    context = copy_context()
    context.run(_KEPT.set, session_folders())
    return lambda: context.copy().run(content)


FIRST_FOLDERS.append(session_folders)
