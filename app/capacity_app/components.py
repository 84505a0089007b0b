"""Pieces of the page that run in the browser. Their code is fixed here; what they show comes to them as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

BUTTON_CSS = """
button { font: inherit; font-size: .875rem; color: var(--st-text-color); background: var(--st-background-color);
  border: 1px solid var(--st-border-color); border-radius: var(--st-button-radius, .5rem); min-height: 2.5rem;
  padding: .25rem .75rem; cursor: pointer; }
button:hover, button:focus-visible { border-color: var(--st-primary-color); color: var(--st-primary-color); }
"""


def mount(name: str, *, html: str, js: str, css: str, data: Mapping[str, Any], key: str) -> None:
    """Draw the component of this name with its data, which is shown as text and never as markup."""
    component = st.components.v2.component(f"capacity.{name}", html=html, css=css, js=js)
    component(key=key, data=dict(data))
