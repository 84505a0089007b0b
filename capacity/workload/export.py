"""Write workloads to files for other tools: CSV, and input files of benchmark clients."""

import csv
import gzip
import io
import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from capacity.base.errors import InvalidInput, UnknownName
from capacity.base.output_files import replaced_file
from capacity.workload.content import PromptContent
from capacity.workload.workload import Workload

CLIENTS = ("vllm", "aiperf", "sglang", "guidellm")


def write_csv(workload: Workload, path: str | os.PathLike[str]) -> None:
    """Write `arrival_s,prompt_tokens,output_tokens` and the optional columns to a file (`.gz`: gzipped) or `-`.

    Times are restored exactly when the file is read. Prompt content is not included; use `write_timed_trace` for it.
    Neither format includes the concurrency of a closed loop, which is a property of the run.
    """
    names = ("arrival_s", "prompt_tokens", "output_tokens")
    columns = {name: getattr(workload, name) for name in names} | workload.optional_columns
    columns.pop("sample_of", None)
    with _open_output(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(values.tolist() for values in columns.values())))


def write_for_client(workload: Workload, path: str | os.PathLike[str], client: str = "vllm") -> str:
    """Write the workload to a file for a benchmark client (one of `CLIENTS`); return the command that sends it.

    vLLM, AIPerf and SGLang replay every request at its time. For AIPerf and SGLang, times are whole milliseconds, and
    prompts share whole blocks of 512 tokens. GuideLLM cannot replay requests, so the file contains a command with the
    same rate and with the same means and spreads of lengths. Raises UnknownName or MalformedFile.
    """
    if client not in CLIENTS:
        raise UnknownName("benchmark client", client, CLIENTS, aliases=("genai-perf",))
    name = shlex.quote(os.fspath(path))
    if client == "vllm":
        return f"vllm bench serve {write_timed_trace(workload, path)}"
    if client == "guidellm":
        command = _guidellm_command(workload)
        with _open_output(path) as stream:
            stream.write(command + "\n")
        return f"sh {name}"
    write_timed_trace(workload, path, block_tokens=512, seconds_per_unit=0.001, whole=True)
    if client == "aiperf":
        return (
            f"aiperf profile --model MODEL --url localhost:8000 --endpoint-type completions --streaming "
            f"--input-file {name} --custom-dataset-type mooncake_trace --fixed-schedule"
        )
    return (
        f"python -m sglang.bench_serving --backend sglang --dataset-name mooncake --dataset-path {name} "
        f"--num-prompts {len(workload)} --use-trace-timestamps"
    )


def _guidellm_command(workload: Workload) -> str:
    """Return a GuideLLM command with the same rate; GuideLLM draws the lengths."""
    data = []
    for word, tokens in (("prompt", workload.prompt_tokens), ("output", workload.output_tokens)):
        data += [f"{word}_tokens={tokens.mean():.0f}", f"{word}_tokens_stdev={tokens.std():.0f}"]
        data += [f"{word}_tokens_min={tokens.min()}", f"{word}_tokens_max={tokens.max()}"]
    at_once = workload.concurrency is not None or workload.span_s == 0
    pace = (
        f"--rate-type concurrent --rate {workload.concurrency or len(workload)}"
        if at_once
        else f"--rate-type poisson --rate {workload.request_rate_per_s:.4g}"
    )
    return (
        f"guidellm benchmark --target http://localhost:8000 {pace} --max-requests {len(workload)} "
        f"--data {','.join(data)}"
    )


def write_timed_trace(
    workload: Workload,
    path: str | os.PathLike[str],
    *,
    block_tokens: int = 16,
    seconds_per_unit: float = 1.0,
    whole: bool = False,
) -> str:
    """Write a trace for `vllm bench serve --dataset-name timed_trace`; return the arguments that replay it.

    `hash_ids` identify blocks of `block_tokens` tokens, so prompts share the same whole blocks as in the workload;
    without content, they share none. `whole`: whether to round timestamps to whole units of `seconds_per_unit`. Later
    turns of a session are sent at their nominal times, because the client does not support think times.
    """
    if not 0 < seconds_per_unit < float("inf"):
        raise InvalidInput(f"seconds_per_unit must be finite and above 0, not {seconds_per_unit}")
    timestamps = [_to_units(arrival_s, seconds_per_unit) for arrival_s in workload.arrival_s.tolist()]
    timestamps = list(map(round, timestamps)) if whole else timestamps
    lengths = zip(workload.prompt_tokens.tolist(), workload.output_tokens.tolist())
    with _open_output(path) as stream:
        for timestamp, (prompt_tokens, output_tokens), hash_ids in zip(
            timestamps, lengths, _hash_ids(workload, block_tokens)
        ):
            record = {
                "timestamp": timestamp,
                "input_length": prompt_tokens,
                "output_length": output_tokens,
                "hash_ids": hash_ids,
            }
            stream.write(json.dumps(record, separators=(", ", ": ")) + "\n")
    return (
        f"--backend vllm --dataset-name timed_trace --dataset-path {os.fspath(path)} --num-prompts {len(workload)} "
        f"--timed-trace-chunk-hash-size {block_tokens} --timed-trace-sec-multiplier {seconds_per_unit:g}"
    )


def _hash_ids(workload: Workload, block_tokens: int) -> Iterator[list[int]]:
    """Yield the block ids of each prompt, including a partial last block; ids are numbered in order of appearance."""
    content = workload.content
    if content is None:
        content = PromptContent.from_segments(
            [[(row, tokens)] for row, tokens in enumerate(workload.prompt_tokens.tolist())]
        )
    blocks = content.block_runs(block_tokens, partial=True)
    numbers: dict[int, int] = {}
    for row in range(len(workload)):
        yield [numbers.setdefault(block, len(numbers)) for block in blocks.request_block_ids(row)]


def _to_units(arrival_s: float, seconds_per_unit: float) -> float | int:
    """Return a timestamp in units of `seconds_per_unit`, as an integer if it is whole up to rounding."""
    if seconds_per_unit == 1.0:
        return arrival_s
    units = arrival_s / seconds_per_unit
    return round(units) if abs(units - round(units)) < 1e-6 else units


@contextmanager
def _open_output(path: str | os.PathLike[str]) -> Iterator[IO[str]]:
    name = os.fspath(path)
    if name == "-":
        yield sys.stdout
        return
    with replaced_file(name) as draft, draft.open("wb") as file:
        packed = (
            gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) if name.endswith(".gz") else file
        )
        with io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as stream:
            yield stream
