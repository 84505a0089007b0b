"""Run a command that a page offers to copy."""

from __future__ import annotations

import sys

import pytest

from capacity.cli.main import main


def printed(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command line prints for a copied command."""
    words = command.replace("\\\n", " ").split()
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        main()
    return capsys.readouterr().out
