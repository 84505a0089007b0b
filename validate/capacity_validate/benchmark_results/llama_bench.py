"""Results of `llama-bench -o json` or `-o jsonl`: single prompts, and single sequences of tokens, without a server.

Layout: llama.cpp, tools/llama-bench. A test of `n_prompt` alone is a prefill (its time is a TTFT), one of `n_gen` alone
decodes from an empty context, or from one of `n_depth` tokens (the time of a token is a TPOT).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capacity.base.errors import MalformedFile
from capacity_validate.benchmark_results.run import MeasuredRun, RequestColumns, ResultFormat
from capacity_validate.benchmark_results.values import Document, count, number
from capacity_validate.server_log import ServerLog


def _tests(path: Path, documents: Sequence[Any]) -> list[MeasuredRun]:
    entries = documents[0] if isinstance(documents[0], list) else documents
    runs = [run for entry in entries if (run := _test(path, entry)) is not None]
    if not runs:
        raise MalformedFile(path, "holds no test of prompts alone or of generated tokens alone")
    return runs


def _test(path: Path, entry: Document) -> MeasuredRun | None:
    """One test; None of prompt and generation together, and of a prompt at a depth: neither time stands for itself."""
    prompt, generated = count(entry.get("n_prompt")), count(entry.get("n_gen"))
    depth, rate = count(entry.get("n_depth")), number(entry.get("avg_ts"))
    if rate is None or rate <= 0 or (prompt is None) == (generated is None) or (prompt and depth):
        return None
    if entry.get("n_gpu_layers") == 0:
        raise MalformedFile(path, "was run with n_gpu_layers 0, on the CPU: such a run says nothing of a GPU")
    seconds = prompt / rate if prompt else 1.0 / rate
    return MeasuredRun(
        tool="llama-bench",
        path=str(path),
        completed=1,
        failed=0,
        latencies_ms={"ttft" if prompt else "tpot": {"mean": seconds * 1e3}},
        requests=RequestColumns(
            prompt_tokens=[prompt or depth or 1], output_tokens=[(generated or 0) + 1], start_s=[0.0]
        ),
        concurrency=1,
        num_requests=1,
        in_process=True,
        server=ServerLog(path=str(path), max_num_batched_tokens=count(entry.get("n_ubatch"))),
    )


def _recognises(documents: Sequence[Any]) -> bool:
    first = documents[0][0] if isinstance(documents[0], list) and documents[0] else documents[0]
    return isinstance(first, dict) and {"n_prompt", "n_gen", "avg_ts"} <= first.keys()


FORMATS = (ResultFormat(tools=("llama-bench",), recognises=_recognises, read=_tests),)
