"""`--output`: the kind of a file is named, or identified by the suffix; older flags still work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capacity.cli.output_flag import KINDS, replace_output_flags

SIMULATE = [kind.parameter for name, kind in KINDS.items() if name not in ("rows", "store")]
LOAD = ("llama-3.1-8b", "--gpu", "h100", "--input-len", "64", "--output-len", "8", "--batch-size", "1")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--output", "run.csv"], ["--records", "run.csv"]),
        (["--output=now.toml", "--seed", "1"], ["--write-deployment", "now.toml", "--seed", "1"]),
        (["--output", "series=run.csv"], ["--series", "run.csv"]),
        (["--output=trace=a=b.jsonl"], ["--save-trace", "a=b.jsonl"]),
        (["--records", "run.csv"], ["--records", "run.csv"]),
        (["--output", "folder/a=b.csv"], ["--records", "folder/a=b.csv"]),
    ],
)
def test_output_path_goes_to_the_flag_of_its_kind(given: list[str], expected: list[str]) -> None:
    assert replace_output_flags(given, SIMULATE) == expected


def test_output_of_a_verb_without_kinds_is_left_alone() -> None:
    assert replace_output_flags(["--output", "plan"], ["output", "model"]) == ["--output", "plan"]


@pytest.mark.parametrize("value", ["page.html", "recrods=run.csv", "records2=run.csv", "run", ""])
def test_output_without_a_known_kind_is_rejected_in_one_line(run: Any, value: str) -> None:
    code, out, err = run("simulate", *LOAD, "--output", *([value] if value else []))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "give the kind of file, as records=" in err
    assert all(kind in err for kind in ("series", "timeline", "gantt", "trace", "deployment"))


def test_deployment_is_written_by_new_and_older_flag(run: Any, tmp_path: Path) -> None:
    new, old = tmp_path / "new.toml", tmp_path / "old.toml"
    assert run("estimate", *LOAD, "--output", str(new)).code == 0
    assert run("estimate", *LOAD, "--write-deployment", str(old)).code == 0
    assert new.read_text() == old.read_text() != ""


def test_help_shows_output_and_no_older_flag(run: Any) -> None:
    for verb in ("simulate", "sweep", "frontier", "validate", "calibrate", "estimate"):
        text = run(verb, "--help-all").out
        assert "--output" in text
        assert not [
            f for f in ("--records", "--store", "--export", "--chart", "--out ", "--write-dep") if f in text
        ]
