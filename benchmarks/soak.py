"""Soak: mixed questions from several threads, and dashboard sessions, for as long as is wanted; memory must stay flat.

`python benchmarks/soak.py MINUTES [THREADS] [SESSIONS]`, 30 8 50 for the long form. Ends with 1 where an answer differs
from the same question's first, anything but an answer came, or memory grew by more than 5 % from the first third on.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
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


def rss_bytes() -> int:
    """Memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(minutes: float, threads: int, sessions: int) -> int:
    """The exit code; prints a line every tenth of the time."""
    end = time.monotonic() + 60 * minutes
    numbers, counts, wrong = itertools.count(), Counter[str](), list[str]()
    first: dict[int, int] = {}
    period = len(QUESTIONS) * len(MODELS) * len(GPUS) * 97

    def work() -> None:
        while time.monotonic() < end and len(wrong) < 5:
            number = next(numbers) % period
            try:
                _, text = asked(number)
                if first.setdefault(number, hash(text)) != hash(text):
                    wrong.append(f"question {number} has two answers")
            except Exception as error:
                wrong.append(f"question {number}: {type(error).__name__}: {error}")
            counts["answers"] += 1

    workers = [threading.Thread(target=work) for _ in range(threads)]
    samples = []
    for worker in workers:
        worker.start()
    for _ in range(10):
        time.sleep(max(end - time.monotonic(), 0) if _ == 9 else 6 * minutes)
        gc.collect()
        samples.append(rss_bytes())
        print(f"{counts['answers']:,} answers, {samples[-1] / 2**20:.1f} MiB", flush=True)
    for worker in workers:
        worker.join()
    growth = samples[-1] / samples[3] - 1
    print(
        f"API: {counts['answers']:,} answers by {threads} threads, {growth:+.1%} of memory, {len(wrong)} wrong"
    )
    if sessions:
        growth = max(growth, dashboard(sessions, wrong))
    print(*wrong, sep="\n")
    return 1 if wrong or growth > MOST_GROWTH else 0


def dashboard(sessions: int, wrong: list[str]) -> float:
    """Sessions of the dashboard's first page, one after the other; the growth of memory after the first third."""
    from capacity_app.launch import ENTRY
    from streamlit.testing.v1 import AppTest

    samples = []
    for number in range(sessions):
        page = AppTest.from_file(str(ENTRY), default_timeout=120)
        page.query_params["gpu"] = GPUS[number % len(GPUS)]
        page.run()
        if page.exception or not page.metric:
            wrong.append(f"session {number}: {page.exception}")
        del page
        gc.collect()
        samples.append(rss_bytes())
    growth = samples[-1] / samples[sessions // 3] - 1
    print(f"dashboard: {sessions} sessions, {samples[-1] / 2**20:.1f} MiB, {growth:+.1%} of memory")
    return growth


if __name__ == "__main__":
    wanted = [float(word) for word in sys.argv[1:]]
    sys.exit(
        soak(wanted[0], int(wanted[1]) if len(wanted) > 1 else 8, int(wanted[2]) if len(wanted) > 2 else 0)
    )
