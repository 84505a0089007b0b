"""The field's optimisation checklist, evaluated for this deployment on these requests by the model: never a tip.

Every line is a changed deployment that was simulated on the same arrivals, with its effect on p95 latencies in
seconds, on the bill and on $ per request at full load, and its published cost in quality. What is in place already is
taken away, to show what it is worth. What cannot be done here is said with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from capacity.answers.deployment_run import run_service
from capacity.answers.engine_setup import requests_of
from capacity.base.checked import checked
from capacity.base.errors import CapacityError
from capacity.base.keywords import documented, split
from capacity.base.record import AnswerRecord
from capacity.deployment import Cost, DeploymentFile, Pool, Service, Traffic, build, deployment_of
from capacity.hardware.pricing import Price, cautions_of, price_of
from capacity.model import ModelSpec
from capacity.planning.changes import Change
from capacity.planning.checklist import changes
from capacity.planning.outcome import Latencies, Outcome, change, latencies_of, outcome
from capacity.planning.quality import quality_change
from capacity.planning.trial import deployment_label
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.workload import Workload

Progress = Callable[[int, int], None]


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
    """One change: its effects, and what it costs in quality; `refused` says why it cannot be, without any.

    `other_model`: it asks for another checkpoint; such advice comes after what can be done with this one. `thin_price`:
    its price is known of too few providers to be one of the market; such advice comes last.
    """

    change: str
    flags: str
    note: str
    effects: Effects | None
    failed: int
    worst_quality_loss: float | None
    quality_known: bool
    quality: str
    refused: str | None = None
    thin_price: bool = False
    other_model: bool = False

    @property
    def benefit(self) -> float:
        """How much cheaper and faster, together: what advice is ranked by. Requests that fail outweigh all else."""
        if self.effects is None:
            return -math.inf
        effects = self.effects
        moves = (effects.ttft_p95_change, effects.e2e_p95_change, effects.bill_change, effects.cost_change)
        return -sum(move for move in moves if move is not None) - 1e6 * self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceList(AnswerRecord):
    """Advice for one deployment, the most beneficial first, other models after all else.

    `observations` are figures that need no change.
    """

    SCHEMA: ClassVar[str] = "capacity/advice/v2"
    ROWS: ClassVar[str] = "advice"

    deployment: str
    workload: str
    base: Outcome
    advice: tuple[Advice, ...]
    refused: tuple[Advice, ...]
    observations: tuple[str, ...]


@documented(Pool, Traffic, Cost)
@checked
def advise(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    workload: Workload | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> AdviceList:
    """The optimisation checklist, each line simulated for this deployment on these requests.

    `progress(done, total)` is called as changes are done. Raises DoesNotFit.
    """
    pool_fields, traffic, prices = split(options, Pool, Traffic, Cost)
    deployment = deployment_of(model, pool=pool_fields, traffic=traffic, cost=prices, question="advise")
    pool = deployment.pool
    resolved = resolve(deployment.model, pool, profiles=profiles, download=download)
    requests = requests_of(deployment.traffic, workload, resolved.max_model_len)
    price = price_of(pool.gpu, deployment.cost)
    resolved.memory.require_fit()
    latencies = _served(resolved, Service(), requests)
    base = outcome(resolved, requests, replicas=pool.replicas, price=price, latencies=latencies)
    trials = _Trials(resolved=resolved, workload=requests, base=base, price=price, profiles=profiles)
    wanted = list(changes(resolved, requests, latencies, price))
    lines = [_streaming(base)]
    for number, each in enumerate(wanted):
        lines.append(trials.line(each))
        if progress is not None:
            progress(number + 1, len(wanted))
    return AdviceList(
        deployment=deployment_label(resolved, pool.replicas),
        workload=requests.name,
        base=base,
        advice=tuple(
            sorted(
                (line for line in lines if line.refused is None),
                key=lambda line: (line.thin_price, line.other_model, -line.benefit),
            )
        ),
        refused=tuple(line for line in lines if line.refused is not None),
        observations=(*requests.notices, *_observations(resolved, requests, base), *cautions_of(price)),
    )


def _served(
    resolved: ResolvedPool, service: Service, workload: Workload, scheduling: str = "continuous"
) -> Latencies:
    return latencies_of(run_service([resolved], service, workload, scheduling=scheduling).records, workload)


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
        loss = quality_change(
            changed.scheme, changed.model.checkpoint, changed.kv_cache_dtype, changed.pool.kv_eviction
        )
        worst = loss.worst_loss_fraction if wanted.worst_loss_fraction is None else wanted.worst_loss_fraction
        known = worst is not None and not (wanted.quality or "").startswith("unknown")
        return Advice(
            change=wanted.text,
            flags=wanted.flags,
            note="; ".join((wanted.note, *self._remarks(changed)) if wanted.note else self._remarks(changed)),
            effects=_effects(self.base, after),
            failed=max(after.failed - self.base.failed, 0),
            worst_quality_loss=worst if known else None,
            quality_known=known,
            quality=wanted.quality or loss.what,
            thin_price=wanted.price is not None and wanted.price.thin,
            other_model=wanted.model is not None,
        )

    def _remarks(self, changed: ResolvedPool) -> tuple[str, ...]:
        """On kernels of the change that are known by others' measurements alone."""
        base = self.resolved.step_setting.remarks
        return tuple(remark for remark in changed.step_setting.remarks if remark not in base)

    def _changed(self, wanted: Change) -> tuple[ResolvedPool, Outcome]:
        pool = build(Pool, {**self.resolved.pool.model_dump(), **wanted.pool})
        changed = resolve(wanted.model or self.resolved.model, pool, profiles=self.profiles)
        changed.memory.require_fit()
        service = build(Service, wanted.service)
        latencies = _served(changed, service, self.workload, wanted.scheduling)
        price, replicas = wanted.price or self.price, changed.pool.replicas
        after = outcome(changed, self.workload, replicas=replicas, price=price, latencies=latencies)
        as_batched = wanted.scheduling == "static" or changed.pool.kv_layout != self.resolved.pool.kv_layout
        return changed, self._at_full_load(changed, wanted, after) if as_batched else after

    def _at_full_load(self, changed: ResolvedPool, wanted: Change, after: Outcome) -> Outcome:
        """Costs at full load where the closed form, which batches continuously over blocks, does not hold.

        By how much longer the same requests, all at once, take than with what is in place.
        """
        if self.base.usd_per_request_full is None:
            return after
        at_once = self.workload if self.workload.is_closed_loop else self.workload.all_at_once()
        rates = [
            _served(pool, Service(), at_once, scheduling).requests_per_s
            for pool, scheduling in ((self.resolved, "continuous"), (changed, wanted.scheduling))
        ]
        full = self.base.usd_per_request_full * rates[0] / rates[1]
        return replace(after, usd_per_request_full=full)


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
        flags=wanted.flags,
        note=wanted.note,
        effects=None,
        failed=0,
        worst_quality_loss=None,
        quality_known=False,
        quality="",
        refused=reason,
    )


def _streaming(base: Outcome) -> Advice:
    """Without streaming the first word comes with the last."""
    after = replace(base, ttft_p95_s=base.e2e_p95_s)
    return Advice(
        change="give up streaming (what it is worth)",
        flags="",
        note="the first word then comes with the last",
        effects=_effects(base, after),
        failed=0,
        worst_quality_loss=0.0,
        quality_known=True,
        quality="same",
    )


def _observations(resolved: ResolvedPool, workload: Workload, base: Outcome) -> Iterator[str]:
    """What the deployment does as it is, and what its times rest on."""
    yield from resolved.step_setting.remarks
    if base.usd_per_request_full is not None and base.usd_per_request_served:
        used = base.usd_per_request_full / base.usd_per_request_served
        yield f"{used:.0%} of full load is used; the rest of the bill buys headroom"
    if base.failed:
        yield f"{base.failed:,} of {len(workload):,} requests are never served"
