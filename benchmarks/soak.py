"""Soak: mixed questions from several threads, and dashboard sessions, for as long as is wanted; memory must stay flat.

`python benchmarks/soak.py MINUTES [THREADS] [SESSIONS] [PAUSE_S]`, 30 8 50 for the long form. Exits with 1 if an answer
differs from the same question's first, anything but an answer came, or memory grew by more than 5 % after the first
third. Each session looks at a page for `PAUSE_S` seconds on average (4.5 by default).
The dashboard's sessions come by its own protocol to a server of its own, and its memory counts too.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import capacity

MOST_GROWTH = 0.05
GPUS = ("h100", "h200", "a100", "l4", "b200")
MODELS = ("llama-3.2-1b", "llama-3.1-8b", "qwen3-30b-a3b")
SHORT = {"input_len": 200, "output_len": 20}
QUESTIONS: tuple[Callable[[str, str, int], Any], ...] = (
    lambda model, gpu, n: capacity.fit(model, gpu=gpu, max_model_len=1024 + 16 * n),
    lambda model, gpu, n: capacity.estimate(
        model, gpu=gpu, max_model_len=4096, batch_size=1 + n % 64, **SHORT
    ),
    lambda model, gpu, n: capacity.simulate(
        model, gpu=gpu, max_model_len=4096, request_rate=5, num_prompts=50, seed=n % 97, **SHORT
    ),
    lambda model, gpu, n: capacity.explain(model, gpu=gpu, max_model_len=4096, batch_size=1 + n % 8, **SHORT),
    lambda model, _, n: capacity.kv((model,), contexts=(1024 + n % 50,)),
    lambda model, gpu, n: capacity.from_vllm(f"vllm serve {model} --max-num-seqs {1 + n % 500}", gpu=gpu),
)
DOES_NOT_FIT = "does not fit"


def asked(number: int) -> tuple[int, str]:
    """The number-th question's kind, and its answer as text."""
    question = QUESTIONS[number % len(QUESTIONS)]
    model, gpu = MODELS[number % len(MODELS)], GPUS[number // 3 % len(GPUS)]
    try:
        answer = question(model, gpu, number % 97)
        return number % len(QUESTIONS), json.dumps(answer.to_dict()) if hasattr(answer, "to_dict") else str(
            answer
        )
    except capacity.DoesNotFit:
        return number % len(QUESTIONS), DOES_NOT_FIT


def rss_bytes(process: int | str = "self") -> int:
    """Memory that a process holds now."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Samples:
    """Memory over the time: how much it grew from the first third on, by the middle of what was seen there."""

    bytes_held: list[int] = field(default_factory=list)

    def growth(self) -> float:
        """Of the last third over the second."""
        third = len(self.bytes_held) // 3
        early, late = self.bytes_held[third : 2 * third], self.bytes_held[-third:]
        return median(late) / median(early) - 1


def soak(minutes: float, threads: int = 8, sessions: int = 0, pause_s: float = 4.5) -> int:
    """The exit code; prints a line every tenth of the time. Questions and sessions run side by side."""
    end_s = time.monotonic() + 60 * minutes
    wrong: list[str] = []
    ours, servers = Samples(), Samples()
    counts: Counter[str] = Counter()
    first: dict[int, int] = {}
    numbers = itertools.count()
    workers = [
        threading.Thread(target=_ask, args=(end_s, numbers, first, counts, wrong)) for _ in range(threads)
    ]
    with _dashboard(sessions, end_s, pause_s, wrong) as server:
        for worker in workers:
            worker.start()
        for tick in range(30):
            time.sleep(max(end_s - time.monotonic(), 0) if tick == 29 else 2 * minutes)
            gc.collect()
            ours.bytes_held.append(rss_bytes())
            if server is not None:
                servers.bytes_held.append(sum(map(rss_bytes, (server, *_children(server)))))
            if tick % 3 == 2:
                held = [
                    f"{samples.bytes_held[-1] / 2**20:.1f} MiB"
                    for samples in (ours, servers)
                    if samples.bytes_held
                ]
                print(f"{counts['answers']:,} answers, {', server '.join(held)}", flush=True)
        for worker in workers:
            worker.join()
    growth = []
    if threads:
        growth.append(ours.growth())
        print(f"API: {counts['answers']:,} answers by {threads} threads, {growth[-1]:+.1%} of memory")
    if sessions:
        growth.append(servers.growth())
        print(
            f"dashboard: {sessions} sessions at once, {growth[-1]:+.1%} of the memory of its server and workers"
        )
    print(f"{len(wrong)} wrong", *wrong, sep="\n")
    return 1 if wrong or max(growth) > MOST_GROWTH else 0


def _ask(
    end_s: float, numbers: Iterator[int], first: dict[int, int], counts: Counter[str], wrong: list[str]
) -> None:
    """One thread's questions, until the time is over."""
    period = len(QUESTIONS) * len(MODELS) * len(GPUS) * 97
    while time.monotonic() < end_s and len(wrong) < 5:
        number = next(numbers) % period
        try:
            _, text = asked(number)
            if first.setdefault(number, hash(text)) != hash(text):
                wrong.append(f"question {number} has two answers")
        except Exception as error:
            wrong.append(f"question {number}: {type(error).__name__}: {error}")
        counts["answers"] += 1


@contextmanager
def _dashboard(sessions: int, end_s: float, pause_s: float, wrong: list[str]) -> Iterator[int | None]:
    """A dashboard with so many visitors: its server's process; None without visitors."""
    if not sessions:
        yield None
        return
    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    from screenshots import dashboard_server

    with tempfile.TemporaryDirectory() as folder, dashboard_server(Path(folder, "log.txt")) as address:
        program = [
            sys.executable,
            str(Path(__file__).with_name("dashboard_sessions.py")),
            address,
            str(sessions),
        ]
        seconds = str(end_s - time.monotonic())
        with subprocess.Popen(
            [*program, seconds, str(pause_s)], stdout=subprocess.PIPE, text=True
        ) as visitors:
            yield _listens_at(int(address.rpartition(":")[2]))
            said = visitors.communicate()[0]
        print(said.strip())
        if visitors.returncode or "wrong=[]" not in said:
            wrong.append(f"a visitor: {said[-2000:]}")
        log = Path(folder, "log.txt").read_text(encoding="utf-8", errors="replace")
        if "Traceback" in log:
            wrong.append(f"the server's log: {log[-2000:]}")


def _children(process: int) -> list[int]:
    """The worker processes of a server."""
    found = [thread.read_text().split() for thread in Path(f"/proc/{process}/task").glob("*/children")]
    return [int(child) for children in found for child in children]


def _listens_at(port: int) -> int:
    """The process whose command line names the port."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f"--server.port={port}".encode() in entry.read_bytes().split(b"\0"):
                return int(entry.parent.name)
    raise RuntimeError(f"nobody listens at {port}")


if __name__ == "__main__":
    wanted = [float(word) for word in sys.argv[1:]]
    sys.exit(soak(wanted[0], *map(int, wanted[1:3]), *wanted[3:4]))
