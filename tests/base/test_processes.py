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


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no signal masks")
@pytest.mark.parametrize("wait_s", [0.0, 2.0])
def test_an_interrupt_from_the_terminal_ends_all_without_a_traceback(tmp_path: Path, wait_s: float) -> None:
    """At once, while the workers start, and when they work."""
    script = tmp_path / "program.py"
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
    time.sleep(wait_s)
    os.killpg(program.pid, signal.SIGINT)
    _, said = program.communicate(timeout=60)  # its pipes are closed once the workers are gone too
    assert said == "interrupted\n"
