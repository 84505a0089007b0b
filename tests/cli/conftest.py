"""The command, run in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from capacity.cli.main import main


class Ran(NamedTuple):
    """What one run of the command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        def refuse(token: str) -> None:
            raise AssertionError(f"{token} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run the command: exit code, stdout, stderr."""

    def call(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["capacity", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return Ran(int(stopped.value.code or 0), captured.out, captured.err)

    return call
