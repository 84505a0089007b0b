"""Write files completely or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capacity.base.errors import InvalidInput


@contextmanager
def replaced_file(path: str | Path, advice: str = "") -> Iterator[Path]:
    """Yield the path of a temporary file that replaces `path` when the block ends; after an error, `path` is unchanged.

    A device, a pipe, and a file in a folder that does not accept new files are written directly. Raises InvalidInput,
    whose text ends with `advice`, if the file cannot be written.
    """
    if "\0" in str(path):
        raise InvalidInput(f"cannot write {str(path)!r}: it contains a null character{advice}")
    target = Path(path)
    target = target.resolve() if target.is_symlink() else target
    draft = target.with_name(f".{target.name[:200]}.{os.getpid()}")
    if target.exists() and not (target.is_file() and os.access(target.parent, os.W_OK)):
        draft = target
    try:
        yield draft
        if draft is not target:
            if target.exists():
                draft.chmod(target.stat().st_mode)
            draft.replace(target)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}{advice}") from None
    finally:
        if draft is not target:
            draft.unlink(missing_ok=True)


def write_file(path: str | Path, content: str | bytes, advice: str = "") -> None:
    """Write a file completely, or leave it unchanged. Raises InvalidInput with `advice` if it cannot be written."""
    with replaced_file(path, advice) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
