"""Uploaded files, stored under their content hash for the library and its worker processes."""

import hashlib
import os
import re
import shutil
import tempfile
import threading
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

MAX_FILES = 32  # files of all sessions; the oldest are deleted
_LOCK = threading.Lock()  # of the folder: each session has its own thread


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="capacity-uploads-"))


def store_upload(upload: Any) -> Path:
    """Store a streamlit upload under its sanitised name, and return its path."""
    return store_file(upload.name, upload.getvalue())


def store_file(name: str, content: bytes) -> Path:
    """Store a file under its sanitised name, and return its path."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", Path(name).name).lstrip(".")[-80:] or "upload"
    with _LOCK:
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


def hide_folders_in(answer: Any) -> Any:
    """Return a copy of an answer; in its texts, file names replace the paths of uploaded files."""
    if isinstance(answer, str):
        return hide_folders(answer)
    if isinstance(answer, tuple):
        return tuple(map(hide_folders_in, answer))
    if is_dataclass(answer) and not isinstance(answer, type):
        shown = {each.name: hide_folders_in(getattr(answer, each.name)) for each in fields(answer)}
        return replace(answer, **shown)
    return answer
