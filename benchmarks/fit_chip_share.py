"""Fit the share of kernel rates that a chip without kernel tables reaches, to published served means.

    python benchmarks/fit_chip_share.py [--check | --table]

The rows are `tests/data/served_chips.csv`: means of closed loops, each with source, date, settings and use (`fitted`,
`chosen by` or `judged`). SGLang's benchmark draws lengths between 1 and its setting, so rows of it have half
the setting and a ratio next to 1. A row without TPOT has the output tokens/s of the run. The share makes TPOT (or
throughput) right at the median of the fitted sources; no constant is fitted to TTFT. It goes into
`[step_time.chip_share]` of the chip's profiles, with `error_factor` and `ttft_error_factor`: what the next source may
be off, up or down, in nine cases of ten, by the spread of these (Student's t); that of TTFT about no error, because
nothing centres it. Chips of the same maker with no fit of their own (`UNFITTED`) take the larger of these factors and
their assumed ones. `--check` says what would change. `--table` prints the errors and interval coverage by vendor, in
the form of docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from statistics import median, stdev
from typing import Any

import numpy as np
import pandas as pd
from fit_inputs import listed_inputs
from fit_profiles import BUNDLED, rounded, with_section
from scipy.stats import t as student

import capacity
from capacity.answers.records import Quantity, Simulation

ROWS = Path(__file__).parent.parent / "tests" / "data" / "served_chips.csv"
CHIPS = {"cdna3": ("mi300x-192gb", "mi325x-256gb"), "trainium2": ("trainium2-96gb",)}
UNFITTED = {"cdna3": ("mi350x-288gb", "mi355x-288gb")}
VENDORS = {
    "AMD MI300X, MI325X": ("mi300x", "mi325x"),
    "AMD MI355X": ("mi355x",),
    "AWS Trainium2": ("trainium2",),
    "Google TPU v6e": ("tpu-v6e",),
    "Intel Gaudi 3": ("gaudi3",),
}
SETTINGS = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
ROUNDS = 6  # each takes away what is left of the error


def predict(row: Any, profiles: Path | None = None) -> Simulation:
    """Return the simulated run of this row, on the profiles of this folder (None: those that ship)."""
    options: dict[str, Any] = {
        name: int(value) for name in SETTINGS if not pd.isna(value := getattr(row, name))
    }
    if not pd.isna(row.quantization):
        options["quantization"] = row.quantization
    return capacity.simulate(
        row.model,
        profiles=profiles,
        gpu=row.gpu,
        tensor_parallel_size=row.tensor_parallel_size,
        engine=row.engine,
        kv_cache_dtype=row.kv_cache_dtype,
        input_len=row.input_len,
        output_len=row.output_len,
        random_range_ratio=row.random_range_ratio,
        concurrency=row.concurrency,
        num_prompts=row.num_prompts,
        **options,
    )


def measured_ratios(row: Any, answer: Simulation) -> dict[str, Quantity]:
    """Return predicted / measured times with their intervals for unknown settings: `token` and, if measured, `ttft`.

    `token` is TPOT or, for a row without it, seconds per output token, as sure as the time that a request takes.
    """
    known = answer.as_found_ms
    if pd.isna(row.mean_tpot_ms):
        e2e = known["mean_e2el_ms"]
        found = {"token": e2e.scale(row.output_tok_s / answer.run.summary.output_throughput / e2e.value)}
    else:
        found = {"token": known["mean_tpot_ms"].scale(1 / row.mean_tpot_ms)}
    if not pd.isna(row.mean_ttft_ms):
        found["ttft"] = known["mean_ttft_ms"].scale(1 / row.mean_ttft_ms)
    return found


def log_errors(row: Any, profiles: Path | None = None) -> tuple[float, float]:
    """Return ln(predicted / measured) of the row's `token` time and of TTFT (NaN: not measured)."""
    found = measured_ratios(row, predict(row, profiles))
    return math.log(found["token"].value), math.log(found["ttft"].value) if "ttft" in found else math.nan


def fit(rows: pd.DataFrame, cards: tuple[str, ...]) -> dict[str, Any]:
    """`error_factor` and `chip_share` of these cards."""
    share = 1.0
    with tempfile.TemporaryDirectory() as scratch:
        for step in range(ROUNDS):
            folder = Path(scratch) / str(step)
            folder.mkdir()
            for card in cards:
                text = text_with(card, section(share, rows, error_factor=1.0))
                (folder / f"{card}.toml").write_text(text, encoding="utf-8")
            errors = [log_errors(row, folder) for row in rows.itertuples()]
            table = pd.DataFrame(errors, columns=["TPOT", "TTFT"]).groupby(rows["source"].to_numpy()).median()
            print(f"share {share:.4f}\n{table.round(3)}", file=sys.stderr)
            sources = table["TPOT"].tolist()
            if step < ROUNDS - 1:
                share = min(1.0, share * math.exp(median(sources)))
    factors = error_factors(sources, table["TTFT"].dropna().tolist())
    return section(share, rows, error_factor=factors[0], ttft_error_factor=factors[1])


def error_factors(tpot: list[float], ttft: list[float]) -> tuple[float, float]:
    """Return by what factors a further source may be off, from the median log errors of these."""
    count = len(tpot)
    spread = stdev(tpot) * math.sqrt(1 + 1 / count)
    off = math.sqrt(sum(error**2 for error in ttft) / len(ttft))
    return (
        math.exp(student.ppf(0.95, count - 1) * spread),
        math.exp(student.ppf(0.95, len(ttft)) * off),
    )


def section(
    share: float, rows: pd.DataFrame, *, error_factor: float, ttft_error_factor: float = 1.0
) -> dict[str, Any]:
    """What belongs under `[step_time]`."""
    provenance = {
        "basis": "fitted",
        "source": f"served means: {', '.join(dict.fromkeys(rows['source']))} (tests/data/{ROWS.name})",
        "date": max(rows["date"]),
        "rows": len(rows),
    }
    return {
        "error_factor": round(error_factor, 2),
        "ttft_error_factor": round(ttft_error_factor, 2),
        "chip_share": {"share": rounded(share), "fit": provenance},
    }


def assumed_factors(card: str, found: dict[str, Any]) -> dict[str, Any]:
    """The error factors of a chip without a fit of its own: the fitted chips', where its own are smaller."""
    own = tomllib.loads((BUNDLED / f"{card}.toml").read_text(encoding="utf-8"))["step_time"]
    return {name: max(found[name], own.get(name, 1.0)) for name in ("error_factor", "ttft_error_factor")}


def text_with(card: str, found: dict[str, Any]) -> str:
    """The card's profile with this in its section."""
    text = (BUNDLED / f"{card}.toml").read_text(encoding="utf-8")
    own = {key: value for key, value in tomllib.loads(text)["step_time"].items() if key not in found}
    kept = {key: value for key, value in own.items() if not isinstance(value, dict)}
    return with_section(text, {**kept, **found, **own})


def table_groups(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows by vendor and use, with the labels of the table of docs/accuracy.md."""
    return {
        f"{vendor}, {use}": own
        for vendor, cards in VENDORS.items()
        for use, own in rows[rows["gpu"].isin(cards)].groupby("used_for", sort=True)
    }


def table_cells(rows: pd.DataFrame) -> list[str]:
    """Return one line of the table: number of sources and rows, and the errors of TPOT and TTFT with the coverage."""
    ratios = [measured_ratios(row, predict(row)) for row in rows.itertuples()]
    cells = [str(rows["source"].nunique()), str(len(rows))]
    for metric in ("token", "ttft"):
        measured = [each[metric] for each in ratios if metric in each]
        cells.append(error_cell(measured) if measured else "")
    return cells


def error_cell(ratios: Sequence[Quantity]) -> str:
    """Return median and p90 error of predicted / measured ratios, their median sign, and how many intervals hold."""
    errors = np.array([each.value - 1 for each in ratios])
    middle, tail = np.quantile(abs(errors), (0.5, 0.9))
    held = sum(each.low <= 1 <= each.high for each in ratios)
    return f"{middle:.0%} / {tail:.0%} ({np.median(errors):+.0%}), {held} of {len(ratios)}".replace("%", " %")


def main() -> int:
    """Fit each chip; write its profiles, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if anything would change")
    parser.add_argument(
        "--table", action="store_true", help="print errors and coverage by vendor; write nothing"
    )
    arguments = parser.parse_args()
    table = pd.read_csv(ROWS)
    if arguments.table:
        for label, rows in table_groups(table).items():
            print(f"| {label} | {' | '.join(table_cells(rows))} |")
        return 0
    changed = []
    fitted = table[table["used_for"] == "fitted"]
    for chip, cards in CHIPS.items():
        found = fit(fitted[fitted["gpu"].isin([card.partition("-")[0] for card in cards])], cards)
        unfitted = UNFITTED.get(chip, ())
        for card in cards + unfitted:
            text, path = (
                text_with(card, found if card in cards else assumed_factors(card, found)),
                BUNDLED / f"{card}.toml",
            )
            if path.read_text(encoding="utf-8") != text:
                changed.append(card)
                if not arguments.check:
                    path.write_text(text, encoding="utf-8")
    print(
        f"{len(changed)} profiles {'differ' if arguments.check else 'written'}: {', '.join(changed) or 'none'}"
    )
    return 1 if arguments.check and changed else 0


if __name__ == "__main__":
    with listed_inputs():
        raise SystemExit(main())
