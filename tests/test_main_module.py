"""The command as a process: Ctrl-C while it is loaded, and terminals that lack characters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest


def command(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "capacity", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def loading(process: subprocess.Popen[bytes]) -> bool:
    """Whether it catches SIGINT by a handler of its own or Python's: the interpreter has started."""
    with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
        caught = next(line for line in status if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGINT - 1) & 1)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks into /proc")
@pytest.mark.parametrize("after_s", [0.05, 0.08, 0.12, 0.2, 0.3, 0.5])
def test_ctrl_c_while_it_is_loaded_is_one_line(after_s: float) -> None:
    """From the command's first line on; before that stands Python's own start."""
    process = command(
        "simulate", "llama-3.1-8b", "--gpu", "h100", "--isl", "100", "--osl", "100", "--rate", "50",
        "--num-prompts", "200000",
    )  # fmt: skip
    while not loading(process):
        time.sleep(0.001)
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert b"Traceback" not in err
    assert len(err.splitlines()) <= 4
    assert process.returncode == 130


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["models"],
        [
            "simulate",
            "llama-3.1-8b",
            "--gpu",
            "h100",
            "--isl",
            "10",
            "--osl",
            "2",
            "--rate",
            "1",
            "--num-prompts",
            "3",
        ],
    ],
)
def test_a_terminal_that_lacks_characters_gets_question_marks(arguments: list[str], encoding: str) -> None:
    process = command(*arguments, PYTHONIOENCODING=encoding)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    assert b"Traceback" not in err
    assert (b"?" in out) is (encoding != "utf-8")
    out.decode(encoding)
