"""What streamlit's theme leaves open: a page that begins at its top, figures in an even grid, text that can be read."""

from __future__ import annotations

import streamlit as st

STYLE = """
<style>
[data-testid="stMainBlockContainer"] { padding-top: 4.1rem !important; }
[data-testid="stElementContainer"]:has(> [data-testid="stHtml"] > style) { display: none; }
[data-testid="stMainBlockContainer"] h1 { font-size: 1.5rem; padding: 0 0 0.25rem 0; }
[data-testid="stMainBlockContainer"] h2, [data-testid="stMainBlockContainer"] h3 { font-size: 1.25rem; }
[class*="st-key-kpis-"] {
  display: grid !important;
  grid-template-columns: repeat(auto-fill, minmax(min(10.5rem, 45%), 1fr));
  gap: 0.6rem;
}
[class*="st-key-kpis-"] > * { width: 100% !important; height: 100%; }
[data-testid="stMetric"] { padding: 0.5rem 0.75rem; height: 100%; }
[data-testid="stMetricValue"] { font-size: 1.5rem; }
@media (max-width: 640px) { [data-testid="stMetricValue"] { font-size: 1.25rem; } }
[data-testid="stMetricLabel"], [data-testid="stMetricLabel"] * { white-space: normal !important; overflow: visible; }
[data-testid="stMetricValue"], [data-testid="stMetricValue"] *, [data-testid="stMetricDelta"],
[data-testid="stMetricDelta"] * {
  white-space: normal !important; overflow: visible !important; overflow-wrap: break-word; text-overflow: clip;
}
[data-testid="stMetricDelta"] { height: auto !important; border-radius: 0.5rem !important; }
[data-testid="stBaseButton-primary"], [data-testid="stBaseButton-primary"] * { color: #ffffff !important; }
[data-testid="stBaseButton-primary"], [data-testid="stMultiSelect"] [data-tag] {
  background-color: #0072B2 !important; border-color: #0072B2 !important; }
[data-testid="stWidgetLabel"], [data-testid="stWidgetLabel"] * { color: inherit !important; }
[data-testid="stCaptionContainer"], [data-testid="stMetricDelta"], [data-testid="stWidgetLabel"] { opacity: 1; }
[data-testid="stCaptionContainer"] *, [data-testid="stMetricDelta"] * { color: inherit !important; opacity: 1; }
[data-testid="stSkeleton"], [data-testid="stSkeleton"] * { animation: none !important; }
.js-plotly-plot [class*="tick"] text, .js-plotly-plot .legendtext, .js-plotly-plot text[class*="title"],
.js-plotly-plot .cbaxis text, .js-plotly-plot .cbtitle text,
.js-plotly-plot .annotation-text, .js-plotly-plot .textpoint text,
.js-plotly-plot .bartext-outside { fill: currentColor !important; }
</style>
"""


def apply() -> None:
    """Put the style on the page."""
    st.html(STYLE)
