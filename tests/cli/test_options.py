"""What all verbs share: spellings, formats, files that cannot be written, and a bar that stays away."""

from __future__ import annotations

import pytest

from capacity.base.errors import InvalidInput
from capacity.base.progress import progress_bar
from capacity.cli.options import (
    FORMATS,
    check_format,
    exit_with_message,
    show,
    with_dashes,
)


def test_formats_and_spellings() -> None:
    assert [check_format(format) for format in FORMATS] == list(FORMATS)
    with pytest.raises(InvalidInput, match="--format is 'xml': must be one of table, json, csv"):
        check_format("xml")
    assert with_dashes("max_num_seqs") == "max-num-seqs"


def test_text_ends_in_one_newline_and_failures_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show("a")
    show("b\n")
    with pytest.raises(SystemExit) as stopped:
        exit_with_message("two\nlines", 2)
    assert stopped.value.code == 2
    assert capsys.readouterr() == ("a\nb\n", "two lines\n")


def test_nobody_sees_a_bar_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((0.0, 0.5, 5.0, 9.0))
    monkeypatch.setattr("capacity.base.progress.time.monotonic", lambda: next(clock))
    with progress_bar() as progress:
        for done in (1, 2, 3):
            progress(done, 3)
    assert capsys.readouterr() == ("", "")
