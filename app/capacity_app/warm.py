"""What every page needs and takes long to import: all of it, once, before any session draws.

plotly looks for a pandas that is loaded, and stumbles over one that another thread is only just loading.
"""

from __future__ import annotations

import importlib

MODULES = (
    "pandas",
    "plotly.graph_objects",
    "pyarrow",
    "capacity.answers.explain",
    "capacity.report.tables",
    "capacity.report.views.memory_parts",
)


def warm() -> None:
    """Import them."""
    for module in MODULES:
        importlib.import_module(module)
