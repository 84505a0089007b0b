"""`plan` as a function: from a model, its traffic and its service levels to the deployments that meet them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from capacity.base.checked import checked
from capacity.base.flags import CLUSTER
from capacity.base.keywords import documented, split
from capacity.deployment import Cost, Traffic, build
from capacity.model import ModelSpec
from capacity.planning.search.snapshot import Progress
from capacity.planning.space import Search
from capacity.workload import Workload

if TYPE_CHECKING:
    from capacity.planning.records import Plan


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
    from capacity.deployment.routers import make_router
    from capacity.planning.search.plan_answer import run_search
    from capacity.planning.search.plan_request import PlanRequest

    started_s = time.monotonic()
    search, traffic, cost = split(options, Search, Traffic, Cost)
    asked = PlanRequest.of(
        model,
        build(Search, search),
        build(Traffic, traffic),
        build(Cost, cost),
        slo=slo,
        workload=workload,
        profiles=profiles,
        download=download,
    )
    for router in asked.search.routers:
        make_router(router, has_sessions=asked.workloads[0].session is not None)
    return run_search(asked, workers=workers, cluster=cluster, progress=progress, started_s=started_s)
