"""Uploaded files, kept by their content where the library's readers and its worker processes find them."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

KEPT = 32  # files of a server, all sessions together: the oldest go first


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="capacity-uploads-"))


def kept(upload: Any) -> Path:
    """The file of a streamlit upload. Its name keeps what readers go by (the ending) and nothing else of the user's."""
    content: bytes = upload.getvalue()
    path = _folder() / f"{hashlib.sha256(content).hexdigest()[:16]}{_ending(upload.name)}"
    if path.exists():
        os.utime(path, (time.time(), time.time()))
    else:
        path.write_bytes(content)
        _forget()
    return path


def _ending(name: str) -> str:
    """`.csv`, `.jsonl.gz`: letters and digits alone."""
    found = re.search(r"(\.[A-Za-z0-9]{1,8})?(\.gz)?$", Path(name).name)
    return found.group(0).lower() if found else ""


def _forget() -> None:
    files = sorted(_folder().iterdir(), key=lambda path: path.stat().st_mtime)
    for path in files[:-KEPT]:
        path.unlink(missing_ok=True)
