"""What machines, clients and builds differ by, beyond what the other parts of an interval explain.

`other_machines`: of servers whose launch and release are known, on machines of campaigns and laboratories that had no
part in anything else. `beyond_said`: of servers of which none of that is known. Of every such figure the deviation of
one part more is found with which its interval would have held; a quantile of these is kept, every source the same
weight. No figure of `capacity/answers/published_runs.csv` is used: those judge.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from interval_evidence import ALL, NOTHING, OTHER_LAB, Figure
from left_out import Judged, without_client_range
from spread_model import COUNTED, WHOLE_SOURCE, Floats, ends_name, ends_on, usable

from capacity.answers.interval_parts import LAUNCH_SETTINGS, Z_90, Part, deviation_of, machine_part
from capacity.hardware.spreads import UnspecifiedSpread

NOMINAL = 0.9
LABORATORIES = 0.8  # the least share of their figures that is inside
QUANTILES = tuple(step / 200 for step in range(180, 199))  # at least the nominal one
MOST = 1.5  # of a logarithm
KINDS = ("dense", "moe")

Ends = Mapping[str, tuple[float, float]]


def fit_quantiles(
    judged: Iterable[Judged], ends_without: Callable[[str], Ends], counts: Callable[[Judged], bool]
) -> dict[str, float]:
    """By kind of model and metric, of figures that count; `ends_without`: the ends that sources other than one gave."""
    found = {}
    for name, rows in _by_name(filter(counts, judged)).items():
        found[name] = next(filter(_LeftOut(rows, ends_without).holds_enough, QUANTILES), QUANTILES[-1])
    return found


def nothing_said(each: Judged) -> bool:
    """Means of a server of which neither release nor launch settings are known."""
    figure = each.figure
    return figure.said == NOTHING and usable(figure) and figure.statistic in ("mean", "median")


def all_said(each: Judged) -> bool:
    """Means of a server whose release and launch settings are known."""
    return each.figure.said == OTHER_LAB or ends_on(each.figure)


class _LeftOut:
    """Figures of one kind and metric, each judged by what others than those left out with it need."""

    def __init__(self, rows: Sequence[Judged], ends_without: Callable[[str], Ends]) -> None:
        self._weights = _weights(rows)
        self._left_out = np.array([each.left_out for each in rows])
        laboratory = np.array([each.figure.said == OTHER_LAB for each in rows])
        several = len({campaign_of(row.figure) for row, own in zip(rows, laboratory) if own}) > 1
        self._laboratories = laboratory if several else np.zeros(len(rows), bool)
        self._needed = np.array([_needed(each, ends_without(each.left_out)) for each in rows])

    def holds_enough(self, quantile: float) -> bool:
        """Whether that quantile of the others' is enough: of all figures and sources, and of several laboratories,
        whose servers are as far from the fit as a user's. A single laboratory does not decide."""
        held = self._held(quantile)
        enough = bool((held.mean() + self._weights @ held) / 2 >= NOMINAL)
        own = held[self._laboratories]
        return enough and (not own.size or bool(own.mean() >= LABORATORIES))

    def _held(self, quantile: float) -> Floats:
        found = np.zeros(len(self._left_out))
        for name in set(self._left_out.tolist()):
            own = self._left_out == name
            limit = _quantile(self._needed[~own], self._weights[~own], quantile)
            found[own] = self._needed[own] <= limit
        return found


def campaign_of(figure: Figure) -> str:
    """Return whose machines a figure is of: the first word of its source."""
    return figure.source.split()[0]


def spreads_of(
    judged: Iterable[Judged], ends: Ends, quantiles: Mapping[str, float]
) -> dict[str, UnspecifiedSpread]:
    """By kind of model, of servers of which nothing is known."""
    return _spreads(filter(nothing_said, judged), ends, quantiles.get)


def other_machines(
    judged: Iterable[Judged], ends: Ends, quantiles: Mapping[str, float]
) -> dict[str, UnspecifiedSpread]:
    """By kind of model, of servers whose launch is known."""
    return _spreads(filter(all_said, judged), ends, quantiles.get)


def _spreads(
    judged: Iterable[Judged], ends: Ends, quantile: Callable[[str], float | None]
) -> dict[str, UnspecifiedSpread]:
    by_name = _by_name(judged)
    found = {}
    for kind in KINDS:
        deviations, groups = {}, set()
        for metric in ("ttft", "tpot"):
            rows, level = by_name.get(f"{kind} {metric}", []), quantile(f"{kind} {metric}")
            if rows and level is not None:
                needed = np.array([_needed(each, ends) for each in rows])
                deviations[metric] = round(_quantile(needed, _weights(rows), level), 3)
                groups |= {each.figure.group for each in rows}
        if len(deviations) == 2:
            found[kind] = UnspecifiedSpread(**deviations, deployments=len(groups))
    return found


def parts_of(
    figure: Figure, least: Mapping[str, UnspecifiedSpread], most: Mapping[str, UnspecifiedSpread]
) -> tuple[Part, ...]:
    """The part of an interval for the machine, as the product has it."""
    kind = "moe" if figure.is_moe else "dense"
    if kind not in least:
        return ()
    unsaid = LAUNCH_SETTINGS if figure.said == NOTHING else len(figure.unsaid.split())
    share = unsaid / LAUNCH_SETTINGS
    return (machine_part(figure.metric, least[kind], most.get(kind), share, figure.ttft_share),)


def _by_name(judged: Iterable[Judged]) -> dict[str, list[Judged]]:
    """TTFTs and TPOTs by kind of model: a request's time has both."""
    found: dict[str, list[Judged]] = {}
    for each in judged:
        if each.figure.metric != "e2e":
            kind = "moe" if each.figure.is_moe else "dense"
            found.setdefault(f"{kind} {each.figure.metric}", []).append(each)
    return found


def _needed(each: Judged, ends: Ends) -> float:
    """The deviation of one part more with which the interval of a figure would just have held."""
    figure, off = each.figure, each.figure.log_error
    if figure.metric != "tpot" and figure.said != ALL:
        off = without_client_range(off, figure.predicted_s)
    low, high = ends[ends_name(figure)]
    others = Z_90 * deviation_of(part for part in each.parts if not part.judged)
    judged = (high if off > 0 else low) * deviation_of(part for part in each.parts if part.judged)
    return math.sqrt(max(off**2 - others**2 - judged**2, 0.0)) / Z_90


def _quantile(needed: Floats, weights: Floats, quantile: float) -> float:
    order = np.argsort(needed)
    cumulated = np.cumsum(weights[order]) - weights[order] / 2
    return min(float(np.interp(quantile * weights.sum(), cumulated, needed[order])), MOST)


def _weights(rows: Sequence[Judged]) -> Floats:
    return weights_of([each.figure.source for each in rows], [each.figure.group for each in rows])


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
