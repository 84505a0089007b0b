"""Where a user's own files are: one folder for each kind, below the platform's configuration."""

import os
import sys
from pathlib import Path


def user_folder(kind: str) -> Path:
    """The folder of `kind` (profiles, models), which need not exist."""
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA", "~")).expanduser() / "capacity" / kind
    if sys.platform == "darwin":
        return Path("~/Library/Application Support/capacity").expanduser() / kind
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "capacity" / kind
