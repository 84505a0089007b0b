"""Launches on disk, as `plan --output` leaves them."""

from __future__ import annotations

from pathlib import Path

from capacity.deployment.command_words import Launch


def written(launch: Launch, folder: Path) -> str:
    """The launch on disk as `plan --output` leaves it; returns what a user gives to be read."""
    for name, text in launch.files:
        (folder / name).write_text(text, encoding="utf-8")
    script = folder / "launch.sh"
    script.write_text(f"#!/bin/sh\n# as planned\n{launch.text}\n", encoding="utf-8")
    scripts = [name for name, _ in launch.files if name.endswith(".sh")]
    return str(folder / scripts[0] if scripts else script)
