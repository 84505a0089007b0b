"""Simulate the optimisation checklist for one deployment, and return the changes that help, by effort.

Each change is simulated on the same arrivals. Its result contains the effects on p95 latencies in seconds, on the bill
and on $ per request at full load, and the published change of quality. `capacity stack` evaluates techniques that are
already in use.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args

from capacity.base.checked import validate_arguments
from capacity.base.errors import CapacityError, InvalidInput
from capacity.base.keywords import document_options
from capacity.base.record import AnswerRecord, make_from
from capacity.deployment import Cost, DeploymentFile, Pool, Service, Traffic, build
from capacity.hardware.pricing import price_cautions
from capacity.model import ModelSpec
from capacity.planning.quality import quality_of
from capacity.planning.variations.changes import Change, Need
from capacity.planning.variations.checklist import LOSSLESS, changes
from capacity.planning.variations.outcome import (
    ComparedDeployment,
    Outcome,
    Progress,
    outcome,
    relative_change,
    report_each,
    serve,
)
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.workload import Workload
from capacity.workload.windows import Window

MAX_ADVICE = 8  # lines
MAX_PER_NEED = 3  # lines per group, while other groups have any
COMPARED = {  # figures of an `Outcome`: the names of their relative changes
    "ttft_p95_s": "ttft_p95_change",
    "tpot_p95_s": "tpot_p95_change",
    "e2e_p95_s": "e2e_p95_change",
    "usd_per_hour": "bill_change",
    "usd_per_request_full": "cost_change",
}
MIN_BENEFIT = 0.02  # least sum of relative improvements of a change that helps
MAX_QUALITY_LOSS = 0.1  # fraction of a score; a change with a larger published loss does not help


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Effects of a change compared with the current deployment; below 0 is better.

    Absolute effects are in seconds (`_s`) or $ (`usd_`); `_change` is relative. The bill is in $ per hour, the cost in
    $ per request at full load. None if a value is missing.
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
    """One change with its effects and its quality loss; `refused` is the reason why it cannot be made.

    `needs`: what the change requires, such as a restart. `quality_loss_change`: the worst published loss of score
    after the change minus that of the current deployment, as a fraction; None if none is published. `thin_price`: too
    few providers publish the new price; such advice comes last in its group.
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
        """Return the sum of relative improvements of p95 TTFT, p95 E2E, bill and cost, minus 1e6 for each additional
        failed request."""
        if self.effects is None:
            return -math.inf
        effects = self.effects
        moves = (effects.ttft_p95_change, effects.e2e_p95_change, effects.bill_change, effects.cost_change)
        return -sum(move for move in moves if move is not None) - 1e6 * self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceList(AnswerRecord):
    """Advice for one deployment: at most MAX_ADVICE changes that help, grouped by what they require.

    `without_benefit`: simulated changes that do not help, or help less than those in `advice`. `observations` are
    notes without a change.
    """

    SCHEMA: ClassVar[str] = "capacity/advice/v3"
    ROWS: ClassVar[str] = "advice"

    deployment: str
    workload: str
    busiest_window: Window | None  # the compared window of longer traffic; None: all requests
    base: Outcome
    advice: tuple[Advice, ...]
    without_benefit: tuple[Advice, ...]
    refused: tuple[Advice, ...]
    observations: tuple[str, ...]


@document_options(Pool, Traffic, Cost)
@validate_arguments
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

    Traffic longer than `slo_window` is compared on its busiest window. `progress(done, total)` is called after each
    change. Raises DoesNotFit.
    """
    as_it_is = ComparedDeployment.read(model, options, "advise", slo_window, workload, profiles, download)
    resolved, requests, price = as_it_is.resolved, as_it_is.requests, as_it_is.price
    resolved.memory.require_fit()
    latencies = serve(resolved, Service(), requests)
    base = outcome(resolved, latencies, price)
    wanted = list(changes(resolved, requests, latencies, price))
    lines = [try_change(as_it_is, base, each) for each in report_each(wanted, len(wanted), progress)]
    chosen = _most_helpful([line for line in lines if line.refused is None])
    return make_from(
        AdviceList,
        as_it_is,
        base=base,
        advice=tuple(chosen),
        without_benefit=tuple(line for line in lines if line.refused is None and line not in chosen),
        refused=tuple(line for line in lines if line.refused is not None),
        observations=(*requests.notices, *_observations(resolved, requests, base), *price_cautions(price)),
    )


def _most_helpful(lines: list[Advice]) -> list[Advice]:
    """Return the changes that help, grouped by what they require; in each group, lossless changes first, then those
    with a quality loss, with an unknown loss, and with a price from too few providers."""
    helpful = sorted(
        (
            line
            for line in lines
            if line.benefit >= MIN_BENEFIT and (line.quality_loss_change or 0.0) <= MAX_QUALITY_LOSS
        ),
        key=lambda line: (
            line.thin_price,
            line.quality_loss_change is None,
            (line.quality_loss_change or 0.0) > 0,
            -line.benefit,
        ),
    )
    groups = [[line for line in helpful if line.needs == need] for need in get_args(Need)]
    first = [line for group in groups for line in group[:MAX_PER_NEED]]
    kept = sorted(first, key=helpful.index)[:MAX_ADVICE]
    return [line for line in first if line in kept]


def try_change(as_it_is: ComparedDeployment, base: Outcome, wanted: Change) -> Advice:
    """Simulate a change on the same requests and return its effects; `refused` is set if the change cannot be made."""
    try:
        if wanted.refused is not None:
            raise InvalidInput(wanted.refused)
        pool = build(Pool, {**as_it_is.resolved.pool.model_dump(), **wanted.pool})
        changed = resolve(wanted.model or as_it_is.resolved.model, pool, profiles=as_it_is.profiles)
        changed.memory.require_fit()
        latencies = serve(changed, build(Service, wanted.service), as_it_is.requests)
    except CapacityError as error:
        return make_from(
            Advice,
            wanted,
            change=wanted.text,
            effects=None,
            failed=0,
            quality_loss_change=None,
            quality="",
            refused=str(error),
        )
    price = wanted.price or as_it_is.price
    after = outcome(changed, latencies, price)
    known = as_it_is.resolved.step_setting.remarks
    remarks = (remark for remark in changed.step_setting.remarks if remark not in known)
    loss, quality = _quality_of(as_it_is.resolved, changed, wanted)
    return make_from(
        Advice,
        wanted,
        change=wanted.text,
        note="; ".join(filter(None, (wanted.note, *remarks))),
        effects=_effects(base, after),
        failed=max(after.failed - base.failed, 0),
        quality_loss_change=loss,
        quality=quality,
        thin_price=wanted.price is not None and wanted.price.has_few_providers,
    )


def _quality_of(resolved: ResolvedPool, changed: ResolvedPool, wanted: Change) -> tuple[float | None, str]:
    """Return the change of the worst published loss as a fraction (None if unknown), and its source as text."""
    if wanted.worst_loss_fraction is not None:
        return wanted.worst_loss_fraction, wanted.quality or ""
    if wanted.quality is not None:
        return (0.0 if wanted.quality == LOSSLESS else None), wanted.quality
    before, after = (quality_of(each, each.model) for each in (resolved, changed))
    if before == after:
        return 0.0, "same"
    worst = before.worst_loss_fraction, after.worst_loss_fraction
    return (None if worst[0] is None or worst[1] is None else worst[1] - worst[0]), after.what


def _effects(base: Outcome, after: Outcome) -> Effects:
    pairs = {name: (getattr(base, name), getattr(after, name)) for name in COMPARED}
    return Effects(
        **{name: None if None in pair else pair[1] - pair[0] for name, pair in pairs.items()},
        **{COMPARED[name]: relative_change(*pair) for name, pair in pairs.items()},
    )


def _observations(resolved: ResolvedPool, workload: Workload, base: Outcome) -> Iterator[str]:
    """Yield notes about the current deployment: basis of step times, idle share of the bill, failed requests."""
    yield from resolved.step_setting.remarks
    if base.usd_per_request_full is not None and base.usd_per_request_served:
        used = base.usd_per_request_full / base.usd_per_request_served
        yield f"The deployment runs at {used:.0%} of its full load; the rest of the bill pays for headroom."
    if base.failed:
        yield f"{base.failed:,} of {len(workload):,} requests are not completed."
