"""The answer of `capacity compare`: measured and predicted metrics of each run, and one sentence over all."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One statistic, measured and predicted, in the unit of its name."""

    name: str
    measured: float
    predicted: float | None

    @property
    def error(self) -> float | None:
        return None if self.predicted is None or not self.measured else self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What a server adds to every step and to every request, fitted to a part of the runs."""

    step_s: float
    request_s: float
    fitted_to: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """One run: what was sent, how, and every metric that both know."""

    path: str
    tool: str
    requests: int
    workload: str  # how it was rebuilt
    metrics: tuple[MetricRow, ...]
    causes: tuple[str, ...]
    notices: tuple[str, ...]

    def error(self, name: str) -> float | None:
        return next((row.error for row in self.metrics if row.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All runs against one deployment."""

    SCHEMA = "capacity/comparison/v1"

    model: str
    gpu: str
    engine: str
    basis: str
    kv_capacity_tokens: int
    kv_capacity_measured: bool  # from a server log, not estimated
    runs: tuple[RunComparison, ...]
    overheads: Overheads | None
    server_log: tuple[tuple[str, str], ...]
    memory: tuple[MetricRow, ...]

    def to_dict(self) -> dict[str, Any]:
        document = {"schema": self.SCHEMA, **asdict(self)}
        for run, own in zip(document["runs"], self.runs, strict=True):
            for row, source in zip(run["metrics"], own.metrics, strict=True):
                row["error"] = source.error
        return document

    def lines(self) -> list[str]:
        """For a terminal: a table for each run, its likely causes, and one sentence at the end."""
        shown = [f"{self.model} on {self.gpu}, {self.engine}; basis: {self.basis}"]
        shown.append(
            f"KV cache: {self.kv_capacity_tokens:,} tokens ({'printed' if self.kv_capacity_measured else 'estimated'})"
        )
        shown += [_row_text(row) for row in self.memory]
        if self.overheads is not None:
            shown.append(
                f"fitted overheads: {self.overheads.step_s * 1e3:.3f} ms a step, "
                f"{self.overheads.request_s * 1e3:.1f} ms a request, from {len(self.overheads.fitted_to)} of the runs"
            )
        for run in self.runs:
            shown += ["", f"{run.path} ({run.tool}, {run.requests} requests, {run.workload})"]
            shown.append(f"  {'metric':<22}{'measured':>14}{'predicted':>14}{'error':>10}")
            shown += [f"  {_row_text(row)}" for row in run.metrics]
            shown += [f"  likely cause: {cause}" for cause in run.causes]
            shown += [f"  note: {notice}" for notice in run.notices]
        return [*shown, "", self.verdict]

    @property
    def verdict(self) -> str:
        """One sentence."""
        parts = []
        for name, label in (
            ("mean_ttft_ms", "TTFT"),
            ("mean_tpot_ms", "TPOT"),
            ("output_throughput", "throughput"),
        ):
            errors = sorted(abs(e) for run in self.runs if (e := run.error(name)) is not None)
            if errors:
                parts.append(f"{label} within {errors[len(errors) // 2]:.0%}")
        if not parts:
            return "The files hold no metric that the simulator predicts."
        return (
            f"Over {len(self.runs)} run(s), at the median, predicted {', '.join(parts)} of what was measured."
        )


def _row_text(row: MetricRow) -> str:
    predicted = "" if row.predicted is None else f"{row.predicted:,.3f}"
    error = "" if row.error is None else f"{row.error:+.1%}"
    return f"{row.name:<22}{row.measured:>14,.3f}{predicted:>14}{error:>10}"
