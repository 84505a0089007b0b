"""`estimate` of one deployment at many loads, and the load that fills its KV cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from capacity.answers.estimate import estimate_of
from capacity.answers.load_point import LOAD_FIELDS, LoadField, LoadPoint, load_point, price_or_reason
from capacity.answers.phases import estimate_fields
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.keywords import document_options, split
from capacity.base.record import AnswerRecord
from capacity.deployment import Cost, Pool, Traffic, build, make_deployment
from capacity.model import ModelSpec
from capacity.pool.resolve import ResolvedPool, resolve

REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
FULL_VERDICTS = ("saturated", "overloaded")  # verdicts of a load under which queues do not empty
SHARES = (0.05, 0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)  # fractions of a full engine's rate


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSweep(AnswerRecord):
    """One deployment (a pool of equal engines) at many loads, with a `LoadPoint` for each load.

    `kv_requests`: number of these requests that the KV cache holds. `seats`: number of requests that the engine runs at
    once (max_num_seqs). Requests above the smaller of the two wait; `full_requests_per_s` is the rate at this number.
    """

    SCHEMA: ClassVar[str] = "capacity/load-sweep/v1"
    ROWS: ClassVar[str] = "points"

    model: str
    gpu: str
    num_gpus: int
    engine: str
    over: LoadField
    input_len: int
    output_len: int
    kv_requests: int
    seats: int
    full_requests_per_s: float
    points: tuple[LoadPoint, ...]
    price_note: str | None

    @property
    def at_once(self) -> int:
        """Return the maximum number of requests that run at once."""
        return min(self.kv_requests, self.seats)

    @property
    def limit(self) -> str:
        """Return what limits the number of requests that run at once: "KV cache" or "max_num_seqs"."""
        return "KV cache" if self.kv_requests <= self.seats else "max_num_seqs"

    @property
    def full_from(self) -> float | None:
        """Return the load above which requests wait. If the loads are request rates, it is the lowest simulated rate
        that fills the engine; None if no rate does."""
        if self.over != "request_rate":
            return float(self.at_once)
        full = (p.load for p in self.points if p.verdict in FULL_VERDICTS)
        return next(full, None)


@document_options(Pool, Traffic, Cost)
@validate_arguments
def load_sweep(
    model: str | Path | ModelSpec,
    *,
    over: str = "concurrency",
    loads: Sequence[float] | None = None,
    profiles: str | Path | None = None,
    **options: Any,
) -> LoadSweep:
    """Run `estimate` at several loads of the field `over`: batch_size, concurrency or request_rate (requests/s).

    `loads` None: 1 to 1,024 requests, or rates up to slightly above the rate of a full engine. Raises DoesNotFit if a
    single request does not fit, and InvalidInput for invalid options.
    """
    field = next((name for name in LOAD_FIELDS if name == over), None)
    if field is None:
        raise InvalidInput(f"unknown load {over!r}: must be one of {', '.join(LOAD_FIELDS)}")
    pool, fields, prices = split(options, Pool, Traffic, Cost)
    if given := [name for name in LOAD_FIELDS if name in fields]:
        raise InvalidInput(f"{given[0]} sets a single load: leave it out, or give `loads`")
    deployment = make_deployment(
        model, pool=pool, traffic={**estimate_fields(fields), field: 1}, cost=prices, question="estimate"
    )
    resolved = resolve(deployment.model, deployment.pool, profiles=profiles)
    return sweep_of(resolved, deployment.traffic, deployment.cost, over=field, loads=loads)


def sweep_of(
    resolved: ResolvedPool,
    traffic: Traffic,
    cost: Cost,
    *,
    over: LoadField,
    loads: Sequence[float] | None = None,
) -> LoadSweep:
    """Return `load_sweep` of a resolved pool. Raises as `load_sweep`."""
    resolved.memory.require_fit()
    first = estimate_of(resolved, _traffic_at(traffic, over, 1), None)  # raises for what cannot be asked
    price, note = price_or_reason(resolved.profile.name, cost)
    tokens, ranks = first.input_len + first.output_len, resolved.pool.data_parallel_size
    held, seats = ranks * resolved.concurrent_requests(tokens), ranks * resolved.max_num_seqs
    together: LoadField = "batch_size" if over == "batch_size" else "concurrency"
    full = estimate_of(resolved, _traffic_at(traffic, together, min(held, seats)), None)
    full_rate = full.requests_per_s.value
    if loads is None:
        rates = [float(f"{share * full_rate:.3g}") for share in SHARES]
        loads = rates if over == "request_rate" else REQUESTS
    if not len(loads) or not all(0 < load < float("inf") for load in loads):
        raise InvalidInput("loads must contain at least one number, all finite and above 0")
    points = tuple(
        load_point(resolved, _traffic_at(traffic, over, load), price, price_note=note)
        for load in sorted(loads)
    )
    return LoadSweep(
        model=resolved.model.name,
        gpu=resolved.profile.name,
        num_gpus=resolved.pool.num_gpus,
        engine=resolved.engine.label,
        over=over,
        input_len=first.input_len,
        output_len=first.output_len,
        kv_requests=held,
        seats=seats,
        full_requests_per_s=full_rate,
        points=points,
        price_note=note,
    )


def _traffic_at(traffic: Traffic, field: LoadField, load: float) -> Traffic:
    left = (*LOAD_FIELDS, "users", "response_s")
    said = {name: getattr(traffic, name) for name in traffic.model_fields_set if name not in left}
    return build(Traffic, {**said, field: load if field == "request_rate" else round(load)})
