"""Functions for worker processes that combine several library calls."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from capacity.answers.records import Attribution, Estimate, ReplicasNeeded, Simulation
from capacity.base.errors import CapacityError
from capacity.base.mappings import omit, select
from capacity.model import ModelSpec

if TYPE_CHECKING:
    from capacity.techniques.speculate import Speculating, SpeculationRow

ACCEPTANCES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
DRAFT_LENGTHS = (1, 2, 3, 4, 6, 8)


def estimate_and_bounds(
    model: str | ModelSpec, *, options: Mapping[str, Any], cost: Mapping[str, Any]
) -> tuple[Estimate, Attribution | None]:
    """Return an estimate and the explanation of its bottlenecks; without a steady state, the explanation is None."""
    import capacity

    answer = capacity.estimate(model, **options, **cost)
    return answer, None if answer.ttft_s is None else capacity.explain(model, **options)


def replicas(
    model: str | ModelSpec,
    *,
    pool: Mapping[str, Any],
    traffic: Mapping[str, Any],
    cost: Mapping[str, Any],
    slo: Sequence[str],
    service: Mapping[str, Any] | None = None,
) -> ReplicasNeeded | None:
    """Return how many replicas of `pool` serve `traffic` within `slo`, and what they cost."""
    from capacity.deployment import Cost, Pool, Service, Traffic, build
    from capacity.hardware.pricing import find_price_for_cost
    from capacity.planning.sizing.replicas_needed import replicas_needed
    from capacity.pool.resolve import resolve

    resolved = resolve(model, build(Pool, pool))
    resolved.memory.require_fit()
    price = find_price_for_cost(resolved.profile.name, build(Cost, cost))
    return replicas_needed(
        resolved, build(Traffic, traffic), slo=slo, service=build(Service, service or {}), price=price
    )


def timeline(
    model: str | ModelSpec, *, progress: Callable[[int, int], None] | None = None, **options: Any
) -> tuple[Simulation, list[dict[str, Any]]]:
    """Return a simulation and the events of its Chrome trace: engine steps and request phases."""
    import capacity
    from capacity.simulator.timeline import Timeline

    observer = Timeline()
    answer = capacity.simulate(model, observer=observer, progress=progress, **options)
    events: list[dict[str, Any]] = observer.chrome_trace(answer.run.records)["traceEvents"]
    return answer, events


def acceptance_grid(
    model: str | ModelSpec, *, batch: int, options: Mapping[str, Any]
) -> "dict[int, tuple[tuple[float, SpeculationRow], ...]]":
    """Return speculation results at one batch size: for each draft length, pairs of acceptance rate and result."""
    from capacity.techniques.speculate import speculate

    rows: dict[int, tuple[tuple[float, SpeculationRow], ...]] = dict.fromkeys(DRAFT_LENGTHS, ())
    for k, acceptance in product(DRAFT_LENGTHS, ACCEPTANCES):
        drafts = {**options, "draft_tokens": k, "acceptance": f"{acceptance:g}"}
        rows[k] += ((acceptance, speculate(model, batches=(batch,), **drafts).rows[0]),)
    return rows


def ways_to_draft(
    model: str | ModelSpec, *, batch: int, options: Mapping[str, Any]
) -> "tuple[dict[str, Speculating], tuple[str, ...]]":
    """Return the result of each drafting method with its default length and acceptance, or the text of its error."""
    from capacity.techniques.speculate import speculate, speculation_methods

    shared = omit(options, "method", "draft_tokens", "acceptance", "draft")
    rounds, refused = {}, []
    for row in speculation_methods().rows:
        own = select(options, ("draft",)) if row.method == options["method"] else {}
        try:
            rounds[row.method] = speculate(model, batches=(batch,), method=row.method, **shared, **own)
        except CapacityError as error:
            refused.append(f"{row.method}: {error}")
    return rounds, tuple(refused)


def split_name(replicas: int, prefill: int) -> str:
    """Return the name of a split of replicas into prefill and decode replicas: `1 prefill, 3 decode`."""
    return f"{prefill} prefill, {replicas - prefill} decode" if prefill else f"{replicas} do both"


def splits(
    model: str | ModelSpec,
    *,
    common: Mapping[str, Any],
    transfer: Mapping[str, Any],
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Simulation]:
    """Simulate the same arrivals on every split of replicas into prefill and decode; return runs by split name."""
    import capacity

    replicas = common["replicas"]
    runs = {}
    for prefill in range(replicas):
        apart = {"prefill_replicas": prefill, **transfer} if prefill else {}
        runs[split_name(replicas, prefill)] = capacity.simulate(model, **common, **apart)
        if progress is not None:
            progress(prefill + 1, replicas)
    return runs
