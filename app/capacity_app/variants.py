"""Calibrated GPU profiles of one browser, in a temporary folder that only the sessions of this browser search.

A cookie with a random token finds the folder again after a reload of the page.
"""

import secrets
import shutil
import tempfile
import threading
import time
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
COOKIE = "capacity_variants"
KEPT_S = 24 * 3600.0  # after the last use
MAX_VARIANTS = 20  # of one browser; the oldest is deleted first
MAX_BROWSERS = 100  # the one that was not used for the longest time is deleted first
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
    """The variants of one browser by name, each in its own folder below `root`, which is deleted with this object.

    `token`: the secret in the browser's cookie. `used_s`: time of the last use (`time.monotonic`).
    """

    by_name: dict[str, Variant] = field(default_factory=dict)
    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="capacity-variants-")))
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    used_s: float = field(default_factory=time.monotonic)

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
            if len(self.by_name) > MAX_VARIANTS:
                shutil.rmtree(self.by_name.pop(next(iter(self.by_name))).folder, ignore_errors=True)


class BrowserStore:
    """The variants of all browsers by the token in their cookies, limited in number and time."""

    def __init__(self) -> None:
        self._by_token: dict[str, SessionVariants] = {}
        self._lock = threading.Lock()

    def find(self, token: str) -> SessionVariants | None:
        with self._lock:
            self._delete_expired()
            found = self._by_token.get(token)
            if found is not None:
                found.used_s = time.monotonic()
            return found

    def keep(self, variants: SessionVariants) -> None:
        with self._lock:
            variants.used_s = time.monotonic()
            self._by_token[variants.token] = variants
            self._delete_expired()

    def _delete_expired(self) -> None:
        latest = sorted(self._by_token.values(), key=lambda each: each.used_s)[-MAX_BROWSERS:]
        oldest_s = time.monotonic() - KEPT_S
        self._by_token = {each.token: each for each in latest if each.used_s >= oldest_s}


_STORE = BrowserStore()


def session_variants() -> SessionVariants:
    """Return the variants of the browser whose page is being drawn."""
    found = _find_variants() or SessionVariants()
    st.session_state[_KEY] = found
    return found


def _find_variants() -> SessionVariants | None:
    if _KEY not in st.session_state:
        st.session_state[_KEY] = _STORE.find(st.context.cookies.get(COOKIE, ""))
    found: SessionVariants | None = st.session_state[_KEY]
    return found


def keep_after_reload() -> None:
    """Store this session's variants, and a cookie in the browser that finds them after a reload of the page."""
    variants = session_variants()
    _STORE.keep(variants)
    attributes = f"path=/; max-age={KEPT_S:.0f}; SameSite=Strict"
    script = (
        f"document.cookie = '{COOKIE}={variants.token}; {attributes}'"
        " + (location.protocol === 'https:' ? '; Secure' : '')"
    )
    st.html(f"<script>{script}</script>", unsafe_allow_javascript=True)


def session_folders() -> tuple[Path, ...]:
    """Return the folders of the session's variants; outside a page, those of `keep_session_folders`, if any."""
    if get_script_run_ctx(suppress_warning=True) is None:
        return _KEPT.get()
    found = _find_variants()
    return () if found is None else tuple(variant.folder for variant in found.by_name.values())


def keep_session_folders(content: Callable[[], Content]) -> Callable[[], Content]:
    """Return a function that calls `content` with this session's variants and currency, also from another thread."""
    context = copy_context()
    context.run(_KEPT.set, session_folders())
    return lambda: context.copy().run(content)


FIRST_FOLDERS.append(session_folders)
