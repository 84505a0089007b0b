"""Uploaded files, stored under their content hash for the library and its worker processes."""

import hashlib
import os
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

MAX_FILES = 32  # files of all sessions; the oldest are deleted


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="capacity-uploads-"))


def store_upload(upload: Any) -> Path:
    """Store a streamlit upload under its sanitised name, and return its path."""
    content: bytes = upload.getvalue()
    name = re.sub(r"[^A-Za-z0-9._-]", "_", Path(upload.name).name).lstrip(".")[-80:] or "upload"
    path = _folder() / hashlib.sha256(content).hexdigest()[:16] / name
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        os.utime(path.parent)
    else:
        path.write_bytes(content)
        oldest_first = sorted(_folder().iterdir(), key=lambda folder: folder.stat().st_mtime)
        for folder in oldest_first[:-MAX_FILES]:
            shutil.rmtree(folder, ignore_errors=True)
    return path


def hide_folders(text: str) -> str:
    """Replace the paths of uploaded files in a message with file names."""
    return re.sub(re.escape(str(_folder())) + r"/[0-9a-f]{16}/", "", text)
