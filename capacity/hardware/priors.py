"""What is known of an adjustment before any run, and how far one measured figure lies from what would be right.

Both are the spreads that intervals are made of: the classes of seconds, what deployments differ by beyond them, and
runs of one deployment from each other.
"""

import math

from capacity.hardware.adjustment import NONE, PARAMETERS, Adjustment
from capacity.hardware.spreads import Kind, Spreads, spreads

MOST = 0.7  # of a deviation: a factor of 2 either way; more would have linear steps run away
END_TO_END = 1.2  # times TPOT's: it holds TTFT too
# Of the variance by which deployments differ, what comes anew with other lengths, loads and numbers of GPUs, and no run
# takes away: with none of it beyond step times, intervals after two rows hold 73 % of the TPOTs of mixtures of experts
# (on the groups that `benchmarks/calibration.py` calls chosen on). Of step times with none, sources left out hold 93 %
# after one run and 90 % after three, at half-widths of 21 and 18 %; with this much 91 % and 89 %, at 18 and 17 %.
# 2026-11-22 and 2026-11-23, basis: fitted.
ANEW = 0.5
PRINTED = 0.003  # a block or two of KV tokens


def prior(engine: str, gpu: str, *, is_moe: bool, known: Spreads | None = None) -> Adjustment:
    """No change, as sure as such deployments let one be: `engine` by its name, `gpu` by its profile's.

    `known`: other spreads than those that ship, as those of all sources but one.
    """
    known = known or spreads()
    deviations = {parameter.name: parameter.deviation for parameter in PARAMETERS}
    deviations |= {name: min(found, MOST) for name, found in known.classes.items() if found > 0}
    for metric in ("ttft", "tpot"):
        kind, factor = _kind(metric, engine, gpu, is_moe=is_moe, known=known)
        deviations[metric] = min(max(kind.deployment * factor * math.sqrt(1 - ANEW), 0.01), MOST)
    variances = [deviations[parameter.name] ** 2 for parameter in PARAMETERS]
    rows = [[value if i == j else 0.0 for j in range(len(variances))] for i, value in enumerate(variances)]
    return NONE.model_copy(update={"covariance": tuple(map(tuple, rows)), "source": known.fit.source})


def figure_deviation(metric: str, *, is_moe: bool, known: Spreads | None = None) -> float:
    """Of the logarithm of a figure: from one run of a deployment to another, of other lengths and loads.

    How far off an engine's deployments were says nothing of it: that is what a deployment's own runs tell. `metric`:
    ttft, tpot, itl, e2el, throughput, step or kv_tokens.
    """
    if metric == "kv_tokens":
        return PRINTED
    kind = (known or spreads()).kind("ttft" if metric == "ttft" else "tpot", is_moe=is_moe)
    deviation = math.hypot(kind.run, kind.deployment * math.sqrt(ANEW))
    return deviation * (END_TO_END if metric == "e2el" else 1.0)


def _kind(metric: str, engine: str, gpu: str, *, is_moe: bool, known: Spreads) -> tuple[Kind, float]:
    """The spreads of such figures, and what those of this engine and GPU are multiplied by."""
    seen = known.familiarity(engine, gpu, is_moe=is_moe)
    kind = known.kind("ttft" if metric == "ttft" else "tpot", is_moe=is_moe)
    factor = known.unfamiliar if seen is None else (seen.ttft if metric == "ttft" else seen.tpot)
    return kind, factor
