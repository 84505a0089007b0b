"""Files from outside: whatever they are, reading ends, within bounds, with the bytes or with one line."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest

from capacity.base import external_files
from capacity.base.errors import MalformedFile
from capacity.base.external_files import (
    MAX_BYTES,
    outside_path,
    parse_json,
    parse_toml,
    read_bytes,
    read_text,
)

LIMIT = MAX_BYTES["a deployment"]
has_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")


def test_plain_and_gzip_are_read_alike(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"\xef\xbb\xbfa = 1\n")
    (tmp_path / "packed").write_bytes(gzip.compress(b"a = 1\n"))
    assert read_text(tmp_path / "plain", "a deployment") == read_text(tmp_path / "packed", "a deployment")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MalformedFile, match="not UTF-8 text"):
        read_text(tmp_path / "binary", "a deployment")


def test_size_counts_what_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(gzip.compress(b" " * (LIMIT + 1)))
    (tmp_path / "full").write_bytes(b" " * LIMIT)
    assert len(read_bytes(tmp_path / "full", "a deployment")) == LIMIT
    with pytest.raises(MalformedFile, match="has more than 262,144 bytes, the limit for a deployment"):
        read_bytes(tmp_path / "bomb", "a deployment")
    assert len(read_bytes(tmp_path / "bomb", "a deployment", cut=True)) == LIMIT


@pytest.mark.parametrize("kept", [1, 12, 30, -1])
def test_damaged_gzip_is_one_line(tmp_path: Path, kept: int) -> None:
    packed = gzip.compress(os.urandom(100))
    (tmp_path / "cut").write_bytes(packed[:kept] if kept > 1 else packed[:2] + b"\x08\x00rubbish" * 4)
    with pytest.raises(MalformedFile, match="gzip data"):
        read_bytes(tmp_path / "cut", "a deployment")


def test_devices_and_folders(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match="is a folder"):
        read_bytes(tmp_path, "a deployment")
    if os.path.exists("/dev/zero"):  # noqa: PTH110
        with pytest.raises(MalformedFile, match="has more than"):
            read_bytes("/dev/zero", "a deployment")
        assert read_bytes("/dev/null", "a deployment") == b""


@has_pipes
def test_a_pipe_is_read_while_somebody_writes_and_else_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_files, "PIPE_TIMEOUT_S", 0.3)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(MalformedFile, match=r"no data within 0.3 s"):
        read_bytes(pipe, "a deployment")
    writer = threading.Thread(target=pipe.write_bytes, args=(b"x" * 200_000,))
    writer.start()
    assert read_bytes(pipe, "a deployment") == b"x" * 200_000
    writer.join()


@pytest.mark.parametrize("name", ["n" * 300, "~nosuchuser/x", "a\0b", "x" * 100_000])
def test_names_that_no_file_has(name: str) -> None:
    with pytest.raises(MalformedFile) as refused:
        outside_path(name)
    assert len(str(refused.value)) < 400


def test_a_link_in_a_loop(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(MalformedFile, match="cannot be read"):
        read_bytes(tmp_path / "loop", "a deployment")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5_000, "nul", "", "[1", '{"a": 1e}']
)
def test_json_of_any_depth_and_length(text: str) -> None:
    with pytest.raises(MalformedFile, match="not JSON"):
        parse_json(text, "text")


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "9" * 5_000, "a = ", "[[a", "= 1"])
def test_toml_of_any_depth_and_length(text: str) -> None:
    with pytest.raises(MalformedFile, match="not TOML"):
        parse_toml(text, "text")
