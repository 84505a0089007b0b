"""Files to take home."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st


def download(label: str, file_name: str, content: Callable[[], str | bytes], *, mime: str) -> None:
    """A button whose file is only made when it is clicked."""
    st.download_button(
        label,
        content,
        file_name,
        mime,
        key=f"download_{file_name}",
        on_click="ignore",
        icon=":material/download:",
    )
