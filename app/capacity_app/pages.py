"""The pages in menu order: each is a script in `app_pages/` with an entry in `pages.toml`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import streamlit as st

from capacity.base.data_files import read_data
from capacity.base.registry import BY_NAME
from capacity_app import state
from capacity_app.widgets import ROWS

FOLDER = Path(__file__).parent / "app_pages"
TOGETHER, LOOP, RATE = "a batch together", "a closed loop", "arrivals at a rate"  # loads of the Estimate page
USERS, DAY = "users", "a day"  # and of the Compare page, with RATE and LOOP
THIS_LOAD, OVER_LOADS, EVERY_GPU = "this load", "over the load", "every GPU"  # its views
EVERY_ENGINE, FRONTIER, TYPING = "every engine", "frontier", "typing"
OWN_GPUS, HOSTED = "GPUs of the sidebar", "an API"  # Cascade page
# pool fields of the KV cache page
KV_POOL = ("gpu", "tensor_parallel_size", "quantization", "kv_cache_dtype", "engine")
# arrivals of the benchmark page
AS_FILE, AT_RATE, AT_CONCURRENCY = "as recorded", "by requests/s", "by concurrency"
CANDIDATES = {
    key: row["start"] for key, row in ROWS.items() if row.get("name") == "gpus"
}  # initial GPUs by widget
OTHERWISE = "otherwise"  # row for all other values of a widget


@dataclass(frozen=True, kw_only=True)
class PageEntry:
    """A page; `pages.toml` documents the fields."""

    name: str
    title: str
    icon: str
    reads: tuple[str, ...]
    by: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    section: str = ""
    verb: str = ""
    said: str = ""

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.py"

    @property
    def help(self) -> str:
        return self.said or BY_NAME[self.verb or self.name].help.partition("\n")[0]

    @property
    def menu_entry(self) -> st.Page:
        icon, default = f":material/{self.icon}:", self is PAGES[0]
        return st.Page(
            self.path, title=self.title, icon=icon, url_path=self.name, help=self.help, default=default
        )

    def read_keys(self) -> frozenset[str]:
        """Return the keys of sidebar widgets that affect the answer, given the values of the page's own widgets."""
        keys = _keys(self.reads)
        for widget, rows in self.by.items():
            keys |= _keys(rows.get(state.page_choice(widget, OTHERWISE), rows.get(OTHERWISE, ())))
        return keys


def _keys(names: Iterable[str]) -> frozenset[str]:
    return frozenset().union(*(getattr(state, name) if name.isupper() else {name} for name in names))


_FILE = read_data(Path(__file__).with_name("pages.toml"))
PAGES = tuple(PageEntry(name=name, **row) for name, row in _FILE["pages"].items())
PAGE_BY_NAME = {entry.name: entry for entry in PAGES}
PRESETS: Mapping[str, str] = _FILE["examples"]
