"""How far off the predictions are, by source, GPU, engine, model and metric, and how often the intervals hold.

    python benchmarks/accuracy.py [--measured DIR] [--html FILE] [--served-every N] [--intervals]

DIR is the reference library's folder of measured tables; without the library, the sample of it that ships with the
tests (`tests/data/measured`, every row with its source; `docs/evidence.md` has their licences). The same readers and
the same fits judge both: kernels, each predicted by a fit that its shape was left out of, and beside that by the
constants that ship; kernels of sources that nothing was fitted to; whole steps; served runs through the simulator; KV
capacity on start-up lines. `used for` says what each was to these predictions: fitted, chosen by (a choice of form
was made with them in view), or only judged. Then reliability: nominal 90 % intervals against how often the
measurement lay inside, each group judged by intervals made from the other groups alone. `--html` draws predicted
against measured. A fourth, the intervals of served runs, each source of measurements judged by the others': as it stood
when the spreads were fitted (`capacity/hardware/spreads.toml`), or with `--intervals` made anew from the library (two
minutes of CPU). `--served-every N` also replays every n-th served closed-loop row of the library (`served_rows.py`
has more choices).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import fit_spreads
import kv_startup
import numpy as np
import served_blind
import served_rows
from fit_profiles import BUNDLED, INTERVAL, default_measured, stored_constants
from pooled_fits import group_quantile
from reference_tables import Operator, operators
from reference_tables.elsewhere import elsewhere
from reference_tables.form import profile_of
from reference_tables.held_out import FILE, KernelPrediction, Key, fold_constants, held_out
from served_gpustack import gpustack_runs
from step_evidence import Evidence, all_evidence
from steps_aside import aside

from capacity.hardware.coefficients import GemmCoefficients
from capacity.hardware.power import sustained_constants
from capacity.hardware.spreads import Spreads, load_spreads

SAMPLE = Path(__file__).parent.parent / "tests" / "data" / "measured"
Pair = tuple[float, float]  # predicted, measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a table."""

    label: str
    rows: int
    median: float
    p90: float
    bias: float
    used_for: str = ""
    target: str = ""

    def __str__(self) -> str:
        errors = f"{self.rows:6d} {self.median:7.1%} {self.p90:7.1%} {self.bias:+7.1%}"
        return f"{self.label:58s} {errors}   {self.used_for:9s}   {self.target}".rstrip()


HEADER = f"{'n':>6s} {'median':>7s} {'p90':>7s} {'bias':>7s}   {'used for':9s}   target"


def titled(title: str) -> str:
    """A table's first line."""
    return f"{title:58s} {HEADER}"


def line(label: str, pairs: Sequence[Pair], target: str = "", used_for: str = "") -> Line:
    """Absolute relative errors of (predicted, measured) pairs."""
    predicted, measured = np.array(pairs, dtype=np.float64).T
    error = predicted / measured - 1.0
    return Line(
        label=label,
        rows=len(pairs),
        median=float(np.median(np.abs(error))),
        p90=float(np.quantile(np.abs(error), 0.9)),
        bias=float(np.median(error)),
        used_for=used_for,
        target=target,
    )


# kernels

CORE = ("a100", "h100", "h200", "b200")
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


@cache
def kernel_predictions(measured: Path) -> dict[str, list[KernelPrediction]]:
    """Every row of the kernel tables by operator, predicted without its group."""
    families = operators(measured)
    folds = fold_constants(measured, families)
    found: dict[str, list[KernelPrediction]] = {}
    for operator in families:
        found.setdefault(operator.name, []).extend(held_out(operator, folds))
    return found


def kernel_tables(measured: Path) -> tuple[list[Line], list[Line]]:
    """The targets' classes, and every table."""
    by_operator = kernel_predictions(measured)
    classes = []
    for label, name, wanted, regime, target in TARGETS:
        pairs = [
            (k.held_out_s, k.measured_s)
            for k in by_operator[name]
            if wanted(k.key) and regime in ("", k.regime)
        ]
        classes.append(line(label, pairs, target, "fitted"))
    tables: dict[str, list[Pair]] = {}
    for name, rows in by_operator.items():
        for k in rows:
            label = " ".join((name, *k.key, k.regime)).strip()
            tables.setdefault(label, []).append((k.held_out_s, k.measured_s))
    return classes, [line(label, pairs) for label, pairs in sorted(tables.items())]


ELSEWHERE = {"gemm": "GEMM fp16", "nccl": "NCCL all-reduce of 1 MiB and more"}


def shipped_pairs(operator: Operator, *, in_steps: bool = False) -> dict[Key, list[Pair]]:
    """Every row of an operator's tables by the constants that its profile ships; `in_steps`: at the rates of steps,
    which a source takes that measures one kernel after the other without a pause."""
    found = {}
    for key, rows in operator.tables.items():
        stored = stored_constants(BUNDLED, operator, key)
        constants = {k: v for k, v in stored.items() if k != "fit"}
        if in_steps and "compute_fraction" in stored:
            constants["compute_fraction"] = sustained_constants(
                GemmCoefficients(**stored), profile_of(key[0])
            ).compute_fraction
        found[key] = [(operator.predict(constants, m.row), m.seconds) for m in rows]
    return found


def shipped_tables(measured: Path) -> list[Line]:
    """By operator: kernels as the shipped constants predict them, and those of sources that no fit has seen."""
    lines = []
    pooled: dict[str, list[Pair]] = {}
    for operator in operators(measured):
        pooled.setdefault(operator.name, []).extend(
            p for rows in shipped_pairs(operator).values() for p in rows
        )
    for name, pairs in pooled.items():
        lines.append(line(f"{name.replace('_', ' ')}, all GPUs", pairs, used_for="fitted"))
    for operator in elsewhere(measured):
        for (gpu, _, _), pairs in shipped_pairs(operator, in_steps=True).items():
            lines.append(
                line(f"{ELSEWHERE[operator.name]} of vidur, {gpu.upper()}", pairs, used_for="judged")
            )
    return lines


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
    lines = [
        line(label, pairs, targets.get(label, ""), "chosen by") for label, pairs in sorted(sources.items())
    ]
    return lines + [line(label, pairs) for label, pairs in sorted(groups.items())]


def aside_table(measured: Path) -> list[Line]:
    """Steps that made nothing, by source and GPU."""
    found: dict[str, list[Pair]] = {}
    for e in aside(measured):
        found.setdefault(f"{e.source}: {e.regime}, {e.gpu.split('-')[0].upper()}", []).append(
            (e.predicted_s, e.measured_s)
        )
    return [line(label, pairs, used_for="judged") for label, pairs in found.items()]


def served_table(measured: Path) -> list[Line]:
    """Served runs of public documents through the simulator, by source, load and metric."""
    found: dict[str, list[Pair]] = {}
    for run in gpustack_runs(measured):
        found.setdefault(f"GPUStack, {run.load}: TTFT", []).append(run.ttft_s)
        found.setdefault(f"GPUStack, {run.load}: TPOT", []).append(run.tpot_s)
    return [line(label, pairs, used_for="judged") for label, pairs in sorted(found.items())]


def blind_table() -> list[Line]:
    """Published runs that nothing here was made with, by kind of model and metric."""
    rows = tuple(served_blind.predictions(served_blind.read_rows()))
    lines = [line("Blind rows", [(j.predicted.value, j.measured) for j in rows], used_for="judged")]
    for kind, is_moe in (("dense", False), ("experts", True)):
        for metric in served_blind.METRICS:
            own = [j for j in rows if j.metric == metric and j.is_moe == is_moe]
            label = f"Blind rows, {kind}: {served_blind.NAMES[metric]}"
            lines.append(line(label, [(j.predicted.value, j.measured) for j in own], used_for="judged"))
    return lines


def startup_table() -> list[Line]:
    """KV capacity on engines' start-up lines, by part."""
    found: dict[str, list[Pair]] = {}
    for scored in kv_startup.score():
        found.setdefault(scored.part, []).append((scored.predicted, scored.printed))
    uses = {"tuned": "chosen by", "aside": "judged"}
    return [
        line(f"KV capacity on start-up lines, {part}", found[part], "1 / 4 %", uses.get(part, part))
        for part in sorted(found)
    ]


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


def accuracy_tables(measured: Path) -> dict[str, list[Line]]:
    """Every table by its title."""
    classes, kernels = kernel_tables(measured)
    return {
        "Kernels, held out by shape": classes,
        "Kernels by table": [] if is_sample(measured) else kernels,
        "Kernels by the constants that ship": shipped_tables(measured),
        "Whole steps": step_table(all_evidence(measured)),
        "Steps of sources that made nothing here": aside_table(measured),
        "Served runs through the simulator": served_table(measured),
        "Served runs that nothing here was made with": blind_table(),
        "Memory": startup_table(),
    }


def is_sample(measured: Path) -> bool:
    """Whether these are the tables that ship with the tests, too small to fit."""
    return (measured / FILE).is_file()


def held_lines(known: Spreads) -> list[str]:
    """What the fit of the spreads says of sources that had no part in them."""
    return [
        f"{label:58s} {held.figures:5d} {held.sources:3d}   {held.held:4.0%} {held.held_by_source:4.0%}   "
        f"±{held.half_width:.0%}"
        for label, held in known.held.items()
    ]


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measured", type=Path, default=default_measured())
    parser.add_argument("--html", type=Path, help="also draw a parity plot")
    parser.add_argument("--served-every", type=int, default=0, help="also replay every n-th served row")
    parser.add_argument("--intervals", action="store_true", help="judge the served intervals anew")
    arguments = parser.parse_args()
    measured = arguments.measured if arguments.measured.is_dir() else SAMPLE
    kind = "the sample that ships with the tests" if is_sample(measured) else "the library's"
    print(f"measured tables: {kind} ({measured})\n")
    for title, lines in accuracy_tables(measured).items():
        if lines:
            print(titled(title), *lines, sep="\n", end="\n\n")
    evidence = all_evidence(measured)
    print("Reliability of 90 % intervals, each group judged by the others'", *reliability(evidence), sep="\n")
    if arguments.intervals and not is_sample(measured):
        fit_spreads.main([])
    else:
        known = load_spreads()
        print(
            f"\n90 % intervals of served runs, each source judged by the others', {known.fit.date}",
            fit_spreads.HEADER,
            sep="\n",
        )
        print(*held_lines(known), sep="\n")
    if arguments.served_every and not is_sample(measured):
        print("\nServed rows, in closed loop through the simulator")
        served_rows.main(["--every", str(arguments.served_every)])
    if arguments.html:
        parity_plot(evidence, arguments.html)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
