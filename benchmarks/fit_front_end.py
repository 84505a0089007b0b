"""CPU times of an API server: errors of served rows with several values of each.

    python benchmarks/fit_front_end.py            # vLLM: per streamed token
    python benchmarks/fit_front_end.py requests [--engine vllm] [--every N]   # per request and prompt token

`output_token_s`: the value is that of rows in which the API server is the bottleneck: InferenceX, gpt-oss-120b on
H100, 512 in flight, first tokens after 20 to 118 s. There a request takes the server C / throughput seconds, which
is linear in its tokens. All other rows with at least 64 in flight are a check.

`request_s` and `input_token_s`: TTFT of rows with 8 to 128 in flight, at each pair of values, in two halves of the
groups (model, GPU, tensor parallelism): the first half chooses, the other judges. The TTFT of a request that is alone
stays the same: what `request_s` takes is no longer in `request_latency_s`. Rows that only judge (`evaluation/`) are
not read.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import served_rows
from fit_host_times import in_first_half
from fit_inputs import listed_inputs
from served_data import ServedRow, distinct, read_rows, shared_folder

from capacity.base.errors import CapacityError

VALUES_S = (0.0, 3.6e-5, 6e-5)
BOTTLENECK_TTFT_S = 15.0
REQUEST_S = (0.0, 0.001, 0.002, 0.004)
INPUT_TOKEN_S = (0.0, 1.1e-6, 2.9e-6, 4.7e-6)
IN_FLIGHT = (8, 128)  # of the rows that show these two
MOST_TOKENS_OF_BURSTS = 140_000
MOST_TOKENS = 600_000  # output tokens in flight of a simulated row


def server_seconds(row: ServedRow) -> tuple[float, float]:
    """Return the output tokens of a request, and the seconds that it takes the only API server, if that is busy."""
    tokens = row.output_len * row.length_scale
    return tokens, (row.ttft_s + tokens * row.tpot_s) / row.concurrency


def bottleneck(rows: list[ServedRow]) -> tuple[float, float]:
    """Return seconds per token and per request of the rows that wait for the API server, by least squares."""
    points = [
        server_seconds(row)
        for row in rows
        if row.model == "gpt-oss-120b" and row.tensor_parallel == 8 and row.ttft_s > BOTTLENECK_TTFT_S
    ]
    per_token, per_request = np.polyfit(*zip(*points, strict=True), 1)
    return float(per_token), float(per_request)


def errors(rows: list[ServedRow], output_token_s: float) -> np.ndarray:
    """Return for each row the relative errors of TTFT and TPOT if streaming a token takes `output_token_s`."""
    found = []
    for row in rows:
        server = served_rows.server_of(row)
        frontend = replace(server.frontend, output_token_s=output_token_s)
        predicted = served_rows.simulated(row, replace(server, frontend=frontend))
        if predicted.ttft_s and predicted.tpot_s:
            found.append((predicted.ttft_s / row.ttft_s - 1, predicted.tpot_s / row.tpot_s - 1))
    return np.array(found)


def at_request_times(row: ServedRow, pairs: Sequence[tuple[float, float]]) -> Iterator[float]:
    """Yield ln(predicted / measured TTFT) of a row for each (`request_s`, `input_token_s`). Raises CapacityError."""
    server = served_rows.server_of(row)
    usual = server.frontend
    for request_s, input_token_s in pairs:
        times = replace(
            usual,
            request_s=request_s,
            input_token_s=input_token_s,
            request_latency_s=max(usual.request_latency_s + usual.request_s - request_s, 0.0),
        )
        means = served_rows.simulated_means(row, replace(server, frontend=times))
        yield float(np.log(means.ttft_s / row.ttft_s))


def print_request_times(rows: Sequence[ServedRow]) -> None:
    """Print the errors of TTFT for each pair of values, for the half that chooses and the half that judges."""
    pairs = list(itertools.product(REQUEST_S, INPUT_TOKEN_S))
    halves: dict[bool, list[list[float]]] = {True: [], False: []}
    for row in rows:
        group = f"{row.gpu} {row.model} {row.quantization} tp{row.tensor_parallel}"
        try:
            halves[in_first_half(group)].append(list(at_request_times(row, pairs)))
        except CapacityError as error:
            print(f"{group}: {error}", file=sys.stderr)
    for first, found in halves.items():
        errors_of_pairs = np.array(found).T
        for (request_s, input_token_s), logs in zip(pairs, errors_of_pairs, strict=True):
            median, worst = np.expm1(np.percentile(np.abs(logs), [50, 90]))
            print(
                f"{'chooses' if first else 'judges':8s} {len(logs):4d} rows, {request_s * 1e3:g} ms a request, "
                f"{input_token_s * 1e6:.1f} us a token: TTFT {median:6.1%} / {worst:6.1%}, "
                f"bias {np.expm1(np.median(logs)):+.1%}"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the fit and the errors for each value."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("times", nargs="?", choices=("tokens", "requests"), default="tokens")
    parser.add_argument("--engine", choices=tuple(served_rows.ENGINES), default="vllm")
    parser.add_argument("--every", type=int, default=1, help="take every n-th row")
    options = parser.parse_args(arguments)
    folder = shared_folder()
    if folder is None:
        print("no reference data: set CAPACITY_SHARED", file=sys.stderr)
        return 2
    if options.times == "requests":
        least, most = IN_FLIGHT
        print_request_times(
            [
                row
                for row in distinct(read_rows(folder))
                if row.backend == options.engine
                and least <= row.concurrency <= most
                and row.concurrency * row.output_len <= MOST_TOKENS_OF_BURSTS
            ][:: options.every]
        )
        return 0
    rows = [row for row in read_rows(folder) if row.backend == "vllm" and row.concurrency >= 64]
    per_token, per_request = bottleneck(rows)
    print(f"bottleneck: {per_token * 1e6:.0f} us per token, {per_request * 1e3:.0f} ms per request")
    simulated = [row for row in rows if row.concurrency * row.output_len <= MOST_TOKENS]
    for most, least in ((64, 0), (256, 65)):
        some = [row for row in simulated if least <= row.concurrency <= most]
        for value in VALUES_S:
            found = np.abs(errors(some, value))
            ttft, tpot = (np.percentile(found[:, column], [50, 90]) for column in (0, 1))
            print(
                f"{len(found)} rows of up to {most}, {value * 1e6:.0f} us: median / p90 error of TTFT "
                f"{ttft[0]:.1%} / {ttft[1]:.1%}, of TPOT {tpot[0]:.1%} / {tpot[1]:.1%}"
            )
    return 0


if __name__ == "__main__":
    with listed_inputs():
        sys.exit(main())
