"""Charts of answers as plotly figures, with an alternative text and the table of their numbers."""

from capacity.report.figures.chart import Chart

__all__ = ["Chart"]
