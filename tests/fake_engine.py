#!/usr/bin/env python3
"""A stand-in for vLLM: `serve` answers as an OpenAI server on loopback, `bench serve` asks it and writes its results.

It prints what vLLM prints at start-up. FAKE_ENGINE plays what goes wrong: `dies` before serving, `hangs`, `dies-later`
under load, `stubborn` ignores SIGTERM and leaves a worker behind. FAKE_PIDS names a file that gets process numbers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PLAY = os.environ.get("FAKE_ENGINE", "")
TOKEN_S = 0.002
PROMPT_S = 1e-5


def option(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def noted(pid: int) -> None:
    if path := os.environ.get("FAKE_PIDS"):
        with Path(path).open("a") as file:
            file.write(f"{pid}\n")


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.send_response(503 if PLAY == "hangs" else 200)
        self.end_headers()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if PLAY == "dies-later":
            print("RuntimeError: CUDA error: an illegal memory access was encountered", flush=True)
            os._exit(1)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        time.sleep(PROMPT_S * len(asked["prompt"].split()))
        for _ in range(asked["max_tokens"]):
            time.sleep(TOKEN_S)
            self.wfile.write(b'data: {"choices":[{"text":" a"}]}\n\n')
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")


def serve() -> None:
    noted(os.getpid())
    print("INFO vLLM API server version 0.33.0", flush=True)
    if PLAY == "dies":
        print("ValueError: No available memory for the cache blocks.", flush=True)
        sys.exit(1)
    if PLAY == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        worker = subprocess.Popen(
            [sys.executable, "-c", "import signal,time;signal.signal(15, signal.SIG_IGN);time.sleep(600)"]
        )
        noted(worker.pid)
    weights_gib = 14.99 / int(option("--tensor-parallel-size", "1"))
    print(f"INFO Model loading took {weights_gib:.2f} GiB memory and 31.6 seconds")
    print("INFO GPU KV cache size: 422,112 tokens", flush=True)
    assert option("--host") == "127.0.0.1"
    ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()


def ask(address: str, prompt_tokens: int, output_tokens: int) -> tuple[float, float, list[float]]:
    body = json.dumps({"prompt": "a " * prompt_tokens, "max_tokens": output_tokens, "stream": True}).encode()
    start = last = time.perf_counter()
    instants = []
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(f"{address}/v1/completions", data=body)) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                instants.append(time.perf_counter())
    first, *_ = instants
    gaps = []
    last = first
    for instant in instants[1:]:
        gaps.append(instant - last)
        last = instant
    return start, first - start, gaps


def bench() -> None:
    noted(os.getpid())
    count, in_flight = int(option("--num-prompts")), int(option("--max-concurrency"))
    prompt, output = int(option("--random-input-len")), int(option("--random-output-len"))
    began = time.perf_counter()
    with ThreadPoolExecutor(in_flight) as pool:
        rows = list(pool.map(lambda _: ask(option("--base-url"), prompt, output), range(count)))
    seconds = time.perf_counter() - began
    document = {
        "backend": "vllm", "model_id": option("--model"), "num_prompts": count, "completed": count, "failed": 0,
        "request_rate": "inf", "burstiness": 1.0, "max_concurrency": in_flight, "duration": seconds,
        "total_input_tokens": count * prompt, "total_output_tokens": count * output,
        "request_throughput": count / seconds, "output_throughput": count * output / seconds,
        "input_lens": [prompt] * count, "output_lens": [output] * count,
        "start_times": [start for start, _, _ in rows], "ttfts": [ttft for _, ttft, _ in rows],
        "itls": [gaps for _, _, gaps in rows],
    }  # fmt: skip
    Path(option("--result-dir"), option("--result-filename")).write_text(json.dumps(document))


if __name__ == "__main__":
    threading.stack_size(2**18)
    serve() if sys.argv[1] == "serve" else bench()
