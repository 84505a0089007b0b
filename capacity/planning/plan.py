"""`plan` as a function: from a model, its traffic and its service levels to the deployments that meet them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from capacity.base.checked import checked
from capacity.base.errors import InvalidInput
from capacity.base.flags import CLUSTER
from capacity.base.keywords import documented, split
from capacity.deployment import Cost, Traffic, build
from capacity.deployment.use_cases import levels_of
from capacity.planning.space import DRAFT_MODEL, Search

if TYPE_CHECKING:
    from capacity.model import ModelSpec
    from capacity.planning.records import Plan
    from capacity.planning.search import Progress
    from capacity.workload import Slo, Workload


@documented(Search, Traffic, Cost)
@checked
def plan(
    model: str | Path | ModelSpec,
    *,
    slo: Sequence[str] | str = (),
    workload: Workload | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    workers: int = 1,
    cluster: Annotated[str | None, CLUSTER] = None,
    progress: Progress | None = None,
    **options: Any,
) -> Plan:
    """The cheapest deployments that meet the service levels on the real traffic, ranked, with proof and price.

    `slo` as "ttft:p95:500ms", or "ttft:500" for 500 ms of every request (`goodput_target` of them); without any, those
    of the `use_case`.
    `workers` processes simulate side by side, this one among them: a script that asks for more
    than one guards its own code by `if __name__ == "__main__"`. `cluster` (tcp://host:port) simulates on a Dask
    cluster in their place, and here. `progress(snapshot)` is called as answers improve.
    Raises DoesNotFit where no engine of the space holds the model; a plan without `ranked` says what is in the way.
    """
    from capacity.deployment.images import with_image_tokens
    from capacity.deployment.routers import make_router
    from capacity.model import ModelSpec, load_model
    from capacity.planning.arena import Arena
    from capacity.planning.bounds import Load
    from capacity.planning.draws import draws
    from capacity.planning.judging import Goal
    from capacity.planning.market import Market
    from capacity.planning.search import run_search

    started_s = time.monotonic()
    search_fields, traffic_fields, cost_fields = split(options, Search, Traffic, Cost)
    search: Search = build(Search, search_fields)
    traffic: Traffic = build(Traffic, traffic_fields)
    cost: Cost = build(Cost, cost_fields)
    check_search(search, cost)
    spec = model if isinstance(model, ModelSpec) else load_model(model, download=download)
    goal = Goal(slos=parsed_slos(levels_of(slo, traffic)), goodput_target=search.goodput_target)
    workloads = draws(with_image_tokens(traffic, spec), workload, search.replications)
    check_goal(goal.slos, workloads[0])
    for router in search.routers:
        make_router(router, has_sessions=workloads[0].session is not None)
    arena = Arena(model=spec, workloads=workloads, goal=goal, profiles=profiles)
    load = Load.of(workloads)
    folders = [str(profiles)] if profiles else []
    market = Market.of(search, cost, folders)
    return run_search(
        arena, search, load, market, workers=workers, cluster=cluster, progress=progress, started_s=started_s
    )


def parsed_slos(texts: Sequence[str] | str) -> tuple[Slo, ...]:
    """The service levels; InvalidInput without any."""
    from capacity.workload import parse_slos

    slos = parse_slos(texts)
    if not slos:
        raise InvalidInput(
            "no service level: give --slo, as in --slo ttft:p95:500ms --slo tpot:p99:50ms, or a --use-case, "
            "which has some"
        )
    return slos


def check_search(search: Search, cost: Cost) -> None:
    """Raise InvalidInput for what would turn every candidate down, or all of a kind, without being about them."""
    from capacity.pool.drafting import find_speculator

    if search.draft is None and DRAFT_MODEL in search.speculators:
        raise InvalidInput("--speculators draft-model needs a draft model: add --draft MODEL")
    if search.draft is not None and search.speculators and DRAFT_MODEL not in search.speculators:
        raise InvalidInput(
            "--draft changes nothing without --speculators draft-model: add it, or leave --draft out"
        )
    for name in search.speculators or ("eagle3",):
        if name is not None:
            way = find_speculator(name)
            if search.acceptance is not None:
                way.accepting(search.acceptance)
    priced = any(source is not None for source in (cost.price_tier, cost.price, cost.price_file))
    if not search.gpus:
        raise InvalidInput("no GPUs: give --gpus h100,h200 or --gpus all")
    if search.objective == "cost" and not priced:
        raise InvalidInput(
            "the objective is cost and there is no price: give --price-tier on-demand (reserved-1y, spot, owned, ...), "
            "--price h100=2.50, --price-file, or --objective gpus"
        )
    if search.budget is not None and not priced:
        raise InvalidInput("--budget needs a price: give --price-tier or --price")


def check_goal(slos: Sequence[Slo], workload: Workload) -> None:
    """Raise InvalidInput where no level limits how long a request waits."""
    waits = any(slo.metric in ("ttft", "e2el") for slo in slos)
    if not waits and not workload.is_closed_loop:
        raise InvalidInput(
            "no limit on ttft or e2el: without one any queue would do, however long; add --slo ttft:p95:2s"
        )
