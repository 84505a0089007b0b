"""Open the workers of a question: processes of this machine, or a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from capacity.base.processes import check_workers, local_workers
from capacity.planning.workers.environment_fingerprint import NOTHING, Named
from capacity.planning.workers.worker_pool import WorkerPool


def opened(
    workers: int, cluster: str | None, *, common: tuple[object, ...] = (), named: Named = NOTHING
) -> AbstractContextManager[WorkerPool]:
    """The Dask cluster at `cluster` (tcp://host:port), or `workers` processes of this machine.

    `common` are the first arguments of each function that is handed out: they travel once. `named` is what the tasks
    look up by its name, which a cluster must find as it is here. Raises InvalidInput where that is not so.
    """
    if cluster is None:
        return _local(workers, common)
    from capacity.planning.workers.dask_workers import dask_crew

    return dask_crew(cluster, common=common, named=named)


@contextmanager
def _local(workers: int, common: tuple[object, ...]) -> Iterator[WorkerPool]:
    check_workers(workers)
    with local_workers(workers, _keep_common, common) as executor:
        yield WorkerPool(executor=executor, workers=workers, through=(_with_common,) if common else ())


_common: tuple[object, ...] = ()  # of this worker process


def _keep_common(*common: object) -> None:
    global _common
    _common = common


def _with_common(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*_common, *arguments)
