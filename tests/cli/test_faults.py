"""What may befall a command while it works: signals, closed pipes, full and read-only disks, no memory, odd clocks.

For each: what is said (a line, never a traceback), what is kept, and what is left running, which is nothing.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from library import heed_interrupts
from sweep_files import HEAD

pytestmark = [pytest.mark.ci, pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no such signals")]

TAB = Path(__file__).parents[2] / "benchmarks" / "dashboard_sessions.py"
SMALL = "llama-3.2-1b --gpu h100 --isl 64 --osl 8"
SWEEP = HEAD + (
    'question = "simulate"\n[fixed]\nmodel = "llama-3.2-1b"\ngpu = "h100"\ninput_len = 200\noutput_len = 100\n'
    f"request_rate = 20\nnum_prompts = 20000\n[vary]\nseed = {list(range(400))}\n"
)
LONG = {  # commands that work for minutes
    "sweep": "sweep sweep.toml --store store.sqlite --workers 2",
    "plan": "plan llama-3.1-8b --gpus all --isl 2000 --osl 300 --request-rate 30 --num-prompts 20000 "
    "--slo ttft:p95:500ms --objective gpus --workers 2",
    "curve": f"curve {SMALL} --num-prompts 400000 --slo ttft:p95:500ms --rates 10,15,20,25,30,35,40,50,60,80 "
    "--replications 9",
    "simulate": f"simulate {SMALL} --request-rate 500 --num-prompts 10000000 --engine-loop core",
    "validate": "validate --device cpu --campaign standard --budget 10m --out measured",
}
SHORT = {
    "sweep": "sweep small.toml --store store.sqlite",
    "plan": f"plan {SMALL.replace('--gpu', '--gpus')} --request-rate 3 --num-prompts 60 "
    "--slo ttft:p95:900ms --objective gpus --max-gpus 1 "
    "--time-limit-s 2 --output planned",
    "curve": f"curve {SMALL} --num-prompts 60 --slo ttft:p95:500ms --rates 10",
    "simulate": f"simulate {SMALL} --request-rate 50 --num-prompts 3000 --records records.csv",
    "validate": "validate --device cpu --campaign quick --budget 3s --out measured",
}
BRIEF = {("plan", "SIGTERM"), ("simulate", "SIGINT")}
SIGNALS = ("SIGINT", "SIGTERM", "SIGKILL", "SIGHUP")


def matrix(verbs: dict[str, str], faults: tuple[str, ...], brief: set[tuple[str, str]]) -> list[Any]:
    """Every pair; those not in `brief` in the long form."""
    return [
        pytest.param(verb, fault, marks=[] if (verb, fault) in brief else pytest.mark.slow)
        for verb in verbs
        for fault in faults
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    (tmp_path / "small.toml").write_text(
        SWEEP.replace("20000", "200").replace(f"{list(range(400))}", "[1, 2, 3]")
    )
    return tmp_path


def _heed() -> None:
    """Whoever runs the tests may ignore these: under nohup, in the background."""
    heed_interrupts()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def began(line: str, folder: Path, **settings: Any) -> subprocess.Popen[str]:
    if line.startswith("validate"):
        pytest.importorskip("torch")
    program = settings.pop("program", ["-m", "capacity"])
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": _heed} | settings
    return subprocess.Popen(
        [sys.executable, *program, *line.split()], cwd=folder, start_new_session=True, text=True, **settings
    )


def members(session: int) -> list[int]:
    """Processes of a session that still run."""
    alive = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[3]) == session:
            alive.append(int(entry.parent.name))
    return alive


def nothing_left(session: int, within_s: float = 30.0) -> bool:
    """Wait until the session has no process: two seconds by design, more on a loaded machine."""
    end = time.monotonic() + within_s
    while members(session) and time.monotonic() < end:
        time.sleep(0.05)
    return not members(session)


def clean(text: str) -> bool:
    return "Traceback" not in text and "\x1b" not in text and len(text.splitlines()) <= 6


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no list of processes here")
@pytest.mark.parametrize(("verb", "name"), matrix(LONG, SIGNALS, BRIEF))
def test_a_signal_ends_all_of_it(verb: str, name: str, folder: Path) -> None:
    working = began(LONG[verb], folder)
    time.sleep(4.0)
    assert working.poll() is None, working.communicate()
    number = getattr(signal, name)
    working.send_signal(number)
    said, complained = working.communicate(timeout=60)
    assert working.returncode in (
        {130, -number} if name == "SIGINT" else {-number, *({3} if verb == "validate" else ())}
    )
    assert nothing_left(working.pid), "processes are left"
    if verb != "validate" or name == "SIGKILL":
        assert clean(complained), complained
    assert "Traceback" not in said
    if verb == "sweep" and (folder / "store.sqlite").exists():
        with sqlite3.connect(folder / "store.sqlite") as store:
            assert store.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.2, 0.4])
def test_a_signal_while_modules_load_prints_no_traceback(name: str, after_s: float, folder: Path) -> None:
    working = began(LONG["curve"], folder)
    time.sleep(after_s)
    working.send_signal(getattr(signal, name))
    said, complained = working.communicate(timeout=60)
    assert "Traceback" not in said + complained
    assert working.returncode == -getattr(signal, name)


def test_an_ascii_terminal_gets_question_marks(folder: Path) -> None:
    """With LC_ALL=C and without UTF-8 mode, Python's output fails on other characters."""
    settings = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    working = began("gpus", folder, env=os.environ | settings)
    said, complained = working.communicate(timeout=60)
    assert (working.returncode, complained) == (0, "")
    assert "?" in said


def descendants(ancestor: int) -> set[int]:
    """All processes that it has started, and those have, in whatever session."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, more = {ancestor}, True
    while more:
        more = bool(
            found < (found := found | {child for child, parent in parents.items() if parent in found})
        )
    return found - {ancestor}


@contextmanager
def a_dashboards_job(folder: Path) -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """A dashboard at work for a tab: its process and all others that it has started."""
    pytest.importorskip("streamlit")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dashboard = began(f"dashboard --no-browser --port {port}", folder)
    assert dashboard.stdout is not None
    address = dashboard.stdout.readline().split()[4]
    query = "model=llama-3.1-8b&engine=naive&rate=5&sim_requests=100000"  # on the Python engine: a minute
    tab = [sys.executable, str(TAB), "hold", address, "simulate", query]
    with subprocess.Popen(tab, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as watching:
        try:
            assert watching.stdout is not None
            assert watching.stdout.readline() == "at work\n"
            yield dashboard, descendants(dashboard.pid)
        finally:
            for process in (watching, dashboard):
                process.kill()
            dashboard.communicate()


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no list of processes here")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "SIGKILL" else pytest.mark.slow) for name in SIGNALS]
)
def test_a_dashboard_leaves_no_worker(name: str, folder: Path) -> None:
    with a_dashboards_job(folder) as (dashboard, others):
        assert len(others) >= 2  # the server, and who works for the tab
        dashboard.send_signal(getattr(signal, name))
        said, complained = dashboard.communicate(timeout=60)
        ends_s = time.monotonic() + 30.0
        while any(map(_command, others)) and time.monotonic() < ends_s:
            time.sleep(0.05)
        left = [command for each in others if (command := _command(each))]
        assert left == []
        assert clean(complained), complained
        assert "Traceback" not in said


def _small_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))


def _little_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (420 << 20, 420 << 20))


BACKWARDS = textwrap.dedent(
    """
    import itertools, sys, time
    instants = itertools.count(1.9e9, -3600.0)
    time.time = lambda: next(instants)
    from capacity.__main__ import main
    if __name__ == "__main__":
        sys.argv[0] = "capacity"
        main()
    """
)
KINDS = ("full disk", "full output", "closed pipe", "read-only", "no memory", "clock set back")


@pytest.mark.parametrize(
    ("verb", "kind"), matrix(SHORT, KINDS, {("sweep", "full disk"), *(("simulate", kind) for kind in KINDS)})
)
def test_it_says_what_befell_it_in_a_line(verb: str, kind: str, folder: Path) -> None:
    settings: dict[str, Any] = {}
    line, allowed = SHORT[verb], {2}
    match kind:
        case "full disk":
            settings["preexec_fn"] = _small_files
            allowed = {0, 2} if verb in ("curve", "plan") else {2}
        case "full output":
            settings["stdout"] = os.open("/dev/full", os.O_WRONLY)
        case "closed pipe":
            reader, writer = os.pipe()
            os.close(reader)
            settings["stdout"], allowed = writer, {141, *({0} if verb == "validate" else ())}
        case "read-only":
            for name in ("store.sqlite", "planned", "records.csv", "measured"):
                line = line.replace(f" {name}", f" /proc/{name}")
            allowed = {0} if verb == "curve" else {2}
        case "no memory":
            settings["preexec_fn"] = _little_memory
            line = line.replace("--num-prompts 3000", "--num-prompts 9000000")
            allowed = {0, 2}
        case "clock set back":
            (folder / "backwards.py").write_text(BACKWARDS)
            settings["program"], allowed = ["backwards.py"], {0}
    working = began(line, folder, **settings)
    if "stdout" in settings:
        os.close(settings["stdout"])
    _, complained = working.communicate(timeout=300)
    if verb == "validate":
        allowed |= {3}
        assert "Traceback" not in complained
    assert working.returncode in allowed, (working.returncode, complained)
    assert working.returncode == 0 or "Traceback" not in complained, complained
    if working.returncode == 2:
        assert clean(complained), complained
        assert complained.strip()
    assert not Path("/proc/self/stat").exists() or nothing_left(working.pid)
