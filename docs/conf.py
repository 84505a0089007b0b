"""The handbook as a site: `sphinx-build -W docs site`, pages as they stand here and the API from its docstrings."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from reference import COMMANDS, SCHEMAS, write_pages

_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]

project = "capacity"
author = "The authors of capacity"
copyright = f"{author}, Apache License 2.0"
release = version = _PROJECT["version"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinxcontrib.mermaid"]
root_doc = "README"
exclude_patterns = ["site", "man", "template"]
nb_execution_mode = "off"  # notebooks are stored with their output; tests/test_notebooks.py runs them
html_theme = "furo"
html_title = f"capacity {version}"
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
suppress_warnings = ["myst.header"]

man_pages = [("reference/commands", "capacity", "Capacity planning for LLM inference", author, 1)]

default_role = "literal"  # docstrings quote names with single backticks
autodoc_member_order = "groupwise"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"


def _add_page_lists(_: object, page: str, source: list[str]) -> None:
    """Add the sidebar's lists of pages to the first page: one for each heading, from the links of its table."""
    if page != root_doc:
        return
    for heading, section in re.findall(r"^## ([^\n:]+)[^\n]*\n(.+?)(?=^## |\Z)", source[0], re.M | re.S):
        pages = "\n".join(re.findall(r"^\| \[.+?\]\((\S+)\.(?:md|ipynb)\)", section, re.M))
        if heading == "Reference":
            pages = f"{COMMANDS}\n{SCHEMAS}\n{pages}"
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{pages}\n```\n"


def _copy_first_page(app: Any, problem: Exception | None) -> None:
    if problem is None and app.builder.format == "html":
        shutil.copy(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    write_pages(Path(__file__).parent)
    app.connect("source-read", _add_page_lists)
    app.connect("build-finished", _copy_first_page)
