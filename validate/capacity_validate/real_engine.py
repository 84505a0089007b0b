"""Start a real engine on loopback on the measured card, benchmark it with its own client, and always stop it.

The harness's own loop cannot show an engine's real performance; these results can. The launch command is the one that
the project generates, results are compared as in `capacity compare`, and values in the engine's log replace estimates.
"""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capacity.base.errors import CapacityError, InvalidInput
from capacity.deployment import Pool, build
from capacity.deployment.command_words import PORT, Launch, flag_words
from capacity.deployment.launch_writers import launch_command
from capacity.report.benchmark import RandomArrivals, bench_command
from capacity_validate.comparing import compare
from capacity_validate.comparison import Comparison

ENGINES = ("vllm", "sglang")
HOST = "127.0.0.1"
START_S = 900.0  # time to load, compile and capture graphs for a large model
LOAD_S = 600.0  # per load
STOP_S = 20.0  # time to exit before it is killed
POLL_S = 0.5
TAIL_LINES = 12
MAX_MODEL_LEN = 4096
DUMMY_WEIGHTS = ("--load-format", "dummy")  # the same flag in vLLM and SGLang
LOADS = ((1, 8), (8, 48), (32, 128))  # (concurrency, requests): low, medium and high load
INPUT_TOKENS, OUTPUT_TOKENS = 1000, 128


class EngineFailed(CapacityError):
    """Raised if the engine or its client failed; the message ends with its last output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMeasurement:
    """Benchmarks of a real engine: their comparison with predictions, and the files and settings to calibrate on."""

    comparison: Comparison
    files: tuple[Path, ...]  # results of the client, then the engine's log
    settings: Mapping[str, Any]  # `Pool` fields of the launch, with the GPU


def require_engine(engine: str) -> str:
    """Return the engine's name in lower case, without its version (`vllm` for `vllm@0.17`).

    Raises InvalidInput if it is unknown or not installed.
    """
    name = engine.strip().lower().partition("@")[0]
    if name not in ENGINES:
        raise InvalidInput(f"--engine is {engine!r}: must be one of {', '.join(ENGINES)}")
    found = shutil.which("vllm") if name == "vllm" else importlib.util.find_spec("sglang")
    if found is None:
        where = "no `vllm` on PATH" if name == "vllm" else "no package `sglang` in this Python environment"
        raise InvalidInput(f"--engine {name} is not installed ({where}): install it, or leave --engine out")
    return name


def serve_words(
    engine: str, checkpoint: str, pool: Pool, *, port: int, dummy_weights: bool = False
) -> tuple[str, ...]:
    """Return the launch command of an engine as words; the engine listens on loopback at `port`."""
    words = [*launch_command(engine, checkpoint, pool).words, *(DUMMY_WEIGHTS if dummy_weights else ())]
    words[words.index("--port") + 1] = str(port)
    if words[0] == "python":
        words[0] = sys.executable
    return (*words, "--host", HOST)


def bench_words(
    engine: str, checkpoint: str, arrivals: RandomArrivals, *, port: int, result: Path
) -> tuple[str, ...]:
    """Return the command of the engine's own benchmark client, which writes its result to the file `result`."""
    named = result.name if engine == "vllm" else str(result)
    command = client_command(engine, checkpoint, arrivals, port=port, result=named)
    base = f"http://{HOST}:{port}"
    words = tuple(base if word.startswith("http://") else word for word in command.words)
    if engine == "vllm":
        return (*words, "--result-dir", str(result.parent))
    return (sys.executable, *words[1:])


def client_command(
    engine: str, checkpoint: str, arrivals: RandomArrivals, *, port: int = PORT, result: str
) -> Launch:
    """Return the benchmark command: `sglang.bench_serving` with equal lengths for SGLang, else `vllm bench serve`."""
    if engine != "sglang":
        return bench_command(checkpoint, arrivals, slos=(), port=port, result=result)
    words = ["python", "-m", "sglang.bench_serving", "--backend", "sglang", "--model", checkpoint]
    flags = [
        ("--base-url", f"http://localhost:{port}"),
        ("--dataset-name", "random-ids"),
        ("--random-input-len", round(arrivals.input_tokens)),
        ("--random-output-len", round(arrivals.output_tokens)),
        ("--random-range-ratio", 1),
        ("--max-concurrency", arrivals.max_concurrency),
        ("--num-prompts", arrivals.requests),
        ("--output-details", True),
        ("--output-file", result),
    ]
    return Launch(words=(*words, *flag_words(flags)))


def measure_engine(
    engine: str,
    checkpoint: str,
    *,
    gpu: str,
    folder: Path,
    model: str | None = None,
    profiles: str | Path | None = None,
    loads: Sequence[tuple[int, int]] = LOADS,
    start_s: float = START_S,
    dummy_weights: bool = False,
    announce: Callable[[str], None] = lambda stage: None,  # noqa: ARG005
    **pool_fields: Any,
) -> EngineMeasurement:
    """Start `engine` with `checkpoint` (a Hugging Face name or folder), run `loads`, and compare with predictions.

    `engine` may name a version, as in vllm@0.17; without one, the version in the engine's log is used. `loads` are
    (concurrency, requests). `model` names the model if the checkpoint does not. With `dummy_weights` the engine uses
    random weights instead of downloading them. Results and the engine's log stay in `folder`. Raises InvalidInput if
    the engine is not installed or has another version, EngineFailed if it does not start or serve.
    """
    name = require_engine(engine)
    fields = {"gpu": gpu, "engine": engine.strip().lower(), "max_model_len": MAX_MODEL_LEN, **pool_fields}
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    serve = serve_words(name, checkpoint, build(Pool, fields), port=port, dummy_weights=dummy_weights)
    results: list[Path] = []
    announce(f"starting {name}")
    with run_process(serve, log) as process:
        wait_until_healthy(process, log, f"http://{HOST}:{port}/health", start_s=start_s)
        for in_flight, requests in loads:
            announce(f"{name} with {in_flight} requests in flight")
            result = folder / f"{name}-{in_flight}.json"
            result.unlink(missing_ok=True)
            arrivals = RandomArrivals(
                requests=requests,
                request_rate_per_s=float("inf"),
                input_tokens=INPUT_TOKENS,
                output_tokens=OUTPUT_TOKENS,
                max_concurrency=in_flight,
            )
            words = bench_words(name, checkpoint, arrivals, port=port, result=result)
            _run_client(words, result, log, process)
            results.append(result)
    comparison = compare(results, model=model or checkpoint, server_log=log, profiles=profiles, **fields)
    return EngineMeasurement(comparison=comparison, files=(*results, log), settings=fields)


@contextmanager
def run_process(words: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process with its output in `log`; on exit, always end it and its child processes."""
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineFailed(f"{words[0]} cannot be started: {error.strerror}") from None
        try:
            yield process
        finally:
            end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Terminate the process group with SIGTERM; after `STOP_S` seconds, kill the processes that remain."""
    _signal(process, signal.SIGTERM)
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=STOP_S)
    finally:
        _signal(process, signal.SIGKILL)  # workers may outlive their parent
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def wait_until_healthy(process: subprocess.Popen[bytes], log: Path, address: str, *, start_s: float) -> None:
    """Wait until the engine's health check returns 200. Raises EngineFailed if it exits first or exceeds `start_s`."""
    ends = time.monotonic() + start_s
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback: use no proxy
    while time.monotonic() < ends:
        if (code := process.poll()) is not None:
            raise EngineFailed(f"the engine exited with code {code} before it was ready: {last_output(log)}")
        with suppress(OSError), opener.open(address, timeout=5.0) as answer:
            if answer.status == 200:
                return
        time.sleep(POLL_S)
    raise EngineFailed(f"the engine was not ready within {start_s:.0f} s: {last_output(log)}")


def _run_client(words: Sequence[str], result: Path, log: Path, server: subprocess.Popen[bytes]) -> None:
    own_log = result.with_suffix(".log")
    with run_process(words, own_log) as client:
        ends = time.monotonic() + LOAD_S
        while client.poll() is None:
            if server.poll() is not None:
                raise EngineFailed(
                    f"the engine exited with code {server.returncode} under load: {last_output(log)}"
                )
            if time.monotonic() > ends:
                raise EngineFailed(
                    f"the benchmark client did not finish within {LOAD_S:.0f} s: {last_output(own_log)}"
                )
            time.sleep(min(POLL_S, 0.1))
        code = client.returncode
    if code or not result.is_file():
        wrote = "a" if result.is_file() else "no"
        raise EngineFailed(
            f"the benchmark client exited with code {code} and wrote {wrote} result: {last_output(own_log)}"
        )


def last_output(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "no output"
    said = [line.strip() for line in lines if line.strip()]
    return " | ".join(said[-TAIL_LINES:])[-1500:] or "no output"
