"""CPU time of vLLM's API server per streamed token: errors of served rows with several values of `output_token_s`.

The value is that of rows in which the API server is the bottleneck: InferenceX, gpt-oss-120b on H100, 512 in flight,
first tokens after 20 to 118 s. There a request takes the server C / throughput seconds, which is linear in its tokens.
All other rows with at least 64 in flight are a check. Rows that only judge (`evaluation/`) are not read.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import served_rows
from served_data import ServedRow, read_rows, shared_folder

VALUES_S = (0.0, 3.6e-5, 6e-5)
BOTTLENECK_TTFT_S = 15.0
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


def main() -> int:
    """Print the fit and the errors for each value."""
    folder = shared_folder()
    if folder is None:
        print("no reference data: set CAPACITY_SHARED", file=sys.stderr)
        return 2
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
    sys.exit(main())
