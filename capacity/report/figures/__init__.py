"""Charts of answers as plotly figures, each with an alternative text and a table of its numbers."""

from capacity.report.figures.chart import Chart

__all__ = ["Chart"]
