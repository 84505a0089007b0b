"""Points of a sweep: axes, keys and refusals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from sweep_files import HEAD, SPEC, make

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.planning.sweeps.sweep import sweep
from capacity.planning.sweeps.sweep_spec import points, read_sweep


def test_axes() -> None:
    grid = points(make(vary={"batch_size": (1, 2), "burstiness": (1.0, 2.0, 3.0)}))
    assert len(grid) == 6
    assert [tuple(point.options[name] for name in ("batch_size", "burstiness")) for point in grid] == [
        (size, burst) for size in (1, 2) for burst in (1.0, 2.0, 3.0)
    ]
    zipped = points(make(axes="zip", vary={"batch_size": (1, 2), "burstiness": (1.0, 2.0)}))
    assert [point.options["burstiness"] for point in zipped] == [1.0, 2.0]
    drawn = make(axes="random", samples=50, seed=3, vary={"batch_size": {"low": 1, "high": 512, "log": True}})
    sizes = [point.options["batch_size"] for point in points(drawn)]
    assert all(isinstance(size, int) and 1 <= size <= 512 for size in sizes)
    assert points(drawn) == points(drawn)
    assert len({point.key for point in points(drawn)}) == len(sizes)


def test_keys_follow_the_whole_specification(tmp_path: Path) -> None:
    one, other = points(make())[0], points(make(question="fit"))[0]
    assert one.key != other.key
    trace = tmp_path / "t.csv"
    keys = []
    for text in (
        "arrival_s,prompt_tokens,output_tokens\n0,5,5\n",
        "arrival_s,prompt_tokens,output_tokens\n0,5,6\n",
    ):
        path = trace.with_name(f"t{len(keys)}.csv")
        path.write_text(text)
        keys.append(points(make(question="simulate", vary={"trace": (str(path),)}))[0].key)
    assert keys[0] != keys[1]


@pytest.mark.parametrize("option", ["model", "trace", "price_file"])
def test_keys_follow_what_a_named_file_says(tmp_path: Path, option: str) -> None:
    file = tmp_path / "file"
    keys = []
    for text in ("one", "two", "three3"):
        file.write_text(text)
        os.utime(file, ns=(len(keys), len(keys)))
        asked = make(fixed={"model": "llama-3.1-8b", "gpu": "h100"} | {option: str(file)})
        keys.append(points(asked)[0].key)
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"vary": {"bath_size": (1,)}}, "did you mean 'batch_size'"),
        ({"axes": "zip", "vary": {"batch_size": (1, 2), "seed": (1,)}}, "must have equal lengths"),
        ({"axes": "random"}, "samples"),
        ({"vary": {"batch_size": {"low": 1, "high": 2}}}, "only random axes"),
        ({"vary": {"output_len": (1,)}}, r"both under \[fixed\] and \[vary\]"),
        ({"fixed": {"gpu": "h100"}}, "needs a model"),
        ({"vary": {"batch_size": tuple(range(1, 1200)), "seed": tuple(range(1200))}}, "at most 1,000,000"),
    ],
)
def test_refusals(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        points(make(**changes))


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    for text, problem in (
        ("[", "not TOML"),
        (HEAD, "question is missing"),
        (SPEC.replace("[fixed]", "x = 1\n[fixed]"), "unknown field"),
    ):
        path.write_text(text)
        with pytest.raises(MalformedFile, match=problem):
            read_sweep(path)
    with pytest.raises(MalformedFile, match="cannot be read"):
        read_sweep(tmp_path / "none.toml")
    bad = tmp_path / "bad.db"
    bad.write_text("not a database, but long enough to be taken for one" * 50)
    path.write_text(SPEC)
    with pytest.raises(MalformedFile, match="is not a sweep store"):
        sweep(path, bad)
    with pytest.raises(InvalidInput, match=r"\.csv"):
        sweep(path, tmp_path / "s.db", export_to=tmp_path / "rows.xlsx")
