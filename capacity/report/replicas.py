"""How many replicas serve a load, in one line."""

from __future__ import annotations

from collections.abc import Iterator

from capacity.planning.replicas import ReplicaCount, ReplicasNeeded
from capacity.simulator.verdict import STABLE_LOAD


def replicas_text(answer: ReplicasNeeded) -> str:
    """The number of replicas, their GPUs and bill, and which service levels they meet."""
    return "; ".join(_parts(answer))


def _parts(answer: ReplicasNeeded) -> Iterator[str]:
    load = "the load" if answer.requests_per_s is None else f"{answer.requests_per_s:,.4g} requests/s"
    if answer.slos:
        levels = " and ".join(answer.slos)
        if answer.within_slo is None:
            yield f"no number of replicas meets {levels}: {answer.reason}"
        else:
            yield (
                f"{load} within {levels} at {answer.confidence:.0%} confidence: {count_text(answer.within_slo)}"
            )
    if answer.stable is not None and answer.within_slo is None:
        yield f"{load} at {STABLE_LOAD:.0%} utilisation or less: {count_text(answer.stable)}"


def count_text(count: ReplicaCount) -> str:
    """Replicas, GPUs and $ a month."""
    replicas = "1 replica" if count.replicas == 1 else f"{count.replicas:,} replicas"
    gpus = "1 GPU" if count.num_gpus == 1 else f"{count.num_gpus:,} GPUs"
    bill = "" if count.usd_per_month is None else f", ${count.usd_per_month:,.0f} a month"
    return f"{replicas} ({gpus}){bill}"
