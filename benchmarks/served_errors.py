"""Errors of predicted against served TTFT and TPOT: by group, and as bands that are judged on groups left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from served_data import ServedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What is predicted for a row; None: it cannot be (`problem` says why)."""

    row: ServedRow
    ttft_s: float | None = None
    tpot_s: float | None = None
    problem: str | None = None

    def error(self, metric: str) -> float:
        """Predicted over measured, minus one."""
        predicted = getattr(self, metric)
        measured = getattr(self.row, metric)
        return math.nan if predicted is None else predicted / measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAccuracy:
    """Errors of one group in one metric: medians and 90th percentiles of absolute ones, and the median itself."""

    group: tuple[str, ...]
    metric: str
    rows: int
    median: float
    p90: float
    bias: float


def accuracy(predictions: Iterable[Prediction], metric: str, key: Any) -> Iterator[GroupAccuracy]:
    """Errors by `key(row)`."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for prediction in predictions:
        error = prediction.error(metric)
        if not math.isnan(error):
            groups.setdefault(key(prediction.row), []).append(error)
    for group, errors in sorted(groups.items()):
        absolute = np.abs(errors)
        yield GroupAccuracy(
            group=group,
            metric=metric,
            rows=len(errors),
            median=float(np.median(absolute)),
            p90=float(np.percentile(absolute, 90)),
            bias=float(np.median(errors)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A 90 % band of measured / predicted - 1, and how often bands made without a group held for that group."""

    metric: str
    groups: int
    rows: int
    low: float
    high: float
    coverage: float
    half_width: float  # median over left-out groups


def held_out_band(predictions: Iterable[Prediction], metric: str) -> Band:
    """The band over all groups, each of the same weight, judged by leaving one group out at a time."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for prediction in predictions:
        error = prediction.error(metric)
        if not math.isnan(error):
            groups.setdefault(prediction.row.group, []).append(1 / (1 + error) - 1)
    covered, widths = [], []
    for left_out, residuals in groups.items():
        low, high = _quantiles([found for group, found in groups.items() if group != left_out])
        covered += [low <= residual <= high for residual in residuals]
        widths.append((high - low) / 2)
    low, high = _quantiles(list(groups.values()))
    return Band(
        metric=metric,
        groups=len(groups),
        rows=len(covered),
        low=low,
        high=high,
        coverage=float(np.mean(covered)),
        half_width=float(np.median(widths)),
    )


def _quantiles(groups: list[list[float]]) -> tuple[float, float]:
    """5 % and 95 % quantiles, a group's residuals sharing a weight of one."""
    values = np.concatenate([np.asarray(group) for group in groups])
    weights = np.concatenate([np.full(len(group), 1 / len(group)) for group in groups])
    order = np.argsort(values)
    cumulated = np.cumsum(weights[order]) / weights.sum()
    low, high = np.interp([0.05, 0.95], cumulated, values[order])
    return min(float(low), 0.0), max(float(high), 0.0)


def scored(row: ServedRow) -> bool:
    """Rows that the project's targets count: not those whose labels contradict themselves or hide speculation."""
    return row.dense or (row.concurrency < 512 and not mixed_with_drafts(row))


def mixed_with_drafts(row: ServedRow) -> bool:
    """Whether runs with and without multi-token prediction carry this row's label.

    InferenceX has a script of each (`dsr1_*_mtp.sh`, `qwen3.5_fp8_b200_mtp.sh`) under one label. DeepSeek-R1: 13 of 28
    labels under SGLang have two times, of which DeepSeek-V3's rows repeat the slower. Qwen3.5 FP8 on four B200 without
    expert parallelism: faster than on eight, and a third faster than with it.
    """
    if row.model == "deepseek-r1":
        return row.backend in ("trtllm", "sglang")
    four_without_experts = row.tensor_parallel == 4 and not row.expert_parallel
    return (row.model, row.backend, row.quantization) == (
        "qwen3.5-397b-a17b",
        "sglang",
        "fp8-block",
    ) and four_without_experts


def print_bands(predictions: list[Prediction]) -> None:
    """Bands by kind of model and metric."""
    for dense in (True, False):
        kept = [p for p in predictions if p.row.dense == dense and scored(p.row) and not p.problem]
        if len({p.row.group for p in kept}) > 1:
            for metric in ("ttft_s", "tpot_s"):
                band = held_out_band(kept, metric)
                print(
                    f"{'dense' if dense else 'moe':6} {metric:7} {band.low * 100:+5.0f} to {band.high * 100:+5.0f} %; "
                    f"{band.groups} groups, {band.rows} rows; left out: {band.coverage * 100:.0f} % covered, "
                    f"half-width {band.half_width * 100:.0f} %"
                )


def print_table(predictions: list[Prediction]) -> None:
    """Errors by group and in all, for both metrics."""
    print(f"{'group':70} {'n':>4} {'TPOT med/p90 (bias) %':>24} {'TTFT med/p90 (bias) %':>24}")
    for key in (
        lambda row: row.group,
        _class_of,
        lambda row: (row.source, "" if scored(row) else "(not scored)"),
    ):
        tables = [{a.group: a for a in accuracy(predictions, m, key)} for m in ("tpot_s", "ttft_s")]
        for group in sorted(set(tables[0]) | set(tables[1])):
            cells = [_cell(table.get(group)) for table in tables]
            rows = max(table[group].rows for table in tables if group in table)
            print(f"{' '.join(group):70} {rows:4d} {cells[0]:>24} {cells[1]:>24}")
        print()
    problems = [p for p in predictions if p.problem]
    if problems:
        print(f"{len(problems)} rows without a prediction:")
        reasons = {(" ".join(p.row.group), p.row.tensor_parallel, p.problem) for p in problems}
        for group, tensor, problem in sorted(reasons):
            print(f"  {group} TP {tensor}: {problem}")


def _class_of(row: ServedRow) -> tuple[str, ...]:
    return (row.source, row.campaign, row.backend)


def _cell(found: GroupAccuracy | None) -> str:
    if found is None:
        return "-"
    return f"{found.median * 100:5.1f} /{found.p90 * 100:6.1f} ({found.bias * 100:+.0f})"
