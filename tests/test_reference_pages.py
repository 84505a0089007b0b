"""The generated reference: every command, visible flag and schema is on a page."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from capacity.base.registry import VERBS
from capacity.cli.verbs import command_of
from capacity.report.schemas import schema_names

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_command_page_lists_every_command_and_visible_flag(reference: ModuleType) -> None:
    page = "\n".join(reference.command_page())
    sections = dict(re.findall(r"^### (\S+)\n(.+?)(?=^##)", page, re.M | re.S))
    assert sections.keys() == {verb.name for verb in VERBS}
    for verb in VERBS:
        for option in command_of(verb).params:
            if option.param_type_name == "option" and option.name != "help" and not option.hidden:
                assert f"{option.opts[0]}" in sections[verb.name], (verb.name, option.opts)


def test_schema_page_lists_every_schema_and_links_nested_records(reference: ModuleType) -> None:
    page = "\n".join(reference.schema_page())
    assert set(re.findall(r"^## (\S+)$", page, re.M)) >= set(schema_names())
    headings = {heading.lower() for heading in re.findall(r"^### (\S+)$", page, re.M)}
    assert set(re.findall(r"\]\(#(\S+?)\)", page)) <= headings
