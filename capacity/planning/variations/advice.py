"""The optimisation checklist, simulated for one deployment: the changes that help, by what they need.

Each change is simulated on the same arrivals: its effect on p95 latencies in seconds, on the bill and on $ per request
at full load, and the published change of quality. `capacity stack` gives the value of techniques that are in use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args

from capacity.answers.engine_setup import requests_of
from capacity.base.checked import checked
from capacity.base.errors import CapacityError
from capacity.base.keywords import documented, split
from capacity.base.record import AnswerRecord
from capacity.deployment import Cost, DeploymentFile, Pool, Service, Traffic, build, deployment_of
from capacity.hardware.pricing import Price, cautions_of, price_of
from capacity.model import ModelSpec
from capacity.planning.evaluation.evaluate import deployment_label
from capacity.planning.quality import QualityChange, quality_change
from capacity.planning.variations.changes import Change, Need
from capacity.planning.variations.checklist import LOSSLESS, changes
from capacity.planning.variations.outcome import Outcome, change, outcome, serve
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.workload import Workload
from capacity.workload.windows import Window, take_busiest_window

Progress = Callable[[int, int], None]
MOST_ADVICE = 8  # lines
MOST_PER_NEED = 3  # lines, while other groups have any
LEAST_BENEFIT = 0.02  # sum of relative improvements: below, a change does not help
MOST_QUALITY_LOSS = 0.1  # of a score: a change that is published to lose more does not help


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What a change does: in seconds and $ (`_s`, `usd_`), and relative to the deployment as it is; below 0 is better.

    The bill is in $ per hour, the cost in $ per request at full load. None where there is no value.
    """

    ttft_p95_s: float | None
    tpot_p95_s: float | None
    e2e_p95_s: float | None
    usd_per_hour: float | None
    usd_per_request_full: float | None
    ttft_p95_change: float | None
    tpot_p95_change: float | None
    e2e_p95_change: float | None
    bill_change: float | None
    cost_change: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One change, its effects, and the change of quality; `refused` is why it cannot be made.

    `needs`: what it takes. `quality_loss_change`: the worst published loss of score after the change less that of the
    deployment as it is, as a fraction; None if no figure is published. `thin_price`: too few providers publish its
    price; such advice comes last in its group.
    """

    change: str
    needs: Need
    flags: str
    note: str
    effects: Effects | None
    failed: int
    quality_loss_change: float | None
    quality: str
    refused: str | None = None
    thin_price: bool = False

    @property
    def benefit(self) -> float:
        """Sum of the relative improvements of p95 TTFT, p95 E2E, bill and cost; failed requests outweigh all else."""
        if self.effects is None:
            return -math.inf
        effects = self.effects
        moves = (effects.ttft_p95_change, effects.e2e_p95_change, effects.bill_change, effects.cost_change)
        return -sum(move for move in moves if move is not None) - 1e6 * self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceList(AnswerRecord):
    """Advice for one deployment: at most MOST_ADVICE changes that help, by what they need.

    `without_benefit`: changes that were simulated and do not help, or help less. `observations` need no change.
    """

    SCHEMA: ClassVar[str] = "capacity/advice/v3"
    ROWS: ClassVar[str] = "advice"

    deployment: str
    workload: str
    busiest_window: Window | None  # of longer traffic, the one that is compared; None: all requests
    base: Outcome
    advice: tuple[Advice, ...]
    without_benefit: tuple[Advice, ...]
    refused: tuple[Advice, ...]
    observations: tuple[str, ...]


@documented(Pool, Traffic, Cost)
@checked
def advise(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    slo_window: str = "15m",
    workload: Workload | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> AdviceList:
    """Simulate the optimisation checklist on this deployment and its requests, and return the changes that help.

    Traffic longer than `slo_window` is compared on its busiest window.
    `progress(done, total)` is called as changes are done. Raises DoesNotFit.
    """
    pool_fields, traffic, prices = split(options, Pool, Traffic, Cost)
    deployment = deployment_of(model, pool=pool_fields, traffic=traffic, cost=prices, question="advise")
    pool = deployment.pool
    resolved = resolve(deployment.model, pool, profiles=profiles, download=download)
    whole = requests_of(deployment.traffic, workload, resolved.max_model_len)
    (requests,), windows = take_busiest_window([whole], slo_window)
    price = price_of(pool.gpu, deployment.cost)
    resolved.memory.require_fit()
    latencies = serve(resolved, Service(), requests)
    base = outcome(resolved, requests, replicas=pool.replicas, price=price, latencies=latencies)
    trials = _Trials(resolved=resolved, workload=requests, base=base, price=price, profiles=profiles)
    wanted = list(changes(resolved, requests, latencies, price))
    lines: list[Advice] = []
    for number, each in enumerate(wanted):
        lines.append(trials.line(each))
        if progress is not None:
            progress(number + 1, len(wanted))
    chosen = _most_helpful([line for line in lines if line.refused is None])
    return AdviceList(
        deployment=deployment_label(resolved, pool.replicas),
        workload=requests.name,
        busiest_window=windows[0] if windows else None,
        base=base,
        advice=tuple(chosen),
        without_benefit=tuple(line for line in lines if line.refused is None and line not in chosen),
        refused=tuple(line for line in lines if line.refused is not None),
        observations=(*requests.notices, *_observations(resolved, requests, base), *cautions_of(price)),
    )


def _most_helpful(lines: list[Advice]) -> list[Advice]:
    """The changes that help, by need; in each group lossless ones first, unknown losses and thin prices last."""
    helpful = sorted(
        (
            line
            for line in lines
            if line.benefit >= LEAST_BENEFIT and (line.quality_loss_change or 0.0) <= MOST_QUALITY_LOSS
        ),
        key=lambda line: (
            line.thin_price,
            line.quality_loss_change is None,
            (line.quality_loss_change or 0.0) > 0,
            -line.benefit,
        ),
    )
    groups = [[line for line in helpful if line.needs == need] for need in get_args(Need)]
    first = [line for group in groups for line in group[:MOST_PER_NEED]]
    kept = sorted(first, key=helpful.index)[:MOST_ADVICE]
    return [line for line in first if line in kept]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trials:
    """The deployment as it is, on its requests, beside which each change is held."""

    resolved: ResolvedPool
    workload: Workload
    base: Outcome
    price: Price | None
    profiles: str | Path | None

    def line(self, wanted: Change) -> Advice:
        """What a change does; refused where it cannot be."""
        if wanted.refused is not None:
            return _refused(wanted, wanted.refused)
        try:
            changed, after = self._changed(wanted)
        except CapacityError as error:
            return _refused(wanted, str(error))
        loss, quality = self._quality_of(changed, wanted)
        return Advice(
            change=wanted.text,
            needs=wanted.needs,
            flags=wanted.flags,
            note="; ".join((wanted.note, *self._remarks(changed)) if wanted.note else self._remarks(changed)),
            effects=_effects(self.base, after),
            failed=max(after.failed - self.base.failed, 0),
            quality_loss_change=loss,
            quality=quality,
            thin_price=wanted.price is not None and wanted.price.thin,
        )

    def _quality_of(self, changed: ResolvedPool, wanted: Change) -> tuple[float | None, str]:
        """The change of the worst published loss, None if it is unknown, and the figure behind it."""
        if wanted.worst_loss_fraction is not None:
            return wanted.worst_loss_fraction, wanted.quality or ""
        if wanted.quality is not None:
            return (0.0 if wanted.quality == LOSSLESS else None), wanted.quality
        before, after = _published_quality(self.resolved), _published_quality(changed)
        if before == after:
            return 0.0, "same"
        worst = before.worst_loss_fraction, after.worst_loss_fraction
        return (None if worst[0] is None or worst[1] is None else worst[1] - worst[0]), after.what

    def _remarks(self, changed: ResolvedPool) -> tuple[str, ...]:
        """On kernels of the change that are known by others' measurements alone."""
        base = self.resolved.step_setting.remarks
        return tuple(remark for remark in changed.step_setting.remarks if remark not in base)

    def _changed(self, wanted: Change) -> tuple[ResolvedPool, Outcome]:
        pool = build(Pool, {**self.resolved.pool.model_dump(), **wanted.pool})
        changed = resolve(wanted.model or self.resolved.model, pool, profiles=self.profiles)
        changed.memory.require_fit()
        service = build(Service, wanted.service)
        latencies = serve(changed, service, self.workload)
        price, replicas = wanted.price or self.price, changed.pool.replicas
        return changed, outcome(changed, self.workload, replicas=replicas, price=price, latencies=latencies)


def _published_quality(resolved: ResolvedPool) -> QualityChange:
    return quality_change(
        resolved.scheme,
        resolved.model.checkpoint,
        resolved.kv_cache_dtype,
        resolved.pool.kv_eviction,
        params=resolved.model.total_params,
    )


def _effects(base: Outcome, after: Outcome) -> Effects:
    def moved(name: str) -> tuple[float | None, float | None]:
        before, now = getattr(base, name), getattr(after, name)
        return _less(before, now), change(before, now)

    ttft, tpot, e2e = (moved(f"{name}_p95_s") for name in ("ttft", "tpot", "e2e"))
    bill, token = moved("usd_per_hour"), moved("usd_per_request_full")
    return Effects(
        ttft_p95_s=ttft[0],
        tpot_p95_s=tpot[0],
        e2e_p95_s=e2e[0],
        usd_per_hour=bill[0],
        usd_per_request_full=token[0],
        ttft_p95_change=ttft[1],
        tpot_p95_change=tpot[1],
        e2e_p95_change=e2e[1],
        bill_change=bill[1],
        cost_change=token[1],
    )


def _less(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _refused(wanted: Change, reason: str) -> Advice:
    return Advice(
        change=wanted.text,
        needs=wanted.needs,
        flags=wanted.flags,
        note=wanted.note,
        effects=None,
        failed=0,
        quality_loss_change=None,
        quality="",
        refused=reason,
    )


def _observations(resolved: ResolvedPool, workload: Workload, base: Outcome) -> Iterator[str]:
    """What the deployment does as it is, and what its times rest on."""
    yield from resolved.step_setting.remarks
    if base.usd_per_request_full is not None and base.usd_per_request_served:
        used = base.usd_per_request_full / base.usd_per_request_served
        yield f"{used:.0%} of full load is used; the rest of the bill buys headroom"
    if base.failed:
        yield f"{base.failed:,} of {len(workload):,} requests are never served"
