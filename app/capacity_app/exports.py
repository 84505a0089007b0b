"""Copies of a chart: its numbers, and a picture that is read anywhere: dark on white, small, with what it is of."""

from __future__ import annotations

import streamlit as st

from capacity.base.rows import to_csv
from capacity.report.figures import Chart
from capacity_app import components
from capacity_app.boundary import plain
from capacity_app.downloads import download

MISSING = "-"  # a cell without a value
PNG_HTML = '<button type="button">PNG</button>'
PNG_JS = """
const SCALE = 2;
export default function ({ data, parentElement }) {
  parentElement.querySelector("button").onclick = () => {
    const picture = new Image();
    picture.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = SCALE * picture.width;
      canvas.height = SCALE * picture.height;
      const context = canvas.getContext("2d");
      context.scale(SCALE, SCALE);
      context.drawImage(picture, 0, 0);
      canvas.toBlob((blob) => {
        const link = document.createElement("a");
        link.href = URL.createObjectURL(blob);
        link.download = data.name;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      });
    };
    picture.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(data.svg);
  };
}
"""


def files(drawn: Chart) -> None:
    """The chart in words and numbers, and its files; each picture with title, subject and date."""
    st.caption(plain(drawn.alt))
    alt = f"The numbers of: {drawn.title}"
    st.dataframe(list(drawn.rows), hide_index=True, alt=alt, placeholder=MISSING)
    with st.container(horizontal=True):
        download("CSV", f"{drawn.name}.csv", lambda: to_csv(drawn.rows), mime="text/csv", place="chart")
        download("SVG", f"{drawn.name}.svg", drawn.svg, mime="image/svg+xml", place="chart")
        download("HTML", f"{drawn.name}.html", drawn.html, mime="text/html", place="chart")
        components.mount(
            "png",
            html=PNG_HTML,
            js=PNG_JS,
            css=components.BUTTON_CSS,
            data={"svg": drawn.svg(), "name": f"{drawn.name}.png"},
            key=f"png_{drawn.name}",
        )
    st.caption(
        "Pictures are dark on white in either theme, and say of what they are and when they were made."
    )
