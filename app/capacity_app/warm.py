"""What every page needs and takes long to import: all of it, once, before any session draws.

plotly looks for a pandas that is loaded, and stumbles over one that another thread is only just loading.
"""

from __future__ import annotations

import pandas  # noqa: F401
import plotly.graph_objects  # noqa: F401
import pyarrow  # type: ignore[import-untyped]  # noqa: F401

import capacity.answers.explain
import capacity.report.figures.memory
import capacity.report.tables  # noqa: F401
