"""Run a sweep: compute each point in this process or on workers; a point that fails is recorded, and others run.

`grid` runs one over every combination of values, and returns a pandas DataFrame.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args

from capacity.base.checked import validate_arguments
from capacity.base.errors import CapacityError, InvalidInput, UnknownName
from capacity.base.flags import CLUSTER
from capacity.base.keywords import document_options, split
from capacity.base.processes import check_workers
from capacity.base.progress import progress_bar
from capacity.base.record import AnswerRecord
from capacity.deployment import Cost, Pool, Service, Traffic, build
from capacity.hardware.pricing import Price, find_price_for_cost
from capacity.model import ModelSpec, load_model
from capacity.planning.sweeps.store import Answer, Store, open_store, status_of
from capacity.planning.sweeps.sweep_results import check_export, export, flat_row
from capacity.planning.sweeps.sweep_spec import Point, SweepSpec, named_in, points, read_sweep
from capacity.planning.workers.worker_pool import PoolFactory, WorkerPool, open_pool, stop_if_recalled
from capacity.pool.resolve import ResolvedPool, resolve

if TYPE_CHECKING:
    from pandas import DataFrame

CHUNK = {"fit": 50, "estimate": 50, "simulate": 1}  # points per task: analytic ones are fast
TASKS_PER_WORKER = 3  # tasks submitted per worker, so that none is idle
ATTEMPTS = 2  # of a point that runs alone when its worker dies
OTHERS_S = 0.25  # seconds between checks of other processes' results
KEPT_POOLS = 256  # resolved deployments cached per worker

Progress = Callable[[int, int], None]
Keep = Callable[[Sequence[Point], Sequence[Answer]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult(AnswerRecord):
    """Result of a sweep; `skipped` points were computed earlier, or meanwhile by another sweep on the same store.

    `rows` has one entry for each point: options, status, and the numbers of the answer under dotted names.
    """

    SCHEMA: ClassVar[str] = "capacity/swept/v1"

    points: int
    done: int
    does_not_fit: int
    failed: int
    skipped: int
    first_failure: str | None = None
    rows: tuple[Mapping[str, object], ...] = ()


@validate_arguments
def sweep(
    spec: str | Path | SweepSpec,
    store: str | Path,
    *,
    workers: int = 1,
    cluster: Annotated[str | None, CLUSTER] = None,
    retry_failed: bool = False,
    export_to: str | Path | None = None,
    progress: Progress | None = None,
) -> SweepResult:
    """Compute every point of `spec` (a TOML file) that is not in the SQLite file `store`, and store it there.

    Uses `workers` local processes, or the Dask cluster at `cluster` (tcp://host:port). A script that uses more than
    one worker must guard its own code with `if __name__ == "__main__"`. Raises MalformedFile and InvalidInput; a
    failed point is recorded with its reason.
    """
    read = spec if isinstance(spec, SweepSpec) else read_sweep(spec)
    if export_to is not None:
        check_export(export_to)
    check_workers(workers)
    open_workers = (
        None
        if cluster is None and workers == 1
        else partial(open_pool, workers, cluster, named=named_in(read))
    )
    with open_store(store) as there:
        swept = run_sweep(
            read, there, open_workers=open_workers, retry_failed=retry_failed, progress=progress
        )
        rows = tuple(there.rows(points(read)))
        if export_to is not None:
            export(rows, export_to)
    return replace(swept, rows=tuple(flat_row(row) for row in rows))


def run_sweep(
    spec: SweepSpec,
    store: Store,
    *,
    open_workers: PoolFactory | None = None,
    retry_failed: bool = False,
    progress: Progress | None = None,
) -> SweepResult:
    """Compute every point that the store does not have yet.

    `open_workers` opens a worker pool, or a new one if workers died; None: use this process. A point that fails, or
    whose worker dies `ATTEMPTS` times, is recorded with its reason. Raises InvalidInput if the pool cannot be opened or
    is lost.
    """
    everything = points(spec)
    known = store.done_keys(failed=not retry_failed)
    left = [point for point in everything if point.key not in known]
    before = len(everything) - len(left)  # done earlier, or meanwhile by others
    ended = {"done": 0, "does not fit": 0, "failed": 0}
    failures: list[str] = []

    def keep(chunk: Sequence[Point], answers: Sequence[Answer]) -> None:
        store.store_answers(chunk, answers)
        for answer in answers:
            status = status_of(answer.reason)
            ended[status] += 1
            if status == "failed":
                failures.append(str(answer.reason))
        if progress is not None:
            progress(before + sum(ended.values()), len(everything))

    while left:
        todo = _Todo(left, CHUNK[spec.question], lambda chunk: store.claim(chunk, failed=not retry_failed))
        try:
            _run_chunks(todo, open_workers, keep)
        except InvalidInput as error:
            if not any(ended.values()):
                raise
            stored = f"{before + sum(ended.values())} of {len(everything)} points are stored"
            raise InvalidInput(f"{error}; {stored}: run the same command to resume") from None
        known = store.done_keys(failed=not retry_failed) if todo.others else set()
        left = [point for point in todo.others if point.key not in known]
        before = len(everything) - len(left) - sum(ended.values())
        if left and len(left) == len(todo.others):
            time.sleep(OTHERS_S)
    return SweepResult(
        points=len(everything),
        done=ended["done"],
        does_not_fit=ended["does not fit"],
        failed=ended["failed"],
        skipped=len(everything) - sum(ended.values()),
        first_failure=failures[0] if failures else None,
    )


class _Todo:
    """Points to compute, in chunks that are claimed when taken; `others` are claimed by other processes."""

    def __init__(
        self, points: Sequence[Point], size: int, claim: Callable[[Sequence[Point]], list[Point]]
    ) -> None:
        self._chunks = deque(points[start : start + size] for start in range(0, len(points), size))
        self._claim = claim
        self.others: list[Point] = []

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def take(self) -> tuple[Point, ...]:
        while self._chunks:
            chunk = self._chunks.popleft()
            ours = self._claim(chunk)
            self.others += [point for point in chunk if point not in ours]
            if ours:
                return tuple(ours)
        return ()


def _run_chunks(chunks: _Todo, open_workers: PoolFactory | None, keep: Keep) -> None:
    """Compute chunks of points in parallel, or in this process if `open_workers` is None.

    If a worker dies, run its points one at a time to find the point that causes it.
    """
    if open_workers is None:
        while chunk := chunks.take():
            keep(chunk, answer_points(chunk))
        return
    suspects: deque[Point] = deque()
    deaths: Counter[str] = Counter()
    while chunks or suspects:
        with open_workers() as worker_pool:
            _one_by_one(worker_pool.executor, suspects, deaths, keep)
            if not suspects:
                suspects.extend(_run_in_parallel(worker_pool, chunks, keep))


def _one_by_one(executor: Executor, suspects: deque[Point], deaths: Counter[str], keep: Keep) -> None:
    """Compute points whose worker died (`suspects`) one at a time; return early if the executor breaks, with the
    remaining points in `suspects`."""
    while suspects:
        alone = (suspects[0],)
        try:
            keep(alone, executor.submit(answer_points, alone).result())
        except (BrokenExecutor, CancelledError):
            deaths[alone[0].key] += 1
            if deaths[alone[0].key] < ATTEMPTS:
                return
            keep(alone, [Answer(answer=None, reason="the worker process died at every attempt")])
            suspects.popleft()
            return
        except CapacityError:
            raise
        except Exception as error:  # the executor's error for dead workers (Dask: KilledWorker)
            keep(alone, [Answer(answer=None, reason=f"{type(error).__name__}: {error}")])
        suspects.popleft()


def _run_in_parallel(worker_pool: WorkerPool, chunks: _Todo, keep: Keep) -> list[Point]:
    """Compute chunks of points in parallel, a few per worker at a time; return the points that no worker completed."""
    flying: dict[Future[list[Answer]], tuple[Point, ...]] = {}
    lost: list[Point] = []
    while flying or (chunks and not worker_pool.is_lost):
        while (
            not worker_pool.is_lost
            and len(flying) < TASKS_PER_WORKER * worker_pool.workers
            and (chunk := chunks.take())
        ):
            future = worker_pool.submit(answer_points, chunk)
            if future is None:
                lost += chunk
            else:
                flying[future] = chunk
        for future in wait(flying, return_when=FIRST_COMPLETED).done:
            chunk = flying.pop(future)
            try:
                answers = worker_pool.result(future)
            except Exception:  # NotDone, or the executor's error for dead workers: try again one by one
                lost += chunk
            else:
                keep(chunk, answers)
    return lost


def answer_points(chunk: Sequence[Point]) -> list[Answer]:
    """Compute a chunk of sweep points on a worker; stop if the caller no longer waits for them."""
    answers = []
    for point in chunk:
        stop_if_recalled()
        answers.append(answer_point(point))
    return answers


def answer_point(point: Point) -> Answer:
    """Return the result of a sweep point as canonical JSON, byte-identical on every worker; or why it failed."""
    try:
        described = _ask(point)
    except CapacityError as error:
        return Answer(answer=None, reason=f"{type(error).__name__}: {error}")
    except Exception as error:  # a bug at one point must not end the sweep
        return Answer(answer=None, reason=f"bug: {type(error).__name__}: {error}")
    return Answer(answer=json.dumps(described, sort_keys=True), reason=None)


def _ask(point: Point) -> Mapping[str, object]:
    """Compute one point and return its result as a dictionary; pools and prices that points share are cached."""
    from capacity.answers.estimate import estimate_of
    from capacity.answers.fit import fit_of
    from capacity.answers.phases import traffic_of

    options = {name: value for name, value in point.options.items() if name != "model"}
    name = str(point.options["model"])
    if point.question == "simulate":
        from capacity.answers.simulate import simulate  # loads the simulator

        return simulate(_model(name), goodput=point.goodput, **options).to_dict()
    if point.question == "fit":
        (pool,) = split(options, Pool)
        return fit_of(_resolve_pool(name, **pool)).to_dict()
    pool, traffic, cost = split(options, Pool, Traffic, Cost)
    resolved = _resolve_pool(name, **pool)
    price = _price(resolved.profile.name, **cost)
    return estimate_of(resolved, traffic_of(traffic), price).to_dict()


@lru_cache(maxsize=KEPT_POOLS, typed=True)  # 1, 1.0 and True are equal but not the same
def _resolve_pool(model: str, /, **pool: object) -> ResolvedPool:
    return resolve(_model(model), build(Pool, pool))


@lru_cache(maxsize=KEPT_POOLS, typed=True)
def _price(gpu: str, /, **cost: object) -> Price | None:
    return find_price_for_cost(gpu, build(Cost, cost))


@lru_cache(maxsize=64)
def _model(name: str) -> ModelSpec:
    return load_model(name)


@document_options(Pool, Traffic, Service, Cost)
@validate_arguments
def grid(
    verb: str,
    vary: Mapping[str, Any],
    *,
    model: str | Path | None = None,
    goodput: Sequence[str] = (),
    workers: int = 1,
    **fixed: Any,
) -> DataFrame:
    """Return the answers of `verb` (fit, estimate or simulate) at every combination of the values in `vary`.

    `vary` has a list of values for each varied keyword of the verb, or for `model`; `fixed` are keywords of every
    combination. The DataFrame has the columns of `sweep_results`, one row per combination: `option.KEYWORD`, `status`,
    `reason` (of a failure), and the numbers of the answer. On a terminal, stderr shows a progress bar after a second.
    `workers`: parallel processes; a script with several must guard its own code with `if __name__ == "__main__"`.
    Raises InvalidInput for invalid keywords, or if every combination fails.
    """
    verbs = get_args(SweepSpec.model_fields["question"].annotation)
    if verb not in verbs:
        raise UnknownName("verb that a grid evaluates", verb, verbs)
    for name, values in vary.items():
        if isinstance(values, str) or not hasattr(values, "__iter__"):
            raise InvalidInput(f"vary has {values!r} for {name}: it must be a list of values")
    fields = {
        "schema": "capacity/sweep/v1",
        "question": verb,
        "goodput": tuple(goodput),
        "fixed": {**({} if model is None else {"model": str(model)}), **fixed},
        "vary": {
            name: each.tolist() if hasattr(each, "tolist") else tuple(each) for name, each in vary.items()
        },
    }
    with TemporaryDirectory() as folder, progress_bar("points") as progress:
        store = Path(folder) / "points.sqlite"
        swept = sweep(build(SweepSpec, fields), store, workers=workers, progress=progress)
    if swept.failed == swept.points:
        raise InvalidInput(f"no combination of values could be computed: {(swept.first_failure or '')[:500]}")
    return swept.to_frame()
