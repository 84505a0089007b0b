"""Load test of the HTTP service: `python benchmarks/service_load.py MINUTES [CLIENTS]`, 10 8 for the long form.

Each client has an address of its own (127.0.0.2, ...), sends one request at a time, and compares every answer with
that of the Python API. For the second half of the time, one more client keeps more requests waiting than its quota
allows: the service must refuse those with status 429 and keep answering the others. Exits with 1 if an answer is wrong,
another status came, or memory grew by more than 5 % from the second third to the last.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from dashboard_sessions import percentile
from soak import MOST_GROWTH, Samples, _children, rss_bytes

import capacity
from capacity.report.tables import render

QUESTIONS = 1_000  # more than the service's cache keeps
GREEDY = 160  # requests in flight of the client beyond its quota
MODEL = "llama-3.1-8b"


def question(number: int) -> dict[str, Any]:
    """Return the options of a question."""
    return {
        "gpu": "h100",
        "batch_size": 1 + number % 250,
        "input_len": 300 + 100 * (number // 250),
        "output_len": 100,
    }


@dataclass
class Load:
    """What the clients saw: seconds of each answer and refusal, by status, and what was wrong."""

    address: str
    expected: list[Any]
    half_s: float
    end_s: float
    seconds: dict[str, list[float]] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run_client(self, source: str, first: int, begin_s: float, kind: str) -> None:
        """Ask until the time ends. A new connection is opened only after an error."""
        time.sleep(max(begin_s - time.monotonic(), 0.0))
        connection = None
        number = first
        while time.monotonic() < self.end_s and len(self.wrong) < 10:
            number = (number + 1) % QUESTIONS
            began_s = time.monotonic()
            try:
                connection = connection or http.client.HTTPConnection(
                    urlsplit(self.address).netloc, timeout=300, source_address=(source, 0)
                )
                connection.request("POST", "/v1/estimate", json.dumps({"model": MODEL, **question(number)}))
                response = connection.getresponse()
                body = response.read()
            except OSError as error:
                self._add(kind, 0, 0.0, f"{type(error).__name__}: {error}")
                connection = None
                continue
            problem = None
            if response.status == 200:
                problem = (
                    None
                    if json.loads(body) == self.expected[number]
                    else f"question {number} has another answer"
                )
            elif response.status != 429 or kind != "greedy":
                problem = f"status {response.status}: {body[:200]!r}"
            self._add(kind, response.status, time.monotonic() - began_s, problem)
            if response.status == 429:
                time.sleep(0.2)

    def _add(self, kind: str, status: int, seconds: float, problem: str | None) -> None:
        with self.lock:
            if kind == "client":
                kind = (
                    "at the limit" if time.monotonic() < self.half_s else "beside a client beyond its quota"
                )
            self.seconds.setdefault(f"{kind}, status {status}", []).append(seconds)
            self.statuses[status] += 1
            if problem:
                self.wrong.append(problem)


def main(minutes: float, clients: int = 8) -> int:
    """Run the load test and print its figures; return the exit code."""
    expected = [
        json.loads(render(capacity.estimate(MODEL, **question(number)), "json"))
        for number in range(QUESTIONS)
    ]
    memory = Samples()
    command = [sys.executable, "-m", "capacity", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address, now_s = server.stdout.readline().split()[4], time.monotonic()
        load = Load(address, expected, now_s + 30 * minutes, now_s + 60 * minutes)
        threads = [
            threading.Thread(target=load.run_client, args=(f"127.0.0.{2 + n}", n * 100, 0.0, "client"))
            for n in range(clients)
        ]
        threads += [
            threading.Thread(target=load.run_client, args=("127.0.0.200", n * 7, load.half_s, "greedy"))
            for n in range(GREEDY)
        ]
        for thread in threads:
            thread.start()
        while time.monotonic() < load.end_s:
            time.sleep(min(2.0, 2 * minutes))
            memory.bytes_held.append(sum(map(rss_bytes, (server.pid, *_children(server.pid)))))
        for thread in threads:
            thread.join()
        server.terminate()
    for kind, seconds in sorted(load.seconds.items()):
        rate = len(seconds) / (30 * minutes)
        print(
            f"{kind}: {len(seconds):,}, {rate:.0f}/s, median {1e3 * median(seconds):.0f} ms, "
            f"p95 {1e3 * percentile(seconds, 95):.0f} ms, slowest {1e3 * max(seconds):.0f} ms"
        )
    held = f"{memory.bytes_held[len(memory.bytes_held) // 3] / 2**20:.0f} to {memory.bytes_held[-1] / 2**20:.0f} MiB"
    print(f"memory {memory.growth():+.1%} ({held}); {len(load.wrong)} wrong", *load.wrong[:10], sep="\n")
    return 1 if load.wrong or memory.growth() > MOST_GROWTH else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), *map(int, sys.argv[2:3])))
