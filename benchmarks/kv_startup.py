"""Predicted KV capacity against what engines printed when they started: `python benchmarks/kv_startup.py [TABLE]`.

The table is `tests/data/startup_lines.csv` unless another is named: one row a start-up log with the settings it was
started with, its source, and whether constants were tuned on it (`tuned`) or it was kept aside, by source (`aside`).
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, build
from capacity.deployment.engines import find_engine
from capacity.hardware import load_profile
from capacity.model import ModelSpec, load_model
from capacity.model.quantization import QuantizationScheme, find_format, scheme_for
from capacity.pool.drafting import memory_with_draft
from capacity.pool.memory import MemoryPlan
from capacity.pool.resolve import with_defaults
from capacity.pool.support_checks import loaded_model

TABLE = Path(__file__).parents[1] / "tests/data/startup_lines.csv"
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredLine:
    """One start-up line: what it printed and what is predicted, in the line's own unit."""

    engine: str
    gpu: str
    model: str
    label: str
    source: str
    part: str
    printed: float
    predicted: float
    plan: MemoryPlan

    @property
    def error(self) -> float:
        """Relative: above 0, more KV is predicted than there was."""
        return self.predicted / self.printed - 1


def score(path: Path = TABLE) -> list[ScoredLine]:
    """Every line of a table, in its order."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_scored(row) for row in csv.DictReader(file)]


def errors_of(
    lines: Iterable[ScoredLine], part: str | None = None, engine: str | None = None
) -> tuple[float, float]:
    """Median and 90th percentile of the absolute relative errors, of one part and engine or of all.

    Raises InvalidInput where there are no such lines.
    """
    errors = [
        abs(line.error) for line in lines if part in (None, line.part) and engine in (None, line.engine)
    ]
    if not errors:
        raise InvalidInput(
            f"no start-up lines of part {part} and engine {engine}; the parts are tuned and aside"
        )
    return median(errors), (quantiles(errors, n=10, method="inclusive")[-1] if len(errors) > 1 else errors[0])


def _scored(row: Mapping[str, str]) -> ScoredLine:
    plan = _plan(row)
    predicted = {
        "kv_tokens": float(plan.kv_capacity_tokens),
        "kv_blocks": float(plan.kv_capacity_blocks),
        "kv_gib": plan.kv_cache_bytes / GIB,
    }[row["metric"]]
    return ScoredLine(
        engine=row["engine"],
        gpu=row["gpu"],
        model=row["model"],
        label=f"{row['engine']} {row['version']} {row['gpu']} {row['model']} tp{row['tp']}",
        source=row["source"],
        part=row["part"],
        printed=float(row["value"]),
        predicted=predicted,
        plan=plan,
    )


def _plan(row: Mapping[str, str]) -> MemoryPlan:
    model = load_model(row["model"])
    settings = dict(setting.split("=", 1) for setting in row["settings"].split())
    parallelism = {
        "tensor_parallel_size": int(row["tp"]),
        "pipeline_parallel_size": int(row["pp"]),
        "data_parallel_size": int(row["dp"]),
    }
    pool = build(Pool, {"gpu": row["gpu"], **parallelism, **_values(settings)}, flags=True)
    engine = find_engine(f"{row['engine']}@{row['version']}")
    profile = load_profile(row["gpu"])
    scheme = _scheme(model, row["quantization"])
    model = loaded_model(model, pool)
    resolved = with_defaults(pool, model, profile=profile, engine=engine, scheme=scheme)
    return memory_with_draft(resolved)


def _values(settings: Mapping[str, str]) -> dict[str, object]:
    return {name: text == "true" if text in ("true", "false") else text for name, text in settings.items()}


def _scheme(model: ModelSpec, quantization: str) -> QuantizationScheme:
    """`nvfp4`, or `nvfp4/bf16` where a checkpoint keeps its attention in another format."""
    if not quantization:
        return model.checkpoint
    weights, _, attention = quantization.partition("/")
    scheme = scheme_for(model, weights)
    return replace(scheme, attention=find_format(attention)) if attention else scheme


def main() -> None:
    lines = score(Path(sys.argv[1]) if len(sys.argv) > 1 else TABLE)
    for line in lines:
        held = line.plan
        parts = (held.weights_bytes, held.activations_bytes, held.nontorch_bytes, held.graph_bytes)
        print(
            f"{line.error:+7.1%}  {line.part:<6} {line.label:<62}"
            f" {line.predicted:>12,.2f} {line.printed:>12,.2f}  "
            + " ".join(f"{part / GIB:6.2f}" for part in parts)
        )
    kinds = Counter((part, line.engine) for line in lines for part in (line.part, None))
    for (part, engine), count in sorted(kinds.items(), key=lambda kind: (kind[0][1], kind[0][0] or "~")):
        middle, ninth = errors_of(lines, part, engine)
        print(
            f"{engine:<8} {part or 'all':<6} {count:3d} lines, median {middle:.1%}, 90th percentile {ninth:.1%}"
        )


if __name__ == "__main__":
    main()
