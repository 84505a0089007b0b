"""The list of formats is the folder of formats: its modules, and the tables of its data file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from trace_texts import read

from capacity.base.errors import MalformedFile
from capacity.workload.traces import lines, trace_titles
from capacity.workload.traces.formats import trace_formats


def test_a_format_is_a_module_of_its_folder_or_a_table_of_its_file() -> None:
    folder = Path(lines.__file__).parent / "formats"
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    tables = set(tomllib.loads((folder / "tables.toml").read_text(encoding="utf-8")))
    assert {entry.name for entry in trace_formats()} == modules | tables
    assert all(entry.title in trace_titles() for entry in trace_formats())


def test_a_refusal_names_what_every_table_needs(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile) as refusal:
        read(tmp_path, "when,who\n1,2\n")
    for entry in trace_formats():
        assert not entry.tabular or ",".join(entry.needed) in str(refusal.value)
