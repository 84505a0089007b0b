"""How far off the step model is, by source, GPU, engine, model and metric, and how often its intervals hold.

    python benchmarks/accuracy.py [--measured DIR] [--html FILE] [--served-every N]

Three tables: kernels (each held out by shape from the fit that predicts it), whole steps (no kernel constant is
fitted to them), and reliability: nominal 90 % intervals against how often the measurement lay inside, each group
judged by intervals made from the other groups alone. Without the reference library only the published steps are
judged. `--html` draws predicted against measured. `--served-every N` also replays every n-th served closed-loop row
through the simulator (1: all 646 dense and 935 MoE rows, hours; `served_rows.py` has more choices).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import served_rows
from fit_profiles import INTERVAL, default_measured
from reference_tables import Operator, operators
from step_evidence import Evidence, all_evidence

from capacity.hardware.calibration import cross_validate, group_quantile

Pair = tuple[float, float]  # predicted, measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a table."""

    label: str
    rows: int
    median: float
    p90: float
    bias: float
    target: str = ""

    def __str__(self) -> str:
        text = f"{self.label:58s} {self.rows:6d} {self.median:7.1%} {self.p90:7.1%} {self.bias:+7.1%}"
        return f"{text}   {self.target}".rstrip()


HEADER = f"{'':58s} {'n':>6s} {'median':>7s} {'p90':>7s} {'bias':>7s}   target"


def line(label: str, pairs: Sequence[Pair], target: str = "") -> Line:
    """Absolute relative errors of (predicted, measured) pairs."""
    predicted, measured = np.array(pairs, dtype=np.float64).T
    error = predicted / measured - 1.0
    return Line(
        label=label,
        rows=len(pairs),
        median=float(np.median(np.abs(error))),
        p90=float(np.quantile(np.abs(error), 0.9)),
        bias=float(np.median(error)),
        target=target,
    )


# kernels

CORE = ("a100", "h100", "h200", "b200")
Key = tuple[str, str, str]
TARGETS: tuple[tuple[str, str, Callable[[Key], bool], str, str], ...] = (
    ("GEMM bf16, A100 H100 H200 B200", "gemm", lambda k: k[2] == "bf16" and k[0] in CORE, "", "6 / 17 %"),
    ("GEMM fp8, TensorRT-LLM", "gemm", lambda k: k[1:] == ("trtllm", "fp8") and k[0] in CORE, "", "5 / 15 %"),
    (
        "GEMM fp8 block, TensorRT-LLM B200",
        "gemm",
        lambda k: k == ("b200", "trtllm", "fp8_block"),
        "",
        "5 / 15 %",
    ),
    ("GEMM fp8 block, all", "gemm", lambda k: k[2] == "fp8_block" and k[0] in CORE, "", "5 / 15 %"),
    ("GEMM fp8, vLLM", "gemm", lambda k: k[1:] == ("vllm", "fp8") and k[0] in CORE, "", "9 / 28 %"),
    (
        "GEMM nvfp4, TensorRT-LLM and vLLM",
        "gemm",
        lambda k: k[2] == "nvfp4" and k[1] != "sglang",
        "",
        "8 / 22 %",
    ),
    ("decode attention, KV > 1.5 L2", "decode_attention", lambda k: k[0] in CORE, "HBM", "5 / 15 %"),
    ("decode attention, KV in L2, cold-corrected", "decode_attention", lambda k: k[0] in CORE, "L2", ""),
    ("prefill attention, 512 tokens and more", "prefill_attention", lambda k: k[0] in CORE, "", "6 / 20 %"),
    ("all-reduce, 2 to 8 ranks", "all_reduce", lambda k: k[0] in CORE, "", "6 / 22 %"),
    ("fused experts, balanced, Hopper", "moe", lambda k: k[0] in ("h100", "h200"), "", "8 / 30 %"),
    ("fused experts, balanced, all", "moe", bool, "", "8 / 30 %"),
    ("MLA prefill", "mla_prefill", lambda k: k[0] in CORE, "", "12 / 35 %"),
    ("MLA decode", "mla_decode", lambda k: k[0] in CORE, "", "12 / 35 %"),
)


def held_out(operator: Operator) -> list[tuple[Key, str, Pair]]:
    """(table, regime, (predicted, measured)) of every row, predicted by fits that did not see its group."""
    pools: dict[Hashable, dict[Key, list]] = {}
    for key, rows in operator.tables.items():
        pools.setdefault(operator.pools(key), {})[key] = rows
    found = []
    for tables in pools.values():
        for regime in sorted({m.regime for rows in tables.values() for m in rows}):
            pairs = cross_validate(
                operator.predict, tables, operator.parameters, judged=lambda m, r=regime: m.regime == r
            )
            found += [(key, regime, pair) for key, of_table in pairs.items() for pair in of_table]
    return found


def kernel_tables(measured: Path) -> tuple[list[Line], list[Line]]:
    """The targets' classes, and every table."""
    by_operator: dict[str, list[tuple[Key, str, Pair]]] = {}
    for operator in operators(measured):
        by_operator.setdefault(operator.name, []).extend(held_out(operator))
    classes = [
        line(
            label, [pair for key, of, pair in by_operator[name] if wanted(key) and regime in ("", of)], target
        )
        for label, name, wanted, regime, target in TARGETS
    ]
    tables: dict[str, list[Pair]] = {}
    for name, rows in by_operator.items():
        for key, regime, pair in rows:
            tables.setdefault(" ".join((name, *key, regime)).strip(), []).append(pair)
    return classes, [line(label, pairs) for label, pairs in sorted(tables.items())]


# whole steps


def step_table(evidence: Iterable[Evidence]) -> list[Line]:
    """By source and regime, then by group."""
    sources: dict[str, list[Pair]] = {}
    groups: dict[str, list[Pair]] = {}
    for e in evidence:
        pair = (e.predicted_s, e.measured_s)
        sources.setdefault(f"{e.source}: {e.regime}", []).append(pair)
        groups.setdefault(f"  {e.regime}: {e.group}"[:58], []).append(pair)
        if e.source == "vLLM log":
            sources.setdefault("vLLM log: every step", []).append(pair)
    targets = {
        "vLLM log: every step": "8 / 20 %",
        "served dense: decode": "5 / 14 % (through the simulator)",
        "served moe: decode_moe": "12 / 35 % (through the simulator)",
    }
    lines = [line(label, pairs, targets.get(label, "")) for label, pairs in sorted(sources.items())]
    return lines + [line(label, pairs) for label, pairs in sorted(groups.items())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Intervals of one regime, each group judged by those of the others."""

    regime: str
    groups: int
    rows: int
    coverage: float  # share of measurements inside, every group counting the same
    half_width: float  # median over groups

    def __str__(self) -> str:
        return (
            f"{self.regime:12s} {self.groups:4d} groups {self.rows:6d} rows   nominal 90 %   observed "
            f"{self.coverage:6.1%}   half width {self.half_width:6.1%}"
        )


def reliability(evidence: Sequence[Evidence]) -> list[Reliability]:
    """Leave-one-group-out coverage of the intervals, by regime."""
    found = []
    for regime in sorted({e.regime for e in evidence}):
        rows = [(e.group, e.measured_s / e.predicted_s) for e in evidence if e.regime == regime]
        groups = sorted({group for group, _ in rows})
        if len(groups) < 3:
            continue
        inside, widths = [], []
        for left_out in groups:
            others = [row for row in rows if row[0] != left_out]
            low, high = (group_quantile(others, fraction) for fraction in INTERVAL)
            own = [value for group, value in rows if group == left_out]
            inside.append(sum(low <= value <= high for value in own) / len(own))
            widths.append((high - low) / 2)
        found.append(
            Reliability(
                regime=regime,
                groups=len(groups),
                rows=len(rows),
                coverage=float(np.mean(inside)),
                half_width=float(np.median(widths)),
            )
        )
    return found


def parity_plot(evidence: Sequence[Evidence], path: Path) -> None:
    """Predicted against measured seconds, log-log, a colour for each GPU, as HTML."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for gpu in sorted({e.gpu for e in evidence}):
        own = [e for e in evidence if e.gpu == gpu]
        figure.add_scatter(
            x=[e.measured_s for e in own],
            y=[e.predicted_s for e in own],
            text=[f"{e.group}, {e.error:+.0%}" for e in own],
            mode="markers",
            name=gpu,
        )
    ends = [min(e.measured_s for e in evidence), max(e.measured_s for e in evidence)]
    figure.add_scatter(x=ends, y=ends, mode="lines", name="equal", line={"color": "black", "width": 1})
    figure.update_xaxes(type="log", title="measured (s)")
    figure.update_yaxes(type="log", title="predicted (s)")
    figure.write_html(path, include_plotlyjs="cdn")


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measured", type=Path, default=default_measured())
    parser.add_argument("--html", type=Path, help="also draw a parity plot")
    parser.add_argument("--served-every", type=int, default=0, help="also replay every n-th served row")
    arguments = parser.parse_args()
    full = arguments.measured.is_dir()
    if full:
        classes, tables = kernel_tables(arguments.measured)
        print("Kernels, held out by shape", HEADER[26:], *classes, "", *tables, sep="\n", end="\n\n")
    else:
        print(f"no measured tables in {arguments.measured}: published steps only", file=sys.stderr)
    evidence = all_evidence(arguments.measured if full else None)
    print("Whole steps", HEADER, *step_table(evidence), sep="\n", end="\n\n")
    print("Reliability of 90 % intervals, each group judged by the others'", *reliability(evidence), sep="\n")
    if arguments.served_every and full:
        print("\nServed rows, in closed loop through the simulator")
        served_rows.main(["--every", str(arguments.served_every)])
    if arguments.html:
        parity_plot(evidence, arguments.html)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
