"""Files to take home."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st


def download(
    label: str, file_name: str, content: Callable[[], str | bytes], *, mime: str, place: str = "download"
) -> None:
    """Draw a button that makes its file when it is clicked. A page may hold one button per `place` and file name."""
    st.download_button(
        label,
        content,
        file_name,
        mime,
        key=f"{place}_{file_name}",
        on_click="ignore",
        icon=":material/download:",
    )
