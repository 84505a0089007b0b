"""What the fuzzer kept and found, replayed: every parser answers, or refuses in one clean line, soon."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from fuzz import KEPT, seeds
from parsers import PARSERS, fault


def kept() -> list[bytes]:
    with tarfile.open(KEPT) as archive:
        members = [archive.extractfile(member) for member in archive.getmembers()]
        return [member.read() for member in members if member is not None]


def test_what_is_kept_is_small_and_of_every_parser() -> None:
    assert KEPT.stat().st_size < 100_000
    assert {raw.partition(b"\n")[0].decode() for raw in kept()} == set(PARSERS)


@pytest.mark.parametrize("parser", sorted(PARSERS))
def test_every_input_is_answered_or_refused_in_a_line(parser: str, tmp_path: Path) -> None:
    file = tmp_path / ("input.json" if parser == "config.json" else "input.toml")
    faults = [
        f"{wrong}\n    {raw[:200]!r}"
        for raw in (*seeds(), *kept())
        if raw.partition(b"\n")[0].decode() == parser
        and (wrong := fault(parser, raw.partition(b"\n")[2], file)) is not None
    ]
    assert faults == [], "\n".join(faults)


def test_a_fault_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge itself: an error of another kind, and a line with an escape in it."""
    import parsers

    def broken(path: str) -> object:
        raise KeyError(path)

    monkeypatch.setattr(parsers, "PARSERS", {"sweep": parsers.Parser(broken, ())})
    assert "KeyError" in str(fault("sweep", b"", tmp_path / "x.toml"))
