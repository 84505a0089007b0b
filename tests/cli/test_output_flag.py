"""`--output`: the kind of a file is named, or identified by the suffix; older flags still work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capacity.cli.output_flag import KINDS, OUTPUT_OF_VERB, replace_output_flags
from capacity.report.figures import picture

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


RUN = (*LOAD[:-2], "--request-rate", "8", "--num-prompts", "20")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("gantt=run.pdf", "must end in .html, .svg or .png, not .pdf"),
        ("records=run.png", "must end in .csv, not .png"),
        ("gantt=nowhere/run.html", "the folder {here}/nowhere does not exist"),
        ("series=file/run.csv", "{here}/file is not a folder"),
        ("timeline=.", "it is a folder; name a file"),
        (f"trace={'a' * 300}", "File name too long"),
    ],
)
def test_output_that_cannot_be_written_is_rejected_before_the_run(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    monkeypatch.setattr("capacity.simulate", None)  # a run would be a TypeError
    code, out, err = run("simulate", *RUN, "--output", path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert problem.format(here=tmp_path) in err


def test_chart_without_matplotlib_is_rejected_before_the_run(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture, "find_spec", lambda _: None)  # as where it is not installed
    for verb in ("simulate", "batching", "frontier", "charts"):
        path = f"gantt={tmp_path / 'g.png'}" if verb == "simulate" else str(tmp_path / "g.png")
        gpu = ("--gpus" if verb == "frontier" else "--gpu", "h100")
        code, out, err = run(verb, "llama-3.1-8b", *gpu, "--output", path)
        assert (code, out, err) == (2, "", f"InvalidInput: {picture.MATPLOTLIB_NEEDED}\n")


def test_folder_and_file_are_not_interchangeable(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for verb, kind in OUTPUT_OF_VERB.items():
        positional = () if verb in ("validate", "curve") else ("llama-3.1-8b",)
        code, out, err = run(verb, *positional, "--output", str(file if kind.folder else tmp_path))
        assert (code, out) == (2, "")
        problem = "it is a file, and a folder is needed" if kind.folder else "it is a folder; name a file"
        assert (kind.drawn and "matplotlib" in err) or problem in err, verb


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_answer_and_other_files_survive_a_full_disk(run: Any, tmp_path: Path) -> None:
    records = tmp_path / "records.csv"
    flags = ("--output", "timeline=/dev/full", "--output", f"records={records}", "--format", "json")
    ran = run("simulate", *RUN, *flags)
    assert (ran.code, ran.json["completed"]) == (2, 20)
    assert ran.err == "InvalidInput: cannot write /dev/full: No space left on device\n"
    assert len(records.read_text().splitlines()) == 21
    failed = run("simulate", *RUN, "--output", "timeline=/dev/full", "--output", "records=/dev/full")
    assert failed.err.count("No space left") == 2
    assert "Latency, ms" in failed.out


def test_chart_has_the_format_of_its_suffix(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    begins = {"png": b"\x89PNG", "svg": b"<svg", "html": b"<!doctype html>"}
    for suffix, begin in begins.items():
        path = tmp_path / f"lanes.{suffix}"
        assert run("simulate", *RUN, "--output", f"gantt={path}").code == 0
        assert path.read_bytes().startswith(begin)
