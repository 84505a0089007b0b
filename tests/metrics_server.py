"""A vLLM server's /metrics over a simulated day, as a process: `python metrics_server.py SETTINGS.json`.

The simulator serves the requests; the counters are those of its ledger. Each GET advances the clock by one interval, so
a day takes seconds; samples carry the simulated time. After `slow_from_s` all steps of the server take `slow_factor`
times as long. The address is printed on the first line. With `version`, the server states it at /version, as vLLM does.
"""

import json
import math
import sys
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from capacity.answers.engine_setup import setup_of
from capacity.base.record import make_from
from capacity.deployment import Pool, build
from capacity.pool.resolve import resolve
from capacity.simulator import simulate
from capacity.step.export import ScaledData
from capacity.workload import Workload

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
START_S = 1.8e9
PS_PER_S = 1e12
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
BOUNDS = {  # vLLM's
    "time_to_first_token_seconds": (
        0.001,
        0.005,
        0.01,
        0.02,
        0.04,
        0.06,
        0.08,
        0.1,
        0.25,
        0.5,
        0.75,
        1,
        2.5,
        5,
        7.5,
        10,
    ),
    "request_time_per_output_token_seconds": (
        0.01,
        0.025,
        0.05,
        0.075,
        0.1,
        0.15,
        0.2,
        0.3,
        0.4,
        0.5,
        0.75,
        1,
    ),
    "e2e_request_latency_seconds": (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    "request_prompt_tokens": TOKENS,
    "request_generation_tokens": TOKENS,
}


class Scaled:
    """Step times multiplied by one factor."""

    def __init__(self, inner: Any, factor: float) -> None:
        self.inner, self.factor = inner, factor

    def step_ps(self, shape: Any) -> int:
        return max(1, round(self.inner.step_ps(shape) * self.factor))

    def decode_piece(self, shape: Any) -> Any:
        piece = self.inner.decode_piece(shape)
        return (
            None
            if piece is None
            else piece._replace(
                base_ps=round(piece.base_ps * self.factor),
                context_ps=round(piece.context_ps * self.factor),
                window_context_ps=round(piece.window_context_ps * self.factor),
            )
        )

    def step_data(self) -> ScaledData:
        return ScaledData(inner=self.inner, prefill=self.factor, decode=self.factor)


@dataclass(frozen=True, kw_only=True)
class Day:
    """The requests of a server: arrival, first token and end in seconds, and lengths."""

    arrival_s: Any
    first_s: Any
    finish_s: Any
    prompt: Any
    output: Any


def serve_day(settings: dict[str, Any]) -> Day:
    """Simulate requests whose rate grows linearly from `rate` to `end_rate` over `seconds`."""
    rng = np.random.default_rng(settings.get("seed", 0))
    first, last, seconds = settings["rate"], settings["end_rate"], settings["seconds"]
    expected, at = 0.0, []
    while True:  # arrival times by the inverse of the integrated rate
        expected += rng.exponential()
        growth = (last - first) / seconds
        t = expected / first if not growth else (math.sqrt(first**2 + 2 * growth * expected) - first) / growth
        if t >= seconds:
            break
        at.append(t)
    arrival = np.array(at)
    prompt = np.clip(rng.lognormal(math.log(800), 0.6, len(at)), 16, 4000).astype(np.int64)
    output = np.clip(rng.lognormal(math.log(150), 0.6, len(at)), 4, 1000).astype(np.int64)
    pool = resolve("llama-3.1-8b", build(Pool, {"gpu": "h100", "engine": "vllm"}))
    setup, parts = setup_of(pool), []
    factors = (settings.get("factor", 1.0), settings.get("factor", 1.0) * settings.get("slow_factor", 1.0))
    for factor, chosen in zip(factors, split_at(arrival, settings.get("slow_from_s")), strict=True):
        if not chosen.any():
            continue
        workload = Workload(
            arrival_s=arrival[chosen], prompt_tokens=prompt[chosen], output_tokens=output[chosen]
        )
        times = Scaled(setup.step_times, factor)
        records = simulate(workload, make_from(type(setup), setup, step_times=times)).records
        parts.append(
            [getattr(records, f"{name}_ps") / PS_PER_S for name in ("arrival", "first_token", "finish")]
        )
    begin, token, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Day(arrival_s=begin, first_s=token, finish_s=end, prompt=prompt, output=output)


def split_at(arrival_s: Any, at_s: float | None) -> tuple[Any, Any]:
    before = arrival_s < (math.inf if at_s is None else at_s)
    return before, ~before


def metrics_text(day: Day, until_s: float) -> str:
    """Return /metrics at a simulated time: counters of completed requests, gauges of those in flight."""
    done = day.finish_s <= until_s
    further = np.maximum(day.output - 1, 1)
    values = {
        "time_to_first_token_seconds": day.first_s - day.arrival_s,
        "request_time_per_output_token_seconds": (day.finish_s - day.first_s) / further,
        "e2e_request_latency_seconds": day.finish_s - day.arrival_s,
        "request_prompt_tokens": day.prompt,
        "request_generation_tokens": day.output,
    }
    stamp = round((START_S + until_s) * 1e3)
    lines = []

    def add(name: str, value: float, labels: str = "") -> None:
        lines.append(f'vllm:{name}{{engine="0",model_name="{MODEL}"{labels}}} {value} {stamp}')

    for name, column in values.items():
        seen = column[done]
        for bound in (*BOUNDS[name], math.inf):
            add(
                f"{name}_bucket",
                float((seen <= bound).sum()),
                f',le="{"+Inf" if bound == math.inf else bound}"',
            )
        add(f"{name}_sum", float(seen.sum()))
        add(f"{name}_count", float(len(seen)))
    add("request_success_total", float(done.sum()), ',finished_reason="stop"')
    add("prompt_tokens_total", float(day.prompt[done].sum()))
    add("generation_tokens_total", float(day.output[done].sum()))
    add("num_requests_running", float(((day.arrival_s <= until_s) & ~done).sum()))
    add("num_requests_waiting", 0.0)
    return "\n".join(lines) + "\n"


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    day, clock = serve_day(settings), [0.0]

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text, found = json.dumps({"version": settings.get("version")}), self.path == "/version"
            if not found:
                text = metrics_text(day, clock[0])
                clock[0] += settings["interval"]
            self.send_response(404 if found and "version" not in settings else 200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Answers)
    print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
