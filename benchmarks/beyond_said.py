"""What servers lie off of which not all is said, beyond what the other parts of an interval explain.

Of every such figure (`not_all_said`) the deviation of one part more is found with which its interval would have held;
what is kept is a quantile of these, every source the same weight. Which quantile: the first at which intervals hold of
sources that had no part in them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from interval_evidence import PUBLISHED, Figure
from left_out import Judged, without_client_range
from spread_model import COUNTED, WHOLE_SOURCE, Floats, ends_name, not_all_said

from capacity.answers.interval_parts import NINETY, Part, beyond_said_part, deviation_of
from capacity.hardware.spreads import Unsaid

NOMINAL = 0.9
ENOUGH = {"ttft": 0.85, "tpot": 0.9}
"""Of what strangers published, of the mean of figures and sources; of either `LEAST`. Nine in ten of the TTFTs of dense
models would take a factor of four either way, for a few pages that leave open what of their prompts was cached."""
LEAST = 0.85
QUANTILES = tuple(step / 200 for step in range(130, 199))
MOST = 1.5  # of a logarithm
KINDS = ("dense", "moe")

Ends = Mapping[str, tuple[float, float]]


def fit_quantiles(judged: Sequence[Judged], ends_without: Callable[[str], Ends]) -> dict[str, float]:
    """By kind of model and metric; `ends_without`: the ends that sources other than one gave."""
    found = {}
    for name, rows in _by_name(judged).items():
        left_out = _LeftOut(rows, ends_without, ENOUGH[name.split()[1]])
        found[name] = next(filter(left_out.holds_enough, QUANTILES), QUANTILES[-1])
    return found


class _LeftOut:
    """Figures of one kind and metric, each judged by what sources other than its own need."""

    def __init__(
        self, rows: Sequence[Judged], ends_without: Callable[[str], Ends], of_strangers: float
    ) -> None:
        self._rows = rows
        self._of_strangers = of_strangers
        self._weights = _weights(rows)
        self._source = np.array([each.left_out for each in rows])
        self._needed = {
            source: np.array([_needed(each, ends_without(source)) for each in rows])
            for source in set(self._source.tolist())
        }

    def holds_enough(self, quantile: float) -> bool:
        """Whether that quantile of the others' is enough: of all figures and sources, and of those of strangers."""
        held = self._held(quantile)
        if (held.mean() + self._weights @ held) / 2 < NOMINAL:
            return False
        by_strangers = np.array([each.figure.said == PUBLISHED for each in self._rows])
        if not by_strangers.any():
            return True
        own = held[by_strangers]
        weights = _weights([each for each in self._rows if each.figure.said == PUBLISHED])
        shares = own.mean(), float(weights @ own)
        return min(shares) >= LEAST and sum(shares) / 2 >= self._of_strangers

    def _held(self, quantile: float) -> Floats:
        found = np.zeros(len(self._rows))
        for source, needed in self._needed.items():
            own = self._source == source
            found[own] = needed[own] <= _quantile(needed[~own], self._weights[~own], quantile)
        return found


def spreads_of(judged: Iterable[Judged], ends: Ends, quantiles: Mapping[str, float]) -> dict[str, Unsaid]:
    """By kind of model."""
    by_name = _by_name(judged)
    found = {}
    for kind in KINDS:
        rows = {metric: by_name.get(f"{kind} {metric}", []) for metric in ("ttft", "tpot")}
        if not all(rows.values()) or any(f"{kind} {metric}" not in quantiles for metric in rows):
            continue
        ttft, tpot = (
            _quantile(np.array([_needed(e, ends) for e in own]), _weights(own), quantiles[f"{kind} {metric}"])
            for metric, own in rows.items()
        )
        deployments = {each.figure.group for own in rows.values() for each in own}
        found[kind] = Unsaid(ttft=round(ttft, 3), tpot=round(tpot, 3), deployments=len(deployments))
    return found


def parts_of(figure: Figure, spreads: Mapping[str, Unsaid]) -> tuple[Part, ...]:
    """The part of an interval, where not all is said of a figure."""
    spread = spreads.get("moe" if figure.is_moe else "dense")
    if spread is None or not not_all_said(figure):
        return ()
    return (beyond_said_part(figure.metric, spread, figure.ttft_share),)


def _by_name(judged: Iterable[Judged]) -> dict[str, list[Judged]]:
    """TTFTs and TPOTs by kind of model: a request's time has both."""
    found: dict[str, list[Judged]] = {}
    for each in judged:
        if not_all_said(each.figure) and each.figure.metric != "e2e":
            kind = "moe" if each.figure.is_moe else "dense"
            found.setdefault(f"{kind} {each.figure.metric}", []).append(each)
    return found


def _needed(each: Judged, ends: Ends) -> float:
    """The deviation of one part more with which the interval of a figure would just have held."""
    figure, off = each.figure, each.figure.log_error
    if figure.metric != "tpot":
        off = without_client_range(off, figure.predicted_s)
    low, high = ends[ends_name(figure)]
    others = NINETY * deviation_of(part for part in each.parts if not part.judged)
    judged = (high if off > 0 else low) * deviation_of(part for part in each.parts if part.judged)
    return math.sqrt(max(off**2 - others**2 - judged**2, 0.0)) / NINETY


def _quantile(needed: Floats, weights: Floats, quantile: float) -> float:
    order = np.argsort(needed)
    cumulated = np.cumsum(weights[order]) - weights[order] / 2
    return min(float(np.interp(quantile * weights.sum(), cumulated, needed[order])), MOST)


def _weights(rows: Sequence[Judged]) -> Floats:
    return weights_of([each.left_out for each in rows], [each.figure.group for each in rows])


def weights_of(sources: Sequence[str], groups: Sequence[str]) -> Floats:
    """Of rows: sources count the same, and in them deployments, those of few figures for as much less as in the fit."""
    pairs = list(zip(sources, groups, strict=True))
    figures, of_group = Counter(sources), Counter(pairs)
    counts = {pair: min(number / COUNTED, 1.0) for pair, number in of_group.items()}
    of_source: Counter[str] = Counter()
    for (source, _), count in counts.items():
        of_source[source] += count  # type: ignore[assignment]
    weights = np.array(
        [min(figures[s] / WHOLE_SOURCE, 1.0) * counts[s, g] / of_source[s] / of_group[s, g] for s, g in pairs]
    )
    found: Floats = weights / weights.sum()
    return found
