"""Files that are written: complete, or as before, whichever write, sync or rename fails."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from write_faults import COMMANDS

from capacity.base.errors import InvalidInput
from capacity.base.output_files import replaced_file, write_file

TESTS = Path(__file__).parents[1]


def test_text_is_utf8_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("longer than what follows")
    path.chmod(0o640)
    write_file(path, "é")
    assert path.read_bytes() == "é".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    write_file(str(path), b"\x00")
    assert path.read_bytes() == b"\x00"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InvalidInput, match=r"cannot write .*nowhere.*: No such file.*; use another"):
        write_file(tmp_path / "nowhere" / "a.txt", "", "; use another")
    with pytest.raises(InvalidInput, match="null character"):
        write_file("a\0b", "")


def test_an_interrupted_file_is_as_before(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")

    def interrupted() -> None:
        with replaced_file(path) as draft:
            draft.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="no links or pipes there")
def test_a_link_stays_a_link_and_a_device_is_written_directly(tmp_path: Path) -> None:
    path, link = tmp_path / "a.txt", tmp_path / "link.txt"
    path.write_text("before")
    link.symlink_to(path)
    write_file(link, "after")
    assert link.is_symlink()
    assert path.read_text() == "after"
    write_file(os.devnull, "gone")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        write_file(pipe, "through")
        assert reader.communicate()[0] == "through"


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("records", "plan", "config"), marks=pytest.mark.ci),
        pytest.param(tuple(COMMANDS), marks=pytest.mark.slow),
    ],
    ids=len,
)
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs LD_PRELOAD and gcc")
def test_any_write_of_any_output_may_fail(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Each failure is one line, leaves every file complete or as it was, and the next run succeeds."""
    shim = tmp_path / "faulty_writes.so"
    source = TESTS / "base" / "faulty_writes.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
    folder = tmp_path / "outputs"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(TESTS / "write_faults.py"), str(shim), *names],
        cwd=folder,
        env={
            **os.environ,
            "LD_PRELOAD": str(shim),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "XDG_CONFIG_HOME": str(folder),
        },
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
    assert len(done.stdout.splitlines()) == len(names)
