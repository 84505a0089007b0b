"""Charts of answers, as plotly figures with the words and the table that say the same."""

from capacity.figures.chart import PALETTE, Chart, layout, pattern, symbol

__all__ = ["PALETTE", "Chart", "layout", "pattern", "symbol"]
