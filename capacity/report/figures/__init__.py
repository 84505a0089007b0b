"""Charts of answers, as plotly figures with the words and the table that say the same."""

from capacity.report.figures.chart import PALETTE, Chart, bar_style, colour, layout, listed, symbol

__all__ = ["PALETTE", "Chart", "bar_style", "colour", "layout", "listed", "symbol"]
