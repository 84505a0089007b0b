"""Worker processes and Ctrl-C: one line, no traceback, nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from library import heed_interrupts
from long_forms import mostly_slow
from slowness import slowness

pytestmark = pytest.mark.ci  # many seconds

PROGRAM = textwrap.dedent(
    """
    import sys, time
    from capacity.base.processes import local_workers

    if __name__ == "__main__":
        try:
            with local_workers(2) as executor:
                print("started", flush=True)
                [executor.submit(time.sleep, 600) for _ in range(8)]
                time.sleep(600)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
    """
)


def began(folder: Path) -> subprocess.Popen[str]:
    """The program in a session of its own, its workers at work or about to be."""
    script = folder / "program.py"
    script.write_text(PROGRAM, encoding="utf-8")
    program = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        preexec_fn=heed_interrupts,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "started\n"
    return program


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no signal masks")
@pytest.mark.parametrize("wait_s", [0.0, 2.0])
def test_an_interrupt_from_the_terminal_ends_all_without_a_traceback(tmp_path: Path, wait_s: float) -> None:
    """At once, while the workers start, and when they work."""
    program = began(tmp_path)
    time.sleep(wait_s)
    os.killpg(program.pid, signal.SIGINT)
    _, said = program.communicate(timeout=60)  # its pipes are closed once the workers are gone too
    assert said == "interrupted\n"


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no such signals")
@pytest.mark.parametrize("ending", ["SIGKILL", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("wait_s", [0.0, 1.5])
def test_no_worker_outlives_who_started_it(tmp_path: Path, ending: str, wait_s: float) -> None:
    """Signals to the parent alone, as a service manager sends them; workers hold its pipes while they live."""
    program = began(tmp_path)
    time.sleep(wait_s)
    program.send_signal(getattr(signal, ending))
    begin = time.monotonic()
    program.communicate(timeout=60)
    limit_s = 2.0 if wait_s else 10.0  # a worker that is still importing ends after that
    assert time.monotonic() - begin < limit_s * max(slowness(), 1.0)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no such signals")
@pytest.mark.parametrize("ending", mostly_slow(["SIGINT", "SIGTERM", "SIGHUP"], ["SIGHUP"]))
def test_the_command_tells_what_it_has_and_dies_by_the_signal_it_was_sent(
    tmp_path: Path, ending: str
) -> None:
    command = (
        "simulate llama-3.1-70b --gpu h100 -tp 4 --isl 2000 --osl 900 --request-rate 1 --num-prompts 9999"
    )
    program = subprocess.Popen(
        [sys.executable, "-m", "capacity", *command.split(), "--engine-loop", "events"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts, cwd=tmp_path,
    )  # fmt: skip
    time.sleep(6.0)
    number = getattr(signal, ending)
    program.send_signal(number)
    said, complained = program.communicate(timeout=60)
    assert program.returncode in ((130, -number) if ending == "SIGINT" else (-number,))
    assert "Traceback" not in complained
    assert "interrupted" in said + complained
