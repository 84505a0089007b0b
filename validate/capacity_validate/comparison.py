"""The result of `capacity compare`: measured and predicted metrics of each run, and a verdict over all runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from capacity.base.record import AnswerRecord, WrittenRecord, to_plain_values

MAIN_METRICS = {  # metrics by their common names
    "mean_ttft_ms": "TTFT",
    "mean_tpot_ms": "TPOT",
    "output_throughput": "throughput",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow(WrittenRecord):
    """One statistic, measured and predicted; its name implies its unit (`p95_ttft_ms`).

    `low` to `high` is the 90 % prediction interval; None without an interval, as for memory. `predicted` is None if
    the simulator has no such metric.
    """

    LAST: ClassVar[tuple[str, ...]] = ("error", "inside")

    name: str
    measured: float
    predicted: float | None
    low: float | None = None
    high: float | None = None

    @property
    def error(self) -> float | None:
        return None if self.predicted is None or not self.measured else self.predicted / self.measured - 1

    @property
    def inside(self) -> bool | None:
        """Return whether the measured value is within the interval; None without an interval."""
        return None if self.low is None or self.high is None else self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Additional time of a server per step and per request, estimated from the runs in `fitted_to`."""

    step_s: float
    request_s: float
    fitted_to: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Measured and predicted metrics of one run, how its workload was rebuilt, and likely causes of errors."""

    path: str
    tool: str
    requests: int
    workload: str  # how the workload was rebuilt
    metrics: tuple[MetricRow, ...]
    causes: tuple[str, ...]
    notices: tuple[str, ...]

    def error(self, name: str) -> float | None:
        return next((row.error for row in self.metrics if row.name == name), None)

    @property
    def rows_with_interval(self) -> tuple[MetricRow, ...]:
        return tuple(row for row in self.metrics if row.inside is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(AnswerRecord):
    """The result of `capacity compare`: the deployment, its memory, and the comparison of each run."""

    SCHEMA: ClassVar[str] = "capacity/comparison/v1"

    model: str
    gpu: str
    num_gpus: int
    engine: str
    basis: str
    kv_capacity_tokens: int
    kv_capacity_measured: bool  # from a server log, not estimated
    runs: tuple[RunComparison, ...]
    overheads: Overheads | None
    server_log: tuple[tuple[str, str], ...]
    memory: tuple[MetricRow, ...]

    def to_rows(self) -> list[dict[str, Any]]:
        return [{"path": run.path, **to_plain_values(row)} for run in self.runs for row in run.metrics]

    @property
    def verdict(self) -> str:
        """Return the median errors and the coverage of the intervals in one or two sentences."""
        parts = []
        for name, label in MAIN_METRICS.items():
            errors = sorted(abs(e) for run in self.runs if (e := run.error(name)) is not None)
            if errors:
                parts.append(f"{label} {errors[len(errors) // 2]:.0%}")
        if not parts:
            return "The files contain no metric that the simulator predicts."
        said = f"Over {len(self.runs)} run(s), the median prediction errors are {', '.join(parts)}."
        return said + coverage_text([row for run in self.runs for row in run.rows_with_interval])


def coverage_text(judged: Sequence[MetricRow]) -> str:
    """Return a sentence on how many measured values lie within their intervals; empty without intervals."""
    held = sum(bool(row.inside) for row in judged)
    return f" {held} of {len(judged)} measured values lie within the 90 % interval." if judged else ""
