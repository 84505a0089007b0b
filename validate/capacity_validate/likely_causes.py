"""What usually lies behind a gap between a server's benchmark and the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capacity_validate.benchmark_results import MeasuredRun
from capacity_validate.comparison import MetricRow

GOOD = 0.10
LARGE = 0.25


def likely_causes(
    run: MeasuredRun,
    rows: Sequence[MetricRow],
    predicted: Mapping[str, Any],
    *,
    kv_known: bool,
    drafts: bool = False,
    other_weights: str | None = None,
) -> list[str]:
    """What usually lies behind a gap like this one; a gap within the prediction's own interval is none to speak of.

    `drafts`: the simulated server decodes speculatively; `other_weights`: how the log's weights differ from its own.
    """
    errors = {row.name: row.error for row in rows if not row.inside}
    measured = {row.name for row in rows if row.error is not None}
    ttft, tpot = errors.get("mean_ttft_ms"), errors.get("mean_tpot_ms")
    causes = [] if other_weights is None else [other_weights]
    if run.accepted_length and not drafts:
        causes.append(
            f"the server decoded speculatively (accepted length {run.accepted_length:.2f}); this simulation did not"
        )
    if tpot is not None and tpot < -GOOD:
        causes.append(
            f"decode steps take longer than predicted ({tpot:+.0%}): host time of this server, slower kernels, or a "
            "capped GPU; `--fit-overheads` separates the first, `capacity validate` on that GPU the others"
        )
    if tpot is not None and tpot > GOOD:
        causes.append(
            f"decode steps are faster than predicted ({tpot:+.0%}): a newer engine, or another weight or KV "
            "format than was said here; check --quantization, --kv-cache-dtype and --engine"
        )
    if ttft is not None and ttft < -LARGE:
        causes.append(_slow_first_token(run, rows, predicted, kv_known=kv_known))
    if ttft is not None and ttft > LARGE:
        causes.append(
            f"first tokens come sooner than predicted ({ttft:+.0%}): prompts that hit the server's prefix cache "
            "(the files do not say which tokens were shared), or a larger token budget; check --max-num-batched-tokens"
        )
    tail = errors.get("p99_ttft_ms")
    if tail is not None and "mean_ttft_ms" in measured and -tail > LARGE >= abs(ttft or 0.0):
        causes.append(
            "only the tail is longer than predicted: pauses of the server or client, or preemptions"
        )
    if not causes and {"mean_ttft_ms", "mean_tpot_ms"} <= measured:
        causes.append(
            "none found: mean TTFT and TPOT agree but other figures lie outside their intervals; check that the "
            "benchmark sent its requests as described here, without pauses"
            if any(row.inside is False for row in rows)
            else "none needed: the gap is within what the model is known to be off by"
        )
    return causes


def _slow_first_token(
    run: MeasuredRun, rows: Sequence[MetricRow], predicted: Mapping[str, Any], *, kv_known: bool
) -> str:
    by_name = {row.name: row for row in rows}
    mean = by_name["mean_ttft_ms"]
    gap_ms = mean.measured - (mean.predicted or 0.0)
    median = by_name.get("p50_ttft_ms")
    if median is not None and median.predicted and median.measured - median.predicted < 0.5 * gap_ms:
        return (
            f"a few requests waited long (mean TTFT {gap_ms:.0f} ms above, the median only "
            f"{median.measured - median.predicted:.0f} ms): queueing in bursts; check --max-num-seqs"
        )
    if predicted.get("preemptions") == 0 and run.concurrency and not kv_known:
        return (
            f"first tokens come {gap_ms:.0f} ms later than predicted: requests queue for seats or KV blocks that the "
            "simulation thinks are there (give --server-log), or the client and HTTP take their share (--fit-overheads)"
        )
    return (
        f"first tokens come {gap_ms:.0f} ms later than predicted for all alike: client, HTTP, tokenizer and eager "
        "prefill; `--fit-overheads` measures it"
    )
