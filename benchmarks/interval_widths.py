"""How wide the intervals of ordinary questions are, and how often they hold for sources that nothing was fitted to.

    python benchmarks/interval_widths.py            half-widths of 48 questions: 2 CPU minutes
    python benchmarks/interval_widths.py --judge    also the share held, by level of knowledge, metric and vendor, of
                                                    the rows that judge: judged_runs.csv and the evaluation set
    python benchmarks/interval_widths.py --record   rewrite the share held of published_runs.csv in spreads.toml: no
                                                    fit uses these rows, so it needs none (`fit_spreads.py --write`)

Each row is predicted at three levels of knowledge (`blind_figures.py`): nothing known of the server, its release known,
its launch line known. The client is not known at any of them. Nothing is chosen with these rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

import served_blind
import served_public
from blind_figures import blind_figures
from fit_spreads import HEADER, SPREADS, by_level, coverage
from interval_evidence import Figure
from left_out import Judged, add_client_latency_range, asked_of
from served_data import shared_folder
from spreads_file import write

import capacity
from capacity.answers.interval_parts import interval_parts, kind_of, relative_ends
from capacity.answers.published_runs import NOT_ENGINE_FIELDS
from capacity.answers.records import Quantity
from capacity.base.errors import CapacityError
from capacity.hardware import load_profile
from capacity.hardware.spreads import load_spreads

MODELS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {},
    "llama-3.1-70b": {"tensor_parallel_size": 4},
    "qwen3-30b-a3b": {},
    "gpt-oss-120b": {"tensor_parallel_size": 2},
}
GPUS = ("h100", "h200", "b200", "a100")
CONCURRENCIES = (1, 16, 64)


def half_width(found: Quantity) -> float:
    """Half of the interval over the prediction."""
    assert found.low is not None
    assert found.high is not None
    return (found.high - found.low) / 2 / found.value


def half_widths(
    models: Sequence[str] = tuple(MODELS), gpus: Sequence[str] = GPUS, loads: Sequence[int] = CONCURRENCIES
) -> Iterator[tuple[str, str, int, float, float]]:
    """Model, GPU, concurrency, and the half-widths of TTFT and TPOT of 1,000 tokens in and out."""
    for model in models:
        for gpu in gpus:
            for concurrency in loads:
                asked = {"gpu": gpu, "input_len": 1000, "output_len": 1000, "concurrency": concurrency}
                try:
                    found = capacity.estimate(model, **MODELS[model], **asked, max_model_len=8192)
                except CapacityError as error:
                    print(f"{model} {gpu}: {error}", file=sys.stderr)
                    continue
                if found.ttft_s is not None and found.tpot_s is not None:
                    yield model, gpu, concurrency, half_width(found.ttft_s), half_width(found.tpot_s)


def held(figures: Iterable[Figure]) -> list[tuple[Judged, bool, float]]:
    """Return for each figure whether the interval of a server as found held, and its half-width."""
    found = []
    for figure in figures:
        asked, known = asked_of(figure), load_spreads()
        parts = interval_parts(figure.metric, dict(figure.sensitivity), asked, known)
        low, high = relative_ends(parts, kind_of(figure.metric, asked, known))
        if figure.metric != "tpot":
            low, high = add_client_latency_range(low, high, figure.predicted_s)
        inside = low <= figure.measured_s / figure.predicted_s <= high
        found.append((Judged(figure, figure.source, parts, 0.0), inside, (high - low) / 2))
    return found


def judging_rows() -> list[dict[str, str]]:
    """Return the rows of single engines that judge; without the folder of reference data, only `judged_runs.csv`."""
    folder = shared_folder()
    rows = served_blind.read_rows(served_blind.JUDGED)
    rows += [] if folder is None else served_public.read_rows(folder)
    return [row for row in rows if not any(name in row["settings"] for name in NOT_ENGINE_FIELDS)]


def by_vendor(figure: Figure) -> str | None:
    """Name figures as `by_level` does, with the vendor of the GPU."""
    level = by_level(figure)
    return level and f"{load_profile(figure.gpu).vendor}: {level}"


def record() -> None:
    """Rewrite the coverage of the published rows in `spreads.toml`."""
    known = load_spreads()
    found = {each.label: each.kept for each in coverage(held(blind_figures()), by_level)}
    write(known.model_copy(update={"held": {**known.held, **found}}), SPREADS)


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--judge", action="store_true", help="also the share held of the judging rows")
    parser.add_argument("--record", action="store_true", help="rewrite the share held of the published rows")
    options = parser.parse_args()
    if options.record:
        record()
        return 0
    rows = list(half_widths())
    for model in (*MODELS, None):
        own = [row for row in rows if model in (row[0], None)]
        print(
            f"{model or 'all':16s} n {len(own):3d}  TTFT ±{median(r[3] for r in own):.0%}  "
            f"TPOT ±{median(r[4] for r in own):.0%}"
        )
    if options.judge:
        judged = held(blind_figures(judging_rows()))
        print(HEADER, *coverage(judged, by_vendor), *coverage(judged, by_level), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
