"""`plan`: find the deployments of a model that meet the SLO on its traffic, and rank them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from capacity.base.checked import validate_arguments
from capacity.base.flags import CLUSTER
from capacity.base.keywords import document_options, split
from capacity.deployment import Cost, Traffic, build
from capacity.model import ModelSpec
from capacity.planning.search.snapshot import Progress
from capacity.planning.space import Search
from capacity.workload import Workload

if TYPE_CHECKING:
    from capacity.planning.records import Plan


@document_options(Search, Traffic, Cost)
@validate_arguments
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
    """Find and rank the cheapest deployments that meet the SLO on the traffic, with simulation results and prices.

    `slo`: "ttft:p95:500ms" limits a percentile; "ttft:500" limits each request to 500 ms, and the fraction
    `goodput_target` of the requests must meet it. Without `slo`, the SLO of the `use_case` applies. `workers`
    processes, including this one, simulate in parallel; a script that uses more than one must guard its own code with
    `if __name__ == "__main__"`. With `cluster` (tcp://host:port), the workers of this Dask cluster and this process
    simulate instead. `progress(snapshot)` is called repeatedly during the search. Raises DoesNotFit if the model fits
    no engine of the search space. If no deployment meets the SLO, `ranked` of the result is empty and `misses` has the
    cause.
    """
    from capacity.deployment.routers import make_router
    from capacity.planning.search.plan_answer import run_search
    from capacity.planning.search.plan_request import PlanRequest

    started_s = time.monotonic()
    search, traffic, cost = split(options, Search, Traffic, Cost)
    asked = PlanRequest.build(
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
