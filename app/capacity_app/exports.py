"""Copies of a chart: its numbers, and a picture that is read anywhere: dark on white, small, with what it is of."""

from __future__ import annotations

import streamlit as st

from capacity.base.rows import to_csv
from capacity.report.figures import Chart
from capacity_app.boundary import plain
from capacity_app.downloads import download

MISSING = "-"  # a cell without a value


def files(drawn: Chart) -> None:
    """The chart in words and numbers, and its files; each picture with title, subject and date."""
    st.caption(plain(drawn.alt))
    alt = f"The numbers of: {drawn.title}"
    st.dataframe(list(drawn.rows), hide_index=True, alt=alt, placeholder=MISSING)
    with st.container(horizontal=True):
        download("CSV", f"{drawn.name}.csv", lambda: to_csv(drawn.rows), mime="text/csv", place="chart")
        download("SVG", f"{drawn.name}.svg", drawn.svg, mime="image/svg+xml", place="chart")
        download("HTML", f"{drawn.name}.html", drawn.html, mime="text/html", place="chart")
        download("PNG", f"{drawn.name}.png", drawn.png, mime="image/png", place="chart")
    st.caption(
        "Pictures are dark on white in either theme, and say of what they are and when they were made."
    )
