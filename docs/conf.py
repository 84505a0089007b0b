"""The handbook as a site: `sphinx-build -W docs site`, pages as they stand here and the API from its docstrings."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]

project = "capacity"
author = "The authors of capacity"
copyright = f"{author}, Apache License 2.0"
release = version = _PROJECT["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinxcontrib.mermaid"]
root_doc = "README"
exclude_patterns = ["made_of_code.py", "sbom.py", "site"]
html_theme = "furo"
html_title = f"capacity {version}"
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
suppress_warnings = ["myst.header"]

default_role = "literal"  # docstrings quote names with single backticks
autodoc_member_order = "groupwise"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"


def _whole_tree(_: object, page: str, source: list[str]) -> None:
    """The list of pages for the sidebar, which the first page has as a table for whoever reads it as a file."""
    if page == root_doc:
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def _front_door(app: Any, problem: Exception | None) -> None:
    if problem is None:
        shutil.copy(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _whole_tree)
    app.connect("build-finished", _front_door)
