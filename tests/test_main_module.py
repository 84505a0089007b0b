"""The command as a process: Ctrl-C while it is loaded, and terminals that lack characters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest


def command(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "capacity", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


INTERRUPTED_WHILE = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(finder)
            os.kill(os.getpid(), signal.SIGINT)

finder = Finder()
sys.meta_path.insert(0, finder)
sys.argv = ["capacity", "simulate", *"llama-3.1-8b --gpu h100 --isl 10 --osl 2 --rate 1 --num-prompts 3".split()]
from capacity.__main__ import main
main()
"""


@pytest.mark.parametrize(
    "module",
    ["capacity.cli.main", "typer", "pydantic", "capacity.cli.answers", "numpy", "capacity.simulator"],
)
def test_ctrl_c_while_a_module_is_loaded_is_one_line(module: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE.format(module=module)],
        capture_output=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # the tests' own shell may ignore it
    )
    assert ran.stderr == b"interrupted\n"
    assert ran.returncode == 130


def test_who_ignores_ctrl_c_is_not_asked() -> None:
    """As in `sh -c 'capacity ... &'`: the caller has it ignored."""
    program = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + INTERRUPTED_WHILE.format(
        module="typer"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr


RUN = "simulate llama-3.1-8b --gpu h100 --isl 10 --osl 2 --rate 1 --num-prompts 3"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("arguments", "encoding"), [("models", "ascii"), ("models", "utf-8"), (RUN, "latin-1")]
)
def test_a_terminal_that_lacks_characters_gets_question_marks(arguments: str, encoding: str) -> None:
    process = command(*arguments.split(), PYTHONIOENCODING=encoding)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    assert b"Traceback" not in err
    assert (b"?" in out) is (encoding != "utf-8")
    out.decode(encoding)
