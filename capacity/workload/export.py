"""Workloads as files that others read: a plain CSV, and the trace that `vllm bench serve` replays."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.workload.content import PromptContent
from capacity.workload.workload import Workload


def write_csv(workload: Workload, path: str | os.PathLike[str]) -> None:
    """`arrival_s,prompt_tokens,output_tokens` and what else the workload has, to a file (`.gz`: gzipped) or `-`.

    Times are written so that reading them gives the same floats. Prompt content is not in it: `write_timed_trace`
    has that. A closed loop's concurrency is a matter of the run, and in neither.
    """
    columns: dict[str, list[float] | list[int]] = {
        "arrival_s": workload.arrival_s.tolist(),
        "prompt_tokens": workload.prompt_tokens.tolist(),
        "output_tokens": workload.output_tokens.tolist(),
    }
    if workload.priority is not None:
        columns["priority"] = workload.priority.tolist()
    if workload.session is not None:
        columns["session"] = workload.session.tolist()
    if workload.after_request is not None and workload.think_s is not None:
        columns["after_request"] = workload.after_request.tolist()
        columns["think_s"] = workload.think_s.tolist()
    if workload.max_tokens is not None:
        columns["max_tokens"] = workload.max_tokens.tolist()
    if workload.adapter is not None:
        columns["adapter"] = workload.adapter.tolist()
    if workload.images is not None and workload.image_tokens is not None:
        columns["images"], columns["image_tokens"] = workload.images.tolist(), workload.image_tokens.tolist()
    with _written(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values()))


def write_timed_trace(
    workload: Workload, path: str | os.PathLike[str], *, block_tokens: int = 16, seconds_per_unit: float = 1.0
) -> str:
    """A trace for `vllm bench serve --dataset-name timed_trace`; returns the arguments that replay it.

    `hash_ids` name the chained blocks of `block_tokens` tokens, so prompts share what ours share in whole blocks of
    that size; without content no two prompts share anything. A session's later turns are sent at their nominal
    times: the client knows no think time.
    """
    if not 0 < seconds_per_unit < float("inf"):
        raise InvalidInput(f"seconds_per_unit must be finite and above 0, not {seconds_per_unit}")
    timestamps = [_unscaled(arrival_s, seconds_per_unit) for arrival_s in workload.arrival_s.tolist()]
    lengths = zip(workload.prompt_tokens.tolist(), workload.output_tokens.tolist())
    with _written(path) as stream:
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
    """Block ids of each prompt, the partial last block included, numbered in order of appearance."""
    content = workload.content
    if content is None:
        content = PromptContent.from_segments(
            [[(row, tokens)] for row, tokens in enumerate(workload.prompt_tokens.tolist())]
        )
    blocks = content.block_runs(block_tokens, partial=True)
    numbers: dict[int, int] = {}
    for row in range(len(workload)):
        yield [numbers.setdefault(block, len(numbers)) for block in blocks.ids_of(row)]


def _unscaled(arrival_s: float, seconds_per_unit: float) -> float | int:
    """A timestamp in units; a whole one where it is whole up to rounding."""
    if seconds_per_unit == 1.0:
        return arrival_s
    units = arrival_s / seconds_per_unit
    return round(units) if abs(units - round(units)) < 1e-6 else units


@contextmanager
def _written(path: str | os.PathLike[str]) -> Iterator[IO[str]]:
    name = os.fspath(path)
    if name == "-":
        yield sys.stdout
        return
    try:
        with open(name, "wb") as file:  # noqa: PTH123 - `name` may be any path
            packed = (
                gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) if name.endswith(".gz") else file
            )
            with io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as stream:
                yield stream
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise MalformedFile(name, f"cannot be written: {reason or error}") from None
