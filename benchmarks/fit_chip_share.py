"""Fit the share of another chip's kernel rates that a chip without kernel tables reaches, to published served means.

    python benchmarks/fit_chip_share.py [--check]

The rows are `tests/data/served_amd.csv`: means of closed loops, each with source, date and settings. SGLang's
benchmark draws lengths between 1 and its setting, so rows of it have half the setting and a ratio next to 1. The share
makes TPOT right at the median of the sources; no constant is fitted to TTFT. It goes into `[step_time.chip_share]` of
the chip's profiles, with `error_factor` and `ttft_error_factor`: what the next source may be off, up or down, in nine
cases of ten, by the spread of these (Student's t); that of TTFT about no error, because nothing centres it. Chips of
the same maker with no fit of their own (`UNFITTED`) take the larger of these factors and their assumed ones.
`--check` says what would change.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import tomllib
from pathlib import Path
from statistics import median, stdev
from typing import Any

import pandas as pd
from fit_profiles import BUNDLED, rounded, with_section
from scipy.stats import t as student

import capacity

ROWS = Path(__file__).parent.parent / "tests" / "data" / "served_amd.csv"
CHIPS = {"cdna3": ("mi300x-192gb", "mi325x-256gb")}
UNFITTED = ("mi350x-288gb", "mi355x-288gb")
ROUNDS = 6  # each takes away what is left of the error


def log_errors(row: Any, profiles: Path | None) -> tuple[float, float]:
    """ln(predicted / measured) of TPOT and TTFT of the row, on the profiles of this folder."""
    options = {} if pd.isna(row.quantization) else {"quantization": row.quantization}
    if not pd.isna(row.max_num_batched_tokens):
        options["max_num_batched_tokens"] = int(row.max_num_batched_tokens)
    run = capacity.simulate(
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
    ).to_dict()
    return (
        math.log(run["mean_tpot_ms"] / row.mean_tpot_ms),
        math.log(run["mean_ttft_ms"] / row.mean_ttft_ms),
    )


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
    factors = error_factors(sources, table["TTFT"].tolist())
    return section(share, rows, error_factor=factors[0], ttft_error_factor=factors[1])


def error_factors(tpot: list[float], ttft: list[float]) -> tuple[float, float]:
    """Return by what factors a further source may be off, from the median log errors of these."""
    count = len(tpot)
    spread = stdev(tpot) * math.sqrt(1 + 1 / count)
    off = math.sqrt(sum(error**2 for error in ttft) / count)
    return (
        math.exp(student.ppf(0.95, count - 1) * spread),
        math.exp(student.ppf(0.95, count) * off),
    )


def section(
    share: float, rows: pd.DataFrame, *, error_factor: float, ttft_error_factor: float = 1.0
) -> dict[str, Any]:
    """What belongs under `[step_time]`."""
    provenance = {
        "basis": "fitted",
        "source": f"served means on AMD: {', '.join(dict.fromkeys(rows['source']))} (tests/data/{ROWS.name})",
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


def main() -> int:
    """Fit each chip; write its profiles, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if anything would change")
    arguments = parser.parse_args()
    table = pd.read_csv(ROWS)
    changed = []
    for cards in CHIPS.values():
        found = fit(table[table["gpu"].isin([card.partition("-")[0] for card in cards])], cards)
        for card in cards + UNFITTED:
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
    raise SystemExit(main())
